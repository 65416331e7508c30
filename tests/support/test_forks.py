"""A forked command is like one that started from nothing."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.command import COMMAND, environment_with, run_command, start_command


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["nonsense"], ["submit", "count-words", "--app", "nowhere"], ["config", "show"]],
    ids=" ".join,
)
def test_a_forked_command_prints_and_returns_the_same(arguments: list[str], tmp_path: Path) -> None:
    environment = environment_with({"TASKFRAMEWORK_WORKER__LEASE": "77s"})
    fresh = subprocess.run(
        [*COMMAND, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    forked = run_command(arguments, tmp_path, environment, given="")
    assert (forked.returncode, forked.stdout, forked.stderr) == (fresh.returncode, fresh.stdout, fresh.stderr)


def test_a_forked_command_has_its_own_session_and_ends_by_a_signal(tmp_path: Path) -> None:
    started = start_command(["dev", "--port", "0"], tmp_path, environment_with({}))
    try:
        assert os.getsid(started.pid) == started.pid
    finally:
        started.kill()
    assert not started.is_alive
