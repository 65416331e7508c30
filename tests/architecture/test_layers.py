"""Imports point down, drivers stay in their adapter, and the rules that say so would notice."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.sources import PACKAGE, ROOT

# Where: what is planted there, and how the finding reads.
_PLANTED = {
    "model/status.py": ("from taskframework import bus", "taskframework.model.status -> taskframework.bus"),
    "worker/settlement.py": (
        "from taskframework.submission import producer",
        "taskframework.worker.settlement -> taskframework.submission.producer",
    ),
    "events/bridge.py": ("from taskframework import TaskFramework", "taskframework.events.bridge -> taskframework (l."),
    "operations/health.py": (
        "from taskframework.stores.sqlite import store",
        "taskframework.operations.health -> taskframework.stores.sqlite.store",
    ),
    "model/task.py": ("import pymongo.errors", "taskframework.model.task -> pymongo"),
    "clock.py": ("import sqlite3", "taskframework.clock -> sqlite3"),
    "limits/buckets.py": ("import redis", "taskframework.limits.buckets -> redis"),
    "operations/keys.py": ("import jwt", "taskframework.operations.keys -> jwt"),
    "brokers/embedded.py": ("import aio_pika", "taskframework.brokers.embedded -> aio_pika"),
    "model/circle_a.py": ("import taskframework.model.circle_b", ".circle_"),
    "model/circle_b.py": ("import taskframework.model.circle_a", ".circle_"),
}


def test_the_import_rules_are_kept() -> None:
    code, output = _lint_imports(ROOT)
    assert code == 0, output


def test_the_import_rules_catch_what_they_forbid(tmp_path: Path) -> None:
    _copy_project(tmp_path)
    for name, (line, _) in _PLANTED.items():
        _plant(tmp_path / "taskframework" / name, line)

    code, output = _lint_imports(tmp_path)

    assert code == 1, output
    assert [finding for _, finding in _PLANTED.values() if finding not in output] == [], output
    assert " KEPT" not in output, "every rule has a planted violation"


def test_a_new_folder_must_be_given_its_place(tmp_path: Path) -> None:
    _copy_project(tmp_path)
    _plant(tmp_path / "taskframework" / "nowhere" / "__init__.py", "")

    code, output = _lint_imports(tmp_path)

    assert code == 1, output
    assert "nowhere" in output


def _copy_project(folder: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", folder)
    shutil.copytree(PACKAGE, folder / "taskframework", ignore=shutil.ignore_patterns("__pycache__"))


def _plant(file: Path, line: str) -> None:
    file.parent.mkdir(exist_ok=True)
    with file.open("a") as module:
        module.write(f"\n{line}\n")


def _lint_imports(folder: Path) -> tuple[int, str]:
    program = Path(sys.executable).with_name("lint-imports")
    if not program.exists():
        pytest.fail(f"{program} is missing: run `make install`")
    done = subprocess.run([program, "--no-logo", "--no-cache"], cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr
