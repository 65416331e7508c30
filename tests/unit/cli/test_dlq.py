"""`dlq` with a dead letter that is a task."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from taskframework.model.status import TaskStatus
from taskframework.stores.sqlite import SqliteStore
from taskframework.testing.conformance.store_suite import make_error, put_final
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


def test_what_is_shown_of_one_is_on_one_stream(cli: Cli, failed: str) -> None:
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


def test_groups_tell_the_age_of_those_that_are_there(cli: Cli, failed: str) -> None:
    header, row = cli("dlq", "groups").out.splitlines()
    assert ("Oldest" in header, "Newest" in header, "it broke" in row) == (True, True, True)
