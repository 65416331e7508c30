"""Tasks of many streams that are submitted together share their calls to MongoDB."""

from __future__ import annotations

from datetime import timedelta

import pytest

from taskframework import Settings
from taskframework.clock import SystemClock
from taskframework.model.attempts import Claim, Complete
from taskframework.model.query import TaskFilter
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.model.task import new_claim_id
from taskframework.model.transitions import Fence
from taskframework.stores.mongo.store import MongoStore
from taskframework.submission.requests import SubmitRequest
from taskframework.tasks.registry import TaskRegistry
from taskframework.wiring.store_services import StoreServices, build_store_services
from tests.support.driver_commands import recorded_commands
from tests.support.kitchen_sink import CountWords

STREAMS = 400
#: With groups of a hundred, each step of a submission took four calls or five, and a submission 40 calls.
MOST_COMMANDS = 10


async def test_four_hundred_streams_take_no_more_calls_than_a_few(
    mongo_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = recorded_commands(monkeypatch)
    store = MongoStore(mongo_url)
    await store.open()
    try:
        registry = TaskRegistry()
        registry.register(CountWords)
        services = build_store_services(Settings(), registry, SystemClock(), store, dispatches=True)
        sent = []
        for _ in range(2):  # the first one creates the streams
            commands.sent.clear()
            await _submit(services)
            sent.append([next(iter(command)) for command in commands.sent])
            await _end_all(store)
    finally:
        await store.close()
    assert [names for names in sent if len(names) > MOST_COMMANDS] == []


async def _submit(services: StoreServices) -> None:
    requests = [
        SubmitRequest(task_type="count-words", parameters={"text": "one"}, stream={"key": f"s-{number}"})
        for number in range(STREAMS)
    ]
    outcomes = await services.submission.submit_many(requests)
    assert [outcome for outcome in outcomes if isinstance(outcome, Exception)] == []


async def _end_all(store: MongoStore) -> None:
    """Every stream has one task, and each of them has its turn: claim and end them all."""
    found, cursor = 0, None
    while True:
        page = await store.list_tasks(EVERYONE, TaskFilter(status=TaskStatus.QUEUED), limit=100, cursor=cursor)
        for task in page.items:
            claim = new_claim_id()
            claimed = await store.apply(Claim(task.task_id, task.dispatch_epoch, claim, "w", timedelta(minutes=1)))
            assert claimed is not None
            fence = Fence(task.task_id, claimed.fencing_token, claim)
            assert await store.apply(Complete(fence, "w", 1)) is not None
        found, cursor = found + len(page.items), page.next_cursor
        if cursor is None:
            break
    assert found == STREAMS
