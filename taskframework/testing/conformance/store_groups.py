"""Store suite: many callers at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from taskframework.model.attempts import Complete, Fail, RecordStep, ReportProgress
from taskframework.model.interventions import Cancel
from taskframework.model.marks import MarkDispatched, MarkPublished
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.model.transitions import Fence, Transition
from taskframework.stores.base import TaskStore
from taskframework.stores.replies import Inserted
from taskframework.testing.conformance.comparison import differences
from taskframework.testing.conformance.store_suite import (
    HOUR,
    MINUTE,
    SECOND,
    StoreSuite,
    insert_one,
    make_claim,
    make_error,
    put,
    put_running,
    read_task,
)
from taskframework.testing.factories import new_task

Interference = Callable[[TaskStore, Fence], Awaitable[object]]

#: Things that may happen to a running task between its claim and its end.
INTERFERENCES: dict[str, Interference] = {
    "nothing": lambda store, fence: asyncio.sleep(0),
    "cancel": lambda store, fence: store.apply(Cancel(fence.task_id, EVERYONE, "alice", None)),
    "progress": lambda store, fence: store.apply(ReportProgress(fence, {"percent": 50})),
    "step": lambda store, fence: store.apply(RecordStep(fence, "charge", 7)),
    "mark": lambda store, fence: store.mark(MarkPublished(fence.task_id, 1)),
    "heartbeat": lambda store, fence: store.renew([fence], 2 * HOUR),
}


class GroupCases(StoreSuite):
    """Calls that are written together have the same effects as calls alone."""

    async def test_two_hundred_tasks_are_executed_at_once(self, store: TaskStore) -> None:
        async def run_life(n: int) -> str:
            task = (
                await insert_one(store, new_task(now=store.now(), not_before=store.now() - SECOND, parameters=n))
            ).task
            await store.mark(MarkDispatched(task.task_id, 1, 20 * SECOND, MINUTE))
            claim = make_claim(task)
            running = await store.apply(claim)
            assert running is not None
            assert running.parameters == n
            fence = Fence(task.task_id, running.fencing_token, claim.claim_id)
            await store.apply(ReportProgress(fence, n))
            assert fence in await store.renew([fence], HOUR)
            ended = await store.apply(
                Complete(fence, "worker-1", n) if n % 2 else Fail(fence, "worker-1", make_error(), n % 4 == 0, HOUR)
            )
            assert ended is not None
            await store.mark(MarkPublished(task.task_id, ended.sequence))
            return task.task_id

        task_ids = await asyncio.gather(*(run_life(n) for n in range(200)))

        for n, task_id in enumerate(task_ids):
            task = await read_task(store, task_id)
            wanted = TaskStatus.COMPLETED if n % 2 else TaskStatus.FAILED if n % 4 else TaskStatus.RETRYING
            assert (task.status, task.progress, task.parameters) == (wanted, n, n)
            assert [entry.sequence for entry in task.history] == [1, 2, 3]
            assert (task.published_sequence, task.publish_at) == (3, None)
        assert await store.undriven(10) == []

    async def test_a_caller_that_goes_away_hurts_nobody(self, store: TaskStore) -> None:
        tasks = [new_task(now=store.now()) for _ in range(30)]
        calls = [asyncio.create_task(insert_one(store, task)) for task in tasks]
        await asyncio.sleep(0)
        for call in calls[::3]:
            call.cancel()
        results = await asyncio.gather(*calls, return_exceptions=True)
        stayed = [result for result in results if not isinstance(result, BaseException)]
        assert len(stayed) == 20
        assert all([await store.get(inserted.task.task_id, EVERYONE) for inserted in stayed])

    async def test_moves_and_marks_of_one_task_at_once(self, store: TaskStore) -> None:
        task, fence = await put_running(store)
        other = await put(store)
        await asyncio.gather(
            *(store.apply(ReportProgress(fence, n)) for n in range(20)),
            *(store.mark(MarkPublished(task.task_id, 1)) for _ in range(5)),
            store.apply(Cancel(task.task_id, EVERYONE, "alice", None)),
            *(store.apply(make_claim(other)) for _ in range(5)),
            store.renew([fence], HOUR),
        )
        after = await read_task(store, task.task_id)
        assert after.progress_revision == 20
        assert (after.sequence, after.published_sequence) == (2, 1)
        assert (await read_task(store, other.task_id)).fencing_token == 1

    async def test_a_known_task_and_a_mark_at_once(self, store: TaskStore) -> None:
        task = await put(store, parameters={"n": 1})
        *_, inserted = await asyncio.gather(
            *(store.mark(MarkPublished(task.task_id, 1)) for _ in range(3)),
            insert_one(store, new_task(now=store.now())),
            store.mark(MarkDispatched(task.task_id, 1, SECOND, MINUTE)),
            insert_one(store, new_task(now=store.now(), task_id=task.task_id, parameters={"n": 2})),
        )
        assert isinstance(inserted, Inserted)
        assert (inserted.is_new, inserted.task.task_id, inserted.task.parameters) == (False, task.task_id, {"n": 1})

    @pytest.mark.parametrize("meanwhile", INTERFERENCES.values(), ids=INTERFERENCES.keys())
    @pytest.mark.parametrize("is_all", [True, False], ids=["all", "some"])
    async def test_ends_at_once_reply_what_is_stored(
        self, store: TaskStore, meanwhile: Interference, is_all: bool
    ) -> None:
        claims = [make_claim(await put(store, parameters=n)) for n in range(20)]
        running = await asyncio.gather(*(store.apply(claim) for claim in claims))
        fences = [Fence(claim.task_id, 1, claim.claim_id) for claim in claims]
        for fence in fences if is_all else fences[::5]:
            await meanwhile(store, fence)

        ended = await asyncio.gather(*(store.apply(_end(fence, n)) for n, fence in enumerate(fences)))

        for n, (before, after) in enumerate(zip(running, ended, strict=True)):
            assert before is not None
            assert after is not None
            assert differences(after, await read_task(store, before.task_id), timedelta(0)) == []
            assert after.parameters == n
            assert [entry.sequence for entry in after.history] == list(range(1, after.sequence + 1))

    async def test_each_concurrent_caller_gets_the_reply_to_its_own_call(self, store: TaskStore) -> None:
        running = [await put_running(store, parameters=n) for n in range(40)]
        stale = {task.task_id for task, _ in running[::4]}
        outcomes = [
            Complete(Fence(task.task_id, 9 if task.task_id in stale else 1, fence.claim_id), "worker-1", task.task_id)
            for task, fence in running
        ]

        replies = await asyncio.gather(*(store.apply(outcome) for outcome in outcomes))

        for (task, _), reply in zip(running, replies, strict=True):
            if task.task_id in stale:
                assert reply is None
            else:
                assert reply is not None
                assert (reply.task_id, reply.result, reply.parameters) == (task.task_id, task.task_id, task.parameters)


def _end(fence: Fence, n: int) -> Transition:
    match n % 4:
        case 0:
            return Fail(fence, "worker-1", make_error(), True, HOUR)
        case 1:
            return Fail(fence, "worker-1", make_error(), False, timedelta(0))
        case _:
            return Complete(fence, "worker-1", {"n": n})
