"""Documents of a release that knew of no sub-tasks and no signals: every move makes of them what its rule says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest

from taskframework.errors import TaskUnreadableError
from taskframework.model.attempts import Complete, Fail, Release
from taskframework.model.drivers import OUTBOX
from taskframework.model.interventions import Cancel, Replay
from taskframework.model.options import StreamPlace
from taskframework.model.query import TaskFilter
from taskframework.model.scope import EVERYONE
from taskframework.model.signals import SendSignal, Wake
from taskframework.model.status import TaskStatus
from taskframework.model.streams import StreamKey, Turn
from taskframework.model.task_fields import Subtasks
from taskframework.model.transitions import Fence
from taskframework.model.waiting import Reopen, Wait
from taskframework.testing.conformance.store_suite import (
    HOUR,
    MINUTE,
    Request,
    make_error,
    make_request,
    put,
    put_running,
)
from tests.integration.test_mongo import client, opened

_NEW_FIELDS = (
    *("cascade_at", "check_at", "subtasks", "spawn_at", "stage"),
    *("waits_for", "signals", "woken_by"),
)
_NO_TIME = timedelta(0)
_REQUESTS: dict[str, Callable[[Fence], Request]] = {
    "complete": lambda fence: Complete(fence, "worker-1", None),
    "fail": lambda fence: Fail(fence, "worker-1", make_error(), True, _NO_TIME),
    "fail for good": lambda fence: Fail(fence, "worker-1", make_error(), False, _NO_TIME),
    "release": lambda fence: Release(fence, "worker-1"),
    "cancel": lambda fence: Cancel(fence.task_id, EVERYONE, "operator", None),
    "replay": lambda fence: Replay(fence.task_id, EVERYONE, "operator", HOUR),
    "reopen": lambda fence: Reopen(fence.task_id, EVERYONE, "operator"),
    "wait for sub-tasks": lambda fence: Wait(fence, "worker-1", Subtasks(2, [1]), None, None, None),
    "wait for a signal": lambda fence: Wait(fence, "worker-1", None, "approved", MINUTE, None),
    "signal": lambda fence: SendSignal(fence.task_id, EVERYONE, "key", "approved", 1),
    "wake": lambda fence: Wake(fence.task_id),
}


@pytest.mark.parametrize("name", _REQUESTS)
async def test_a_field_that_an_older_document_lacks_counts_as_empty(mongo_url: str, name: str) -> None:
    async with opened(mongo_url) as store, client(mongo_url) as tasks:
        _, running = await put_running(store)
        others = [await put(store, status=status) for status in (TaskStatus.QUEUED, TaskStatus.FAILED)]
        fences = [running, *(Fence(task.task_id, 1, "no claim") for task in others)]
        await asyncio.to_thread(tasks.update_many, {}, {"$unset": dict.fromkeys(_NEW_FIELDS, "")})
        for fence in fences:
            await make_request(store, _REQUESTS[name](fence))


@pytest.mark.parametrize("change", [{"$set": {"not_before": None}}, {"$unset": {"dispatches": ""}}])
async def test_a_document_that_somebody_spoiled_does_not_keep_the_others_from_being_due(
    mongo_url: str, change: dict[str, dict[str, object]]
) -> None:
    async with opened(mongo_url) as store, client(mongo_url) as tasks:
        spoiled, other = [await put(store, publish_at=store.now() - MINUTE) for _ in range(2)]
        await asyncio.to_thread(tasks.update_one, {"_id": spoiled.task_id}, change)
        assert [task.task_id for task in await store.due(OUTBOX, 10)] == [other.task_id]


async def test_a_running_task_that_somebody_spoiled_loses_its_lease_alone(mongo_url: str) -> None:
    async with opened(mongo_url) as store, client(mongo_url) as tasks:
        (bad, lost), (good, held) = [await put_running(store) for _ in range(2)]
        for task in (bad, good):
            await make_request(store, Cancel(task.task_id, EVERYONE, "alice", None))
        await asyncio.to_thread(tasks.update_one, {"_id": bad.task_id}, {"$set": {"cancel": True}})
        assert list(await store.renew([lost, held], MINUTE)) == [held]
        assert list(await store.cancel_requests([lost, held])) == [held]
        await asyncio.to_thread(tasks.update_one, {"_id": bad.task_id}, {"$set": {"lease": None}})
        assert await store.claims_of([bad.task_id, good.task_id]) == {good.task_id: held.claim_id}


async def test_a_spoiled_task_gets_no_turn_that_the_record_of_its_stream_cannot_keep(mongo_url: str) -> None:
    async with opened(mongo_url) as store, client(mongo_url) as tasks:
        blocked = {"status": TaskStatus.BLOCKED, "next_dispatch_at": None, "unblock_at": store.now() + HOUR}
        bad, good = [await put(store, **blocked, stream=StreamPlace(key, "serial", 0)) for key in "ab"]
        await asyncio.to_thread(tasks.update_one, {"_id": bad.task_id}, {"$unset": {"generation": ""}})
        with pytest.raises(TaskUnreadableError, match=bad.task_id):
            await store.next_blocked([StreamKey("alice", "a"), StreamKey("alice", "b")])
        stream = StreamKey("alice", "b")
        assert await store.next_blocked([stream]) == {stream: Turn(good.task_id, 0, 0)}


async def test_a_document_without_a_time_is_left_out_of_lists_and_named_where_it_is_asked_for(mongo_url: str) -> None:
    async with opened(mongo_url) as store, client(mongo_url) as tasks:
        spoiled, other = [await put(store) for _ in range(2)]
        await asyncio.to_thread(tasks.update_one, {"_id": spoiled.task_id}, {"$set": {"not_before": None}})
        listed = await store.list_tasks(EVERYONE, TaskFilter(), limit=10)
        assert [task.task_id for task in listed.items] == [other.task_id]
        with pytest.raises(TaskUnreadableError, match=spoiled.task_id):
            await store.get(spoiled.task_id, EVERYONE)


@pytest.mark.parametrize("change", [{"$unset": {"created_at": ""}}, {"$set": {"created_at": "yesterday"}}])
@pytest.mark.parametrize("is_search", [False, True])
async def test_a_list_goes_to_its_end_though_documents_have_no_time_of_creation(
    mongo_url: str, change: dict[str, dict[str, object]], is_search: bool
) -> None:
    async with opened(mongo_url) as store, client(mongo_url) as tasks:
        readable, *spoiled = [await put(store) for _ in range(4)]
        ids = [task.task_id for task in spoiled]
        await asyncio.to_thread(tasks.update_many, {"_id": {"$in": ids}}, change)
        find = store.search_tasks if is_search else store.list_tasks
        listed = await find(EVERYONE, TaskFilter(), limit=2)
        assert ([task.task_id for task in listed.items], listed.next_cursor) == ([readable.task_id], None)
