"""`tasks subtasks` and `tasks signal`: what a parent has below it, page by page, and what a signal did."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from taskframework import Settings, TaskFramework
from taskframework.cli.applications import register_modules
from taskframework.model.status import TaskStatus
from taskframework.testing.eventually import eventually
from tests.unit.cli.conftest import Cli

PROGRAM = """
from taskframework import BackgroundTaskExecutable, TaskContext


class Asks(BackgroundTaskExecutable[None, str]):
    task_type = "asks"

    async def execute(self, context: TaskContext[None]):
        return context.wait_for(signal="approved")

    async def on_signal(self, context: TaskContext[None], signal) -> str:
        return "heard"


class AsksAll(BackgroundTaskExecutable[int, None]):
    task_type = "asks-all"

    async def execute(self, context: TaskContext[int]) -> None:
        await context.submit_subtasks(Asks, [None] * context.parameters)
"""


def run_until(task_id: str, status: TaskStatus) -> None:
    """Let a worker work until a task has this status."""

    async def run() -> None:
        async with framework.running(worker=True):

            async def is_there() -> bool:
                return (await framework.get(task_id)).status is status

            await eventually(is_there)

    framework = TaskFramework(Settings())
    register_modules(framework, ["asking"])
    asyncio.run(run())


@pytest.fixture
def submitted(cli: Cli, folder: Path) -> str:
    """A task that waits for three sub-tasks, which wait for a signal each."""
    (folder / "asking.py").write_text(PROGRAM)
    task_id: str = json.loads(cli("submit", "asks-all", "3", "--app", "asking", "--json").out)["task_id"]
    run_until(task_id, TaskStatus.WAITING)
    return task_id


def test_sub_tasks_have_pages(cli: Cli, submitted: str) -> None:
    first = json.loads(cli("tasks", "subtasks", submitted, "--limit", "2", "--json").out)
    assert len(first["items"]) == 2
    told = cli("tasks", "subtasks", submitted, "--limit", "2")
    assert f"More: --cursor {first['next_cursor']}" in told.err
    last = json.loads(cli("tasks", "subtasks", submitted, "--cursor", first["next_cursor"], "--json").out)
    assert (len(last["items"]), last["next_cursor"]) == (1, None)
    assert "No such sub-tasks." in cli("tasks", "subtasks", submitted, "--status", "failed").err
    assert "No sub-tasks." in cli("tasks", "subtasks", last["items"][0]["task_id"]).err
    assert cli("tasks", "subtasks", submitted, "--cursor", "x").code == 1


def test_a_parent_that_failed_names_where_the_reasons_are(cli: Cli, submitted: str) -> None:
    sub_task = json.loads(cli("tasks", "subtasks", submitted, "--json").out)["items"][0]["task_id"]
    assert cli("tasks", "cancel", sub_task).code == 0
    run_until(submitted, TaskStatus.FAILED)
    assert f"See which failed, and why: taskframework tasks subtasks {submitted}" in cli("tasks", "show", submitted).err


def test_a_signal_tells_what_it_did(cli: Cli, submitted: str) -> None:
    later = json.loads(cli("submit", "asks", "--app", "asking", "--not-before", "24h", "--json").out)
    assert "it is QUEUED and keeps the signal" in cli("tasks", "signal", later["task_id"], "approved").out
    asks = json.loads(cli("tasks", "subtasks", submitted, "--json").out)["items"][0]["task_id"]
    run_until(asks, TaskStatus.WAITING)
    assert "it waits for approved and keeps this one" in cli("tasks", "signal", asks, "aproved").out
    assert "it continues" in cli("tasks", "signal", asks, "approved", "--key", "k").out
    run_until(asks, TaskStatus.COMPLETED)
    assert "it is COMPLETED and got it before" in cli("tasks", "signal", asks, "approved", "--key", "k").out
    refused = cli("tasks", "signal", asks, "approved")
    assert (refused.code, "cannot be signalled" in refused.err) == (1, True)
