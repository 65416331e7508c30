# The few things one does with this project. `make` alone lists them.

VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
SOURCE := taskframework tests

.DEFAULT_GOAL := help
.PHONY: help install servers demo test check docs lock clean

help: ## list the targets
	@sed -nE 's/^([a-z]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

install: $(STAMP) ## create .venv with everything the lock file names (nothing to do when it is up to date)

# Candidates are run, not looked up: a version manager's shim may exist for a version that is switched off, and Debian's
# python3 may lack venv.
$(STAMP): pyproject.toml requirements.lock
	@if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
		for candidate in $(PYTHON) python3 python3.13 python3.12 python3.11; do \
			if $$candidate -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
				found=$$candidate; break; \
			fi; \
		done; \
		if [ -z "$$found" ]; then \
			echo 'make install: needs Python 3.11 or newer with the venv module (Debian: apt-get install python3-venv);' \
				'another interpreter can be named with make install PYTHON=/path/to/python3' >&2; exit 1; \
		fi; \
		$$found -m venv --clear $(VENV); \
	fi
	@echo 'Installing into $(VENV) (a minute or two the first time) ...'
	@$(BIN)/python -m pip --disable-pip-version-check install -qq --require-hashes -r requirements.lock
	@$(BIN)/python -m pip --disable-pip-version-check install -qq --no-deps --no-build-isolation -e .
	@touch $@
	@echo 'Installed: $(BIN)/taskframework'
