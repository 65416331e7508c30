"""No schedule of submissions, faults and repairs breaks a promise; and no store does anything but the pure rules."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from taskframework.model.status import TaskStatus
from taskframework.stores.base import TaskStore
from taskframework.stores.mongo.store import MongoStore
from taskframework.stores.sqlite import SqliteStore
from tests.models.walk import walk, walk_in_step, walk_together

#: Walks that share a store: enough for groups, few enough for short lists.
_AT_ONCE = 64
#: The first 3,600 walks are part of `make test`, the others of `make chaos`.
_FIRST = [pytest.param(seed, marks=[pytest.mark.chaos_long] if seed >= 3_600 else []) for seed in range(0, 9_000, 900)]


@pytest.mark.parametrize("first", _FIRST)
async def test_the_rules_keep_every_promise(first: int) -> None:
    for seed in range(first, first + 900):
        await walk(seed)


async def test_the_walks_meet_every_request_and_every_status() -> None:
    """A walk that never replays proves nothing about replays."""
    made, refused, statuses = set[str](), set[str](), set[TaskStatus]()
    for seed in range(600):
        for request, before, after in (await walk(seed)).requests:
            (refused if after is None else made).add(type(request).__name__)
            statuses.add((before if after is None else after).status)
    everything = {
        *("Claim", "ReportProgress", "RecordStep", "Complete", "Fail", "Release", "RenewLease"),
        *("Reap", "Cancel", "Expire", "Postpone", "Replay", "RetryNow", "Supersede", "Discard"),
        *("EndUnstarted", "RestartQueueTimeout", "ReplaceParameters", "Unblock", "ClaimTurn", "Skip"),
        *("Wait", "CountSubtasks", "SendSignal", "Wake", "Reopen", "MoveDriver", "MarkSpawned"),
        *("Announce", "Seal", "AbandonUpload", "ReopenBatch", "EndRetry", "CascadeAgain"),
        *(
            "EndPutOff",
            "ForgetDispatch",
            "MarkDispatched",
            "MakeDue",
            "ReserveDispatch",
            "MarkPublished",
            "PostponeRelay",
            "TimePasses",
        ),
    }
    assert made == everything
    # Nobody in a walk reads one step before what they say by it in another; the conformance suite does.
    hardly_refused = {"CascadeAgain", "EndRetry", "MarkDispatched", "MarkSpawned", "PostponeRelay", "TimePasses"}
    assert everything - refused <= hardly_refused
    assert statuses == set(TaskStatus)


class InStep:
    """Walks in step with one store, many at once, so that it writes in groups."""

    @pytest.mark.parametrize("first", range(0, 192, _AT_ONCE))
    async def test_the_store_is_what_the_rules_say(self, store: TaskStore, first: int) -> None:
        watches = await walk_together(range(first, first + _AT_ONCE), store)
        assert sum(len(watch.requests) for watch in watches) > 30 * _AT_ONCE

    async def test_the_store_follows_the_rules_in_one_walk_at_a_time(self, store: TaskStore) -> None:
        for seed in range(1_000, 1_008):
            await walk_in_step(seed, store)


class TestSqliteInStep(InStep):
    @pytest_asyncio.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[TaskStore]:
        store = SqliteStore(tmp_path / "tasks.db")
        await store.open()
        yield store
        await store.close()


class TestMongoInStep(InStep):
    @pytest_asyncio.fixture
    async def store(self, mongo_url: str) -> AsyncIterator[TaskStore]:
        store = MongoStore(mongo_url)
        await store.open()
        yield store
        await store.close()
