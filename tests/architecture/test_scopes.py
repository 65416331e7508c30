"""Whoever reads or changes tasks for somebody says whose: forgetting it does not type-check."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from mypy import api

from taskframework.api import feed
from taskframework.model.interventions import Cancel, Replay
from taskframework.operations.dead_letters import DeadLetterOperations
from taskframework.operations.tasks import TaskOperations
from taskframework.stores.base import TaskReads
from tests.architecture.sources import ROOT

#: What is asked for somebody: every public method of these.
_CLASSES: tuple[type[Any], ...] = (TaskReads, TaskOperations, DeadLetterOperations)
_ASKED = [
    method
    for owner in _CLASSES
    for name, method in vars(owner).items()
    if inspect.iscoroutinefunction(method) and not name.startswith("_")
]


@pytest.mark.parametrize("asked", [*_ASKED, feed.Feed.join, Cancel, Replay], ids=lambda asked: asked.__qualname__)
def test_a_scope_is_asked_for_and_has_no_default(asked: Callable[..., Any]) -> None:
    scope = inspect.signature(asked).parameters["scope"]
    assert (scope.annotation, scope.default) == ("Scope", inspect.Parameter.empty)


def test_there_are_methods_to_look_at() -> None:
    assert len(_ASKED) >= 9
    assert "owner" not in {field.name for transition in (Cancel, Replay) for field in fields(transition)}


#: What somebody might write who does not think of it, and what mypy says.
_FORGETFUL = {
    "await store.get(task_id)": 'Missing positional argument "scope" in call to "get" of "TaskReads"',
    "await store.get(task_id, None)": 'Argument 2 to "get" of "TaskReads" has incompatible type "None"',
    'await store.get(task_id, "alice")': 'Argument 2 to "get" of "TaskReads" has incompatible type "str"',
    "await store.list_tasks(TaskFilter(), limit=5)": '"list_tasks" of "TaskReads" has incompatible type "TaskFilter"',
    "await operations.cancel(task_id, by='x')": 'Missing positional argument "scope" in call to "cancel"',
    "await operations.retry(task_id, by='x')": 'Missing positional argument "scope" in call to "retry"',
    "await letters.replay([task_id], by='x')": 'Missing positional argument "scope" in call to "replay"',
    "Cancel(task_id, None, 'x', None)": 'Argument 2 to "Cancel" has incompatible type "None"; expected "Scope"',
    "Scope.of(None)": 'Argument 1 to "of" of "Scope" has incompatible type "None"; expected "str"',
    "Scope()": 'Missing positional argument "owner" in call to "Scope"',
}
_PROGRAM = """
from taskframework.model.interventions import Cancel
from taskframework.model.query import TaskFilter
from taskframework.model.scope import EVERYONE, Scope
from taskframework.operations.dead_letters import DeadLetterOperations
from taskframework.operations.tasks import TaskOperations
from taskframework.stores.base import TaskStore

async def ask(
    store: TaskStore, operations: TaskOperations, letters: DeadLetterOperations, task_id: str
) -> None:
    await store.get(task_id, EVERYONE)
"""


def test_a_call_without_a_scope_is_an_error_of_mypy(tmp_path: Path) -> None:
    program = tmp_path / "forgetful.py"
    program.write_text(_PROGRAM + "".join(f"    {line}\n" for line in _FORGETFUL))
    said, trouble, _ = api.run([str(program), "--config-file", str(ROOT / "pyproject.toml"), "--no-error-summary"])
    assert trouble == ""
    first = _PROGRAM.count("\n") + 1
    # By its name alone: mypy may answer from its cache, with the folder of an earlier run.
    found = {
        line: [error for error in said.splitlines() if f"{program.name}:{number}: error" in error]
        for number, line in enumerate(_FORGETFUL, first)
    }
    for line, error in _FORGETFUL.items():
        assert any(error in one for one in found[line]), f"{line}: {found[line] or said}"
    assert f"{program}:{first - 1}:" not in said, "the line with a scope is right"
