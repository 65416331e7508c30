"""`taskframework dev` after a kill -9: the next one has the file to itself, so it waits for no lease."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import Folder, Started
from tests.support.process import is_running, wait_until

#: Longer than any test: what goes on before its end was taken over.
LONG_LEASE = {"TASKFRAMEWORK_WORKER__LEASE": "10m"}
DEV = ("dev", "--app", "twice", "--port", "0")

TWICE = """
import asyncio
import os
import time
from pathlib import Path

from taskframework import BackgroundTaskExecutable, TaskContext, TaskOptions


class Twice(BackgroundTaskExecutable[str, int]):
    '''Hangs in its first attempt.'''

    task_type = "twice"

    async def execute(self, context: TaskContext[str]) -> int:
        if context.attempt == 1:
            Path(context.parameters).touch()
            await asyncio.Event().wait()
        return context.attempt


class TwiceInAProcess(BackgroundTaskExecutable[str, int]):
    '''The same in a child process, where it goes on working.'''

    task_type = "twice-in-a-process"
    options = TaskOptions(run_in="process")

    def execute(self, context: TaskContext[str]) -> int:
        mark = Path(context.parameters)
        while context.attempt == 1:
            mark.with_suffix(".new").write_text(str(os.getpid()))
            mark.with_suffix(".new").rename(mark)
            time.sleep(0.01)
        return context.attempt


class Deadly(BackgroundTaskExecutable[None, None]):
    task_type = "deadly"

    async def execute(self, context: TaskContext[None]) -> None:
        os._exit(3)


class Patient(BackgroundTaskExecutable[float, int]):
    '''Runs for so many seconds.'''

    task_type = "patient"

    async def execute(self, context: TaskContext[float]) -> int:
        await asyncio.sleep(context.parameters)
        return context.attempt
"""


@pytest.fixture
def program(folder: Folder) -> Folder:
    (folder.path / "twice.py").write_text(TWICE)
    return folder


def start(folder: Folder) -> Started:
    dev = folder.start(*DEV, env=LONG_LEASE)
    dev.event("ready")
    return dev


def submit(folder: Folder, task_type: str, parameters: str) -> str:
    task_id: str = folder.json("submit", task_type, parameters, "--app", "twice")["task_id"]
    return task_id


def show(folder: Folder, task_id: str) -> dict[str, Any]:
    task: dict[str, Any] = folder.json("tasks", "show", task_id)
    return task


def ends(folder: Folder, task_id: str) -> dict[str, Any]:
    folder.run("tasks", "watch", task_id, code=None)
    return show(folder, task_id)


@pytest.mark.parametrize("task_type", ["twice", "twice-in-a-process"])
def test_the_next_dev_process_takes_over_at_once(program: Folder, task_type: str) -> None:
    first = start(program)
    marks = [program.path / f"begun-{number}" for number in range(2)]
    task_ids = [submit(program, task_type, f'"{mark.name}"') for mark in marks]
    wait_until(lambda: all(map(Path.exists, marks)), "they run", timeout=20)
    assert first.end(signal.SIGKILL) == -signal.SIGKILL

    second = start(program)
    for task_id in task_ids:
        task = ends(program, task_id)
        assert (task["status"], task["result"]) == ("COMPLETED", 2)
        story = ["submitted", "started", "retrying", "started", "completed"]
        assert [entry["type"] for entry in task["history"]] == story
        assert task["history"][2]["data"]["code"] == "lease_expired"
    for mark in marks:  # what the first one started died with it
        left = mark.read_text()
        mark.unlink()
        assert not left or not is_running(int(left))
    assert second.end() == 0
    assert not any(map(Path.exists, marks))


def test_a_task_that_kills_dev_again_and_again_is_a_dead_letter(program: Folder) -> None:
    task_id = ""
    for crash in range(3):
        dev = program.start(*DEV, env=LONG_LEASE)
        if not crash:
            dev.event("ready")
            task_id = submit(program, "deadly", "null")
        assert dev.wait(timeout=30) == 3
    start(program)
    task = ends(program, task_id)
    assert (task["status"], task["attempt"], task["error"]["code"]) == ("DEAD_LETTER", 3, "lease_expired")


def test_a_long_task_beside_a_task_that_kills_dev_survives(program: Folder) -> None:
    # Of a shorter lease a crowded machine may miss the renewal, which counts as a crash, too.
    quick = {"TASKFRAMEWORK_WORKER__LEASE": "3s", "TASKFRAMEWORK_RETRY__INITIAL_DELAY": "100ms"}
    deadly = innocent = ""
    for crash in range(3):
        dev = program.start(*DEV, env=quick)
        if not crash:
            dev.event("ready")
            innocent = submit(program, "patient", "7")
            deadly = submit(program, "deadly", "null")
        assert dev.wait(timeout=30) == 3
    program.start(*DEV, env=quick).event("ready")
    assert ends(program, innocent)["status"] == "COMPLETED"
    task = ends(program, deadly)
    assert (task["status"], task["attempt"], task["error"]["code"]) == ("DEAD_LETTER", 3, "lease_expired")
