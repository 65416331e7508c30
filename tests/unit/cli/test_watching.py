"""What is shown while somebody follows a task."""

from __future__ import annotations

import io
import re
from datetime import timedelta
from itertools import accumulate
from typing import Any, cast

import pytest
from rich.console import Console

from taskframework.cli import watching
from taskframework.errors import ResultTimeoutError
from taskframework.model.query import Page
from taskframework.model.status import TaskStatus
from taskframework.model.task import Task
from taskframework.model.task_fields import Subtasks
from taskframework.operations.handle import TaskHandle
from taskframework.operations.tasks import TaskOperations
from taskframework.testing.factories import new_task

_REMOVED = "\x1b[2K"


class Looks:
    """A parent that gets further with each look, and its running sub-task."""

    def __init__(self) -> None:
        parent = new_task(status=TaskStatus.WAITING, subtasks=Subtasks(2, None))
        self._states = [parent, parent.evolve(revision=2), parent.evolve(revision=3, status=TaskStatus.COMPLETED)]

    async def get(self, *_: Any) -> Any:
        return self._states.pop(0) if len(self._states) > 1 else self._states[0]

    async def subtasks(self, *_: Any, status: TaskStatus, **__: Any) -> Page[Task]:
        return Page((new_task(status=status),) if status is TaskStatus.RUNNING else (), None)


class Queued:
    """A task that no worker takes."""

    async def get(self, *_: Any) -> Task:
        return new_task(task_id="mine", status=TaskStatus.QUEUED)


async def test_lines_printed_while_watching_stay_above_the_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(watching, "err", lambda: Console(file=terminal, force_terminal=True, width=80))
    handle = TaskHandle("parent", True, cast(TaskOperations, Looks()))
    task = await watching.follow(handle, None, lambda task: print(f"line {task.revision}", file=terminal))
    assert task.status is TaskStatus.COMPLETED
    before_first, *shown = terminal.getvalue().split("line ")
    assert [before.endswith(_REMOVED) for before in shown[:-1]] == [True, True], "a line begins where nothing is"
    assert before_first == ""
    assert "RUNNING" in "".join(shown), "the tree is shown"
    for after_line in shown:
        _, _, rest = after_line.partition("\n")
        moves = [1 if move == "\n" else -1 for move in re.findall(r"\n|\x1b\[1A", rest)]
        assert min(accumulate(moves), default=0) >= 0, "it removes no line above itself"


async def test_waiting_for_a_task_that_no_worker_starts_names_the_command_explain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = io.StringIO()
    monkeypatch.setattr(watching, "err", lambda: Console(file=said, width=200))
    monkeypatch.setattr(watching, "_WORKER_HINT_SECONDS", 0)
    with pytest.raises(ResultTimeoutError):
        await watching.follow(TaskHandle("mine", True, cast(TaskOperations, Queued())), timedelta(seconds=0.05))
    assert said.getvalue() == "No worker has started it yet. See why: taskframework tasks explain mine\n"
