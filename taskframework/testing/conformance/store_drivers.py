"""Store suite: the tasks that repairs find, metrics count and retention removes."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import pytest

from taskframework import failpoint
from taskframework.model.attempts import Complete
from taskframework.model.drivers import DEADLINE, DISPATCH, LEASE, OUTBOX, Driver
from taskframework.model.idempotency import IDEMPOTENCY, IdempotencyKey, key_id
from taskframework.model.interventions import Cancel, Expire
from taskframework.model.marks import MarkPublished, ReserveDispatch
from taskframework.model.query import DeadMessage
from taskframework.model.scope import EVERYONE, Scope
from taskframework.model.status import AT_REST, CLAIMABLE, FINAL, LIVE, Priority, TaskStatus
from taskframework.model.task import Task
from taskframework.stores.base import TaskStore
from taskframework.stores.replies import DueTask
from taskframework.testing.conformance.store_suite import (
    HOUR,
    MINUTE,
    SECOND,
    StoreSuite,
    claim_task,
    expect_refusal,
    make_mark,
    make_move,
    put,
    put_final,
    put_running,
    read_task,
)

NO_TIME = timedelta(0)
#: Fields of a task with one event, which is published.
PUBLISHED: dict[str, Any] = {"publish_at": None, "published_sequence": 1}


def _due_at(task: Task) -> datetime:
    assert task.next_dispatch_at is not None
    return task.next_dispatch_at


async def _due(store: TaskStore, driver: Driver, grace: timedelta = NO_TIME) -> list[str]:
    return [task.task_id for task in await store.due(driver, 20, grace)]


def _reservation(task: Task | DueTask) -> ReserveDispatch:
    return ReserveDispatch(task.task_id, task.dispatch_epoch, MINUTE, HOUR)


class SweepCases(StoreSuite):
    """The tasks that the sweeper and the reaper find."""

    async def test_the_longest_due_is_dispatched_first(self, store: TaskStore) -> None:
        now = store.now()
        high = await put(store, next_dispatch_at=now - 2 * SECOND, priority="high")
        low = await put(store, next_dispatch_at=now - 3 * SECOND, priority="low")
        other = await put(store, next_dispatch_at=now - SECOND, priority="of-a-newer-release")
        await put(store, next_dispatch_at=now + MINUTE)
        lanes = ((low, Priority.LOW), (high, Priority.HIGH), (other, Priority.NORMAL))
        wanted = [
            DueTask(task.task_id, "test-task", lane, task.status, 1, 0, 0, 0, task.not_before, _due_at(task))
            for task, lane in lanes
        ]
        assert list(await store.due(DISPATCH, 10)) == wanted
        assert list(await store.due(DISPATCH, 2)) == wanted[:2]

    async def test_a_delayed_task_is_due_at_its_own_time(self, store: TaskStore) -> None:
        await put(store, next_dispatch_at=store.now() - SECOND, not_before=store.now() + MINUTE)
        assert list(await store.due(DISPATCH, 10)) == []

    @pytest.mark.parametrize("driver", [DISPATCH, OUTBOX], ids=lambda driver: driver.name)
    async def test_a_task_becomes_due(self, store: TaskStore, driver: Driver) -> None:
        task = await put(store, **{driver.field: store.now() + timedelta(seconds=0.2)})
        await self.pass_time(0.3)
        assert await _due(store, driver) == [task.task_id]

    async def test_a_task_that_does_not_wait_is_not_dispatched(self, store: TaskStore) -> None:
        for status in set(TaskStatus) - CLAIMABLE:
            await put(store, status=status, next_dispatch_at=None)
        await claim_task(store, await put(store))
        assert list(await store.due(DISPATCH, 10)) == []

    async def test_due_tasks_tell_how_often_and_when_they_were_dispatched(self, store: TaskStore) -> None:
        task = await put(store, next_dispatch_at=store.now() - SECOND, dispatches=3)
        (due,) = await store.due(DISPATCH, 10)
        assert (due.dispatches, due.due) == (3, _due_at(task))
        assert _reservation(due).dispatched_at(due.due, due.dispatches) == _due_at(task) - 4 * MINUTE

    async def test_due_tasks_are_reserved_together_and_once(self, store: TaskStore) -> None:
        due = [await put(store, next_dispatch_at=store.now() - SECOND) for _ in range(3)]
        early = await put(store, next_dispatch_at=store.now() + MINUTE)
        running, _ = await put_running(store)
        reservations = [_reservation(task) for task in (*due, early, running)]
        unknown = ReserveDispatch("unknown", 1, MINUTE, HOUR)
        replies = await asyncio.gather(*(store.apply(reservation) for reservation in (*reservations, unknown)))
        assert [reply and reply.task_id for reply in replies] == [*(task.task_id for task in due), None, None, None]
        for task in due:
            after = await read_task(store, task.task_id)
            assert after.dispatches == 1
            assert _due_at(after) > store.now() + 50 * SECOND
        assert await read_task(store, early.task_id) == early
        assert await asyncio.gather(*(store.apply(_reservation(task)) for task in due)) == [None] * 3

    async def test_reservations_of_one_moment_are_one_write(self, store: TaskStore) -> None:
        """A look of the sweeper takes hundreds of tasks; with one write for each there would be as many round trips."""
        due = [await put(store, next_dispatch_at=store.now() - SECOND) for _ in range(40)]
        writes: list[str] = []

        async def note() -> None:
            writes.append("reserve")

        failpoint.arm("reserve.reply", note)
        try:
            replies = await asyncio.gather(*(store.apply(_reservation(task)) for task in due))
        finally:
            failpoint.disarm("reserve.reply")
        assert all(replies)
        assert len(writes) <= 2

    async def test_the_youngest_running_task_of_a_queue_is_known(self, store: TaskStore) -> None:
        now = store.now()
        assert await store.newest_running("test-task", Priority.NORMAL) is None
        await put_running(store, now=now - HOUR, not_before=now - HOUR)
        retried, _ = await put_running(store, now=now - MINUTE, not_before=now - SECOND)
        high, _ = await put_running(store, priority="high", now=now, not_before=now - 2 * SECOND)
        other, _ = await put_running(store, task_type="other", priority="of-a-newer-release", not_before=now)
        await put(store, not_before=now)
        await put_final(store, TaskStatus.COMPLETED, not_before=now)
        found = {lane: await store.newest_running("test-task", lane) for lane in Priority}
        assert found == {Priority.HIGH: high.not_before, Priority.NORMAL: retried.not_before, Priority.LOW: None}
        assert await store.newest_running("other", Priority.NORMAL) == other.not_before

    async def test_expired_leases_are_found(self, store: TaskStore) -> None:
        dead, _ = await put_running(store, lease=-MINUTE, fencing_token=4, crashes=2)
        older, _ = await put_running(store, lease=-2 * MINUTE)
        young, _ = await put_running(store, lease=MINUTE)
        found = [(lease.task_id, lease.fencing_token, lease.crashes) for lease in await store.due(LEASE, 10)]
        assert found == [(older.task_id, 1, 0), (dead.task_id, 4, 2)]
        assert await _due(store, LEASE, 90 * SECOND) == [older.task_id]
        assert await _due(store, LEASE, -HOUR) == [older.task_id, dead.task_id, young.task_id]
        assert len(await store.due(LEASE, 1)) == 1

    async def test_a_lease_that_is_given_up_or_renewed_is_not_expired(self, store: TaskStore) -> None:
        (_, settled), (_, renewed) = await put_running(store, lease=-MINUTE), await put_running(store, lease=-MINUTE)
        await make_move(store, Complete(settled, "worker-1", None))
        await store.renew([renewed], HOUR)
        assert await _due(store, LEASE) == []

    async def test_passed_deadlines_are_found(self, store: TaskStore) -> None:
        past = store.now() - MINUTE
        live = {(await put(store, status=status, deadline=past)).task_id for status in AT_REST}
        running, _ = await put_running(store, deadline=past)
        cancelled, _ = await put_running(store, deadline=past)
        await make_move(store, Cancel(cancelled.task_id, EVERYONE, "alice", None))
        for status in FINAL:
            await put_final(store, status, deadline=past)
        await put(store, deadline=store.now() + MINUTE)
        await put(store)

        assert set(await _due(store, DEADLINE)) == live | {running.task_id}
        assert len(await store.due(DEADLINE, 2)) == 2

    async def test_an_expired_task_is_found_once(self, store: TaskStore) -> None:
        past = store.now() - MINUTE
        for task in [await put(store, deadline=past), (await put_running(store, deadline=past))[0]]:
            await make_move(store, Expire(task.task_id))
            await expect_refusal(store, Expire(task.task_id))
        assert list(await store.due(DEADLINE, 20)) == []


class CountCases(StoreSuite):
    """The counts of the metrics."""

    async def test_tasks_are_counted_by_status(self, store: TaskStore) -> None:
        assert await store.count_by_status() == dict.fromkeys(TaskStatus, 0)
        for n, status in enumerate(TaskStatus):
            for _ in range(n % 3):
                await put(store, status=status)
        assert await store.count_by_status() == {status: n % 3 for n, status in enumerate(TaskStatus)}

    async def test_every_healthy_task_is_driven(self, store: TaskStore) -> None:
        task = await put(store)
        await put(store, status=TaskStatus.RETRYING)
        await put_running(store)
        for status in FINAL:
            await put_final(store, status)
        await make_mark(store, MarkPublished(task.task_id, 1))
        assert await store.undriven(10) == []

    async def test_a_task_that_waits_runs_or_has_events_and_no_time_for_it_is_undriven(self, store: TaskStore) -> None:
        await put_running(store)
        undriven = {(await put(store, status=status, next_dispatch_at=None)).task_id for status in CLAIMABLE}
        undriven.add((await put(store, status=TaskStatus.RUNNING, next_dispatch_at=None)).task_id)
        undriven.add((await put(store, publish_at=None)).task_id)
        assert set(await store.undriven(10)) == undriven
        assert len(await store.undriven(1)) == 1

    async def test_a_move_can_drive_a_task_again(self, store: TaskStore) -> None:
        task = await put(store, next_dispatch_at=None)
        await make_move(store, Cancel(task.task_id, EVERYONE, "alice", None))
        assert await store.undriven(10) == []


class PurgeCases(StoreSuite):
    """The tasks that retention removes."""

    async def test_each_kind_of_ended_task_is_removed_after_its_time(self, store: TaskStore) -> None:
        kept = await self._tasks_of_every_status(store, age=SECOND)
        old = await self._tasks_of_every_status(store, age=HOUR)

        assert await store.purge(finished=None, dead_letters=None, limit=100) == 0
        assert await store.purge(finished=MINUTE, dead_letters=None, limit=100) == 3
        assert Counter(await self._remaining_statuses(store, old)) == Counter(
            set(LIVE) | {TaskStatus.FAILED, TaskStatus.DEAD_LETTER}
        )
        assert await store.purge(finished=None, dead_letters=MINUTE, limit=100) == 2
        assert set(await self._remaining_statuses(store, old)) == LIVE
        assert len(await self._remaining_statuses(store, kept)) == len(TaskStatus)

    async def test_a_task_that_has_a_time_of_its_own_goes_by_that(self, store: TaskStore) -> None:
        now, ids = store.now(), {}
        for name, status, ended, purge_at in (
            ("early", TaskStatus.COMPLETED, SECOND, now - SECOND),
            ("early and dead", TaskStatus.DEAD_LETTER, SECOND, now - SECOND),
            ("late", TaskStatus.COMPLETED, HOUR, now + HOUR),
            ("late and dead", TaskStatus.FAILED, HOUR, now + HOUR),
        ):
            ends = {**PUBLISHED, "finished_at": now - ended, "purge_at": purge_at}
            ids[name] = (await put_final(store, status, **ends)).task_id
        unpublished = await put_final(store, TaskStatus.COMPLETED, finished_at=now - HOUR, purge_at=now - HOUR)
        live = await put(store, purge_at=now - HOUR)
        assert await store.purge(finished=MINUTE, dead_letters=MINUTE, limit=100) == 2
        assert await store.purge(finished=MINUTE, dead_letters=MINUTE, limit=100) == 0
        left = {name for name, task_id in ids.items() if await store.get(task_id, EVERYONE) is not None}
        assert left == {"late", "late and dead"}
        for task in (unpublished, live):
            assert await store.get(task.task_id, EVERYONE) is not None

    async def test_a_task_with_unpublished_events_stays(self, store: TaskStore) -> None:
        task = await put_final(store, TaskStatus.COMPLETED, finished_at=store.now() - HOUR)
        assert await store.purge(finished=MINUTE, dead_letters=MINUTE, limit=100) == 0
        await make_mark(store, MarkPublished(task.task_id, 1))
        assert await store.purge(finished=MINUTE, dead_letters=MINUTE, limit=100) == 1

    @pytest.mark.parametrize(("limit", "removed"), [(3, [3, 3, 2, 0]), (4, [4, 4, 0]), (7, [7, 1, 0])])
    async def test_the_limit_holds_over_all_kinds(self, store: TaskStore, limit: int, removed: list[int]) -> None:
        await self._tasks_of_every_status(store, age=HOUR)
        for n in range(3):
            await store.keep_dead_message(DeadMessage(f"m-{n}", b"", {}, "q", "r", store.now() - HOUR))
        await store.keep_dead_message(DeadMessage("young", b"", {}, "q", "r", store.now()))
        counts = [await store.purge(finished=MINUTE, dead_letters=MINUTE, limit=limit) for _ in removed]
        assert counts == removed
        assert await store.get_dead_message("young") is not None

    async def test_the_key_of_a_task_goes_before_it(self, store: TaskStore) -> None:
        ended = {**PUBLISHED, "finished_at": store.now() - HOUR}
        old = await put_final(store, TaskStatus.COMPLETED, idempotency_key="old", **ended)
        moved_on = await put_final(store, TaskStatus.COMPLETED, idempotency_key="moved-on", **ended)
        young = await put_final(store, TaskStatus.COMPLETED, idempotency_key="young", **PUBLISHED)
        for key, task_id in (("old", old.task_id), ("moved-on", "a newer one"), ("young", young.task_id)):
            await store.write_records([IDEMPOTENCY.new("alice", key, content=IdempotencyKey(task_id, "hash"))])

        assert await store.purge(finished=MINUTE, dead_letters=None, limit=10) == 2

        assert await store.get(moved_on.task_id, EVERYONE) is None
        left = await store.read_records([key_id("alice", key) for key in ("old", "moved-on", "young")])
        assert left.keys() == {key_id("alice", "moved-on"), key_id("alice", "young")}

    async def test_tasks_are_read_together(self, store: TaskStore) -> None:
        tasks = [await put(store, user_id=user) for user in ("alice", "bob")]
        ids = [*(task.task_id for task in tasks), "unknown"]
        expected = {task.task_id: await read_task(store, task.task_id) for task in tasks}
        assert await store.get_many(ids, EVERYONE) == expected
        assert await store.get_many(ids, Scope.of("bob")) == {tasks[1].task_id: expected[tasks[1].task_id]}
        assert await store.get_many([], EVERYONE) == {}

    async def test_the_end_times_of_several_tasks_are_read_together(self, store: TaskStore) -> None:
        live, ended = await put(store), await put_final(store, TaskStatus.FAILED)
        found = await store.finished_at([live.task_id, ended.task_id, "unknown"])
        assert found == {live.task_id: None, ended.task_id: ended.finished_at}
        assert await store.finished_at([]) == {}

    async def _tasks_of_every_status(self, store: TaskStore, *, age: timedelta) -> list[str]:
        ended = {**PUBLISHED, "finished_at": store.now() - age}
        return [(await put(store, status=status, **ended)).task_id for status in TaskStatus]

    async def _remaining_statuses(self, store: TaskStore, task_ids: list[str]) -> list[TaskStatus]:
        tasks = [await store.get(task_id, EVERYONE) for task_id in task_ids]
        return [task.status for task in tasks if task is not None]
