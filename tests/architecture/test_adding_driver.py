"""What `docs/adding/driver.md` promises: a driver is one piece of data, and one migration for SQLite."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.architecture.sources import ROOT

_SECONDS = 60


@pytest.fixture(params=["sqlite", "mongo"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'tasks.db'}"
    url: str = request.getfixturevalue("mongo_url")
    return url


async def test_a_new_driver_is_found_counted_and_indexed_by_both_stores(store_url: str) -> None:
    found = await asyncio.to_thread(_run, store_url)
    assert found == {
        "due": ["late", "due"],
        "upcoming": ["early"],
        "undriven": ["undriven"],
        "missing": ["wake"],
        "problems": [],
    }


def _run(url: str) -> Any:
    command = [sys.executable, "-m", "tests.architecture.throw_away_driver", url]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=_SECONDS)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
