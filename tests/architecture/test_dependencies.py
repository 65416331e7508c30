"""What the package imports is declared in pyproject.toml, and what is declared is imported."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from taskframework.wiring.extras import EXTRA_MODULES
from tests.architecture.sources import PACKAGE, ROOT, modules

#: Loaded by uvicorn when it is there, and faster than what is loaded otherwise; and by `zoneinfo`.
_LOADED_BY_OTHERS = {"httptools", "tzdata"}


def imported(files: Iterable[Path]) -> set[str]:
    """The distributions that files import from, type-only imports included."""
    names = {name for path in files for name in _imports(ast.parse(path.read_text()))}
    own = {*sys.stdlib_module_names, "taskframework"}
    return {_distribution(name) for name in names if name.partition(".")[0] not in own}


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def _distribution(name: str) -> str:
    """Who brings a module, or a name in one; several distributions may share the first part of its name."""
    parts = name.split(".")
    owners = set(_owners()[parts[0]])
    for length in range(len(parts), 0, -1):
        module = "/".join(parts[:length])
        for owner in owners:
            if len(owners) == 1 or {f"{module}.py", f"{module}/__init__.py"} & _files(owner):
                return _canonical(owner)
    raise LookupError(f"nothing that is installed brings {name}")


@cache
def _owners() -> Mapping[str, list[str]]:
    return metadata.packages_distributions()


@cache
def _files(distribution: str) -> set[str]:
    return {str(file) for file in metadata.files(distribution) or ()}


def declared(requirements: list[str]) -> set[str]:
    """The distributions that are required."""
    return {_canonical(re.split(r"[^\w.-]", requirement)[0]) for requirement in requirements}


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_imported_packages_and_declared_dependencies_are_the_same() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    suites = [path for path in modules() if PACKAGE / "testing" in path.parents]
    needed, extras = imported(set(modules()) - set(suites)), project["optional-dependencies"]
    offered = [package for extra, brought in extras.items() if extra != "test" for package in brought]
    assert needed == declared([*project["dependencies"], *offered]) - _LOADED_BY_OTHERS - {"taskframework"}
    assert imported(suites) <= needed | declared(extras["test"])


def test_the_extra_all_has_every_extra_of_users() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras["all"] == [f"taskframework[{','.join(sorted(set(extras) - {'all', 'test'}))}]"]


def test_the_modules_that_are_checked_of_an_extra_are_installed_by_it() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra, modules_of_it in EXTRA_MODULES.items():
        assert {_distribution(module) for module in modules_of_it} <= declared(extras[extra]), extra


@pytest.mark.parametrize(
    ("told", "code", "said"),
    [
        ([{"name": "a", "version": "1", "vulns": []}], 0, "nothing is known against the 1 packages"),
        (
            [{"name": "a", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": ["2"]}]}],
            *(1, "a 1: CVE-1, repaired in 2"),
        ),
        ([{"name": "a", "skip_reason": "unknown"}], 3, "NOT AUDITED"),
        (None, 3, "NOT AUDITED"),
    ],
)
def test_the_audit_tells_what_is_known_and_whether_it_could_ask(
    tmp_path: Path, told: object, code: int, said: str
) -> None:
    answer = "no network" if told is None else json.dumps({"dependencies": told})
    (tmp_path / "pip_audit.py").write_text(f"print({answer!r})")
    command = [sys.executable, str(ROOT / ".ci/audit"), str(ROOT / "requirements.lock")]
    done = subprocess.run(command, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    assert (done.returncode, said in done.stdout + done.stderr) == (code, True), done


def test_no_release_of_httpx_sse_is_allowed_that_cuts_events() -> None:
    """With 0.4.0 and 0.4.1 `test_line_ends_within_a_text_end_no_line` fails, but only the newest is installed here."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [required] = [it for it in map(Requirement, project["dependencies"]) if it.name == "httpx-sse"]
    assert [release for release in ("0.4.0", "0.4.1", "0.4.2") if release in required.specifier] == ["0.4.2"]
