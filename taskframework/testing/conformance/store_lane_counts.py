"""Store suite: tasks counted by type and lane, up to a bound."""

from __future__ import annotations

from taskframework.model.status import Priority, TaskStatus
from taskframework.model.traffic import CountedTasks, LaneCounts
from taskframework.stores.base import TaskStore
from taskframework.testing.conformance.store_suite import (
    HOUR,
    MINUTE,
    SECOND,
    StoreSuite,
    put,
    put_final,
    put_running,
)


def _counts(counts: LaneCounts) -> dict[tuple[str, str], tuple[int, int]]:
    return {(it.task_type, it.lane.value): (it.count, it.due) for it in counts.counted}


class LaneCountCases(StoreSuite):
    """The promises of `count_lanes`."""

    async def test_tasks_of_each_group_are_counted_by_type_and_lane(self, store: TaskStore) -> None:
        now = store.now()
        for n in range(3):
            await put(store, task_type="a", not_before=now - n * MINUTE - SECOND)
        await put(store, task_type="a", status=TaskStatus.RETRYING, priority="high", not_before=now + HOUR)
        await put(store, task_type="b", priority="unheard-of")
        await put_running(store, task_type="b", priority="low")
        for status in (TaskStatus.COMPLETED, TaskStatus.CANCELLED, TaskStatus.FAILED, TaskStatus.DEAD_LETTER):
            await put_final(store, status, task_type="c")

        waiting = await store.count_lanes(CountedTasks.WAITING, 100, due_before=now)
        assert _counts(waiting) == {("a", "normal"): (3, 3), ("a", "high"): (1, 0), ("b", "normal"): (1, 1)}
        assert not waiting.is_bounded
        oldest = {it.task_type: it.claimable_since for it in waiting.counted if it.lane is Priority.NORMAL}
        assert oldest["a"] == now - 2 * MINUTE - SECOND
        assert waiting.due == 4
        running = await store.count_lanes(CountedTasks.RUNNING, 100, due_before=now)
        assert _counts(running) == {("b", "low"): (1, 1)}
        assert _counts(await store.count_lanes(CountedTasks.RETRYING, 100, due_before=now)) == {("a", "high"): (1, 0)}
        assert _counts(await store.count_lanes(CountedTasks.DONE, 100, due_before=now)) == {("c", "normal"): (2, 2)}
        assert _counts(await store.count_lanes(CountedTasks.DEAD, 100, due_before=now)) == {("c", "normal"): (2, 2)}
        submitted = await store.count_lanes(CountedTasks.SUBMITTED, 100, due_before=now)
        assert sum(it.count for it in submitted.counted) == 10

    async def test_no_more_tasks_than_the_bound_are_counted(self, store: TaskStore) -> None:
        now = store.now()
        for n in range(4):
            await put(store, task_type="old", created_at=now - HOUR - n * SECOND)
            await put(store, task_type="new", status=TaskStatus.RETRYING, created_at=now - n * SECOND)
        waiting = await store.count_lanes(CountedTasks.WAITING, 5, due_before=now)
        assert ({it.task_type: it.count for it in waiting.counted}, waiting.is_bounded) == ({"old": 4, "new": 1}, True)
        submitted = await store.count_lanes(CountedTasks.SUBMITTED, 5, due_before=now)
        assert {it.task_type: it.count for it in submitted.counted} == {"new": 4, "old": 1}
        assert {it.first_at for it in submitted.counted} == {now - 3 * SECOND, now - HOUR}

    async def test_a_full_lane_hides_nothing_of_another(self, store: TaskStore) -> None:
        now = store.now()
        for n in range(4):
            await put(store, task_type="full", created_at=now - HOUR - n * SECOND, not_before=now - HOUR)
        await put(store, task_type="full", priority="high", not_before=now - MINUTE)
        await put(store, task_type="few", not_before=now + HOUR)
        await put(store, task_type="few", status=TaskStatus.RETRYING, not_before=now - 2 * MINUTE)
        await put(store, task_type="few", status=TaskStatus.RETRYING, not_before=now + HOUR)
        await put_running(store, task_type="few")

        async def count(selection: CountedTasks, task_type: str, lane: Priority, most: int = 3) -> LaneCounts:
            return await store.count_lanes(selection, most, due_before=now, queue=(task_type, lane))

        full = await count(CountedTasks.WAITING, "full", Priority.NORMAL)
        assert (_counts(full), full.is_due_bounded) == ({("full", "normal"): (3, 3)}, True)
        high = await count(CountedTasks.WAITING, "full", Priority.HIGH)
        assert (_counts(high), high.is_bounded) == ({("full", "high"): (1, 1)}, False)
        few = await count(CountedTasks.WAITING, "few", Priority.NORMAL)
        assert (_counts(few), few.is_bounded) == ({("few", "normal"): (3, 1)}, True)
        assert not few.is_due_bounded, "what is due comes first, so all of it was counted"
        assert few.counted[0].claimable_since == now - 2 * MINUTE
        retrying = await count(CountedTasks.RETRYING, "few", Priority.NORMAL)
        assert (_counts(retrying), retrying.is_bounded) == ({("few", "normal"): (2, 1)}, False)
        assert await count(CountedTasks.WAITING, "few", Priority.LOW) == LaneCounts()

    async def test_only_tasks_since_a_time_are_counted(self, store: TaskStore) -> None:
        now = store.now()
        for status, selection in ((TaskStatus.COMPLETED, CountedTasks.DONE), (TaskStatus.FAILED, CountedTasks.DEAD)):
            for age in (SECOND, MINUTE, HOUR):
                await put_final(store, status, created_at=now - age, finished_at=now - age)
            ended = await store.count_lanes(selection, 100, due_before=now, since=now - MINUTE)
            assert [it.count for it in ended.counted] == [2]
        submitted = await store.count_lanes(CountedTasks.SUBMITTED, 100, due_before=now, since=now - MINUTE)
        assert [it.count for it in submitted.counted] == [4]

    async def test_an_empty_store_has_no_counts(self, store: TaskStore) -> None:
        for selection in CountedTasks:
            assert await store.count_lanes(selection, 1, due_before=store.now()) == LaneCounts()
