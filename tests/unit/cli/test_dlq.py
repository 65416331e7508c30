"""`dlq` with a dead letter that is a task."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import taskframework.wiring.process  # noqa: F401 - read before it is first needed
from taskframework import Settings, TaskFramework
from taskframework.cli.applications import register_modules
from taskframework.model.query import DeadMessage
from taskframework.model.status import TaskStatus
from taskframework.stores.sqlite import SqliteStore
from taskframework.testing.conformance.store_suite import make_error, put_final
from taskframework.testing.factories import new_task
from tests.unit.cli.conftest import Cli

TRACEBACK = 'File "shop.py", line 7\nValueError: it broke'


@pytest.fixture
def failed(folder: Path) -> str:
    """The id of a task that failed."""

    async def put() -> str:
        store = SqliteStore(folder / "taskframework.db")
        await store.open()
        error = replace(make_error("it broke"), attempt=1, traceback=TRACEBACK)
        task = await put_final(store, TaskStatus.FAILED, error=error, errors=(error,))
        await store.close()
        return task.task_id

    return asyncio.run(put())


def test_a_dead_letter_is_shown_on_standard_output_and_hints_on_standard_error(cli: Cli, failed: str) -> None:
    assert cli("dlq", "discard", failed, "--reason", "old").code == 0
    shown = cli("dlq", "show", failed)
    assert f"Attempt 1:\n{TRACEBACK}" in shown.out
    assert ": old\n" in shown.out.partition("Discarded by ")[2]
    assert shown.err == f"To queue it again: taskframework tasks retry {failed}\n"


def test_a_task_is_not_repaired_but_edited(cli: Cli, failed: str) -> None:
    refused = cli("dlq", "repair", failed, "1", "--type", "test-task")
    assert refused.code == 1
    assert f"Dead letter {failed} is a task; only a message without a task can be repaired." in refused.err
    assert f"`taskframework dlq edit {failed} JSON`" in refused.err


def test_a_dry_run_with_more_than_are_shown_prints_json_and_nothing_else(cli: Cli, folder: Path) -> None:
    async def put() -> None:
        store = SqliteStore(folder / "taskframework.db")
        await store.open()
        ended: dict[str, Any] = {"status": TaskStatus.FAILED, "next_dispatch_at": None, "finished_at": store.now()}
        await store.insert([new_task(now=store.now(), error=make_error(), **ended) for _ in range(501)])
        await store.close()

    asyncio.run(put())
    done = cli("dlq", "replay", "--where", "type=test-task", "--dry-run", "--json")
    assert (done.code, len(json.loads(done.out))) == (0, 500)
    assert done.err == "More fit --where; these are the newest 500.\n"


def test_the_dry_run_of_a_repair_prints_json_if_it_is_to(cli: Cli, folder: Path) -> None:
    async def put() -> None:
        async with framework.running(worker=True):
            store = framework.services.store
            await store.keep_dead_message(DeadMessage("m-1", b"?", {}, "tasks.dlq", "not JSON", store.now()))

    framework = TaskFramework(Settings())
    register_modules(framework, ["greeting"])
    asyncio.run(put())
    done = cli("dlq", "repair", "m-1", '"ann"', "--type", "greets", "--dry-run", "--json")
    assert json.loads(done.out) == {"task_type": "greets", "would_be_submitted": True}


def test_groups_tell_the_age_of_those_that_are_there(cli: Cli, failed: str) -> None:
    header, row = cli("dlq", "groups").out.splitlines()
    assert ("Oldest" in header, "Newest" in header, "it broke" in row) == (True, True, True)
