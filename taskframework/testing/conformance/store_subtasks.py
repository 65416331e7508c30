"""Store suite: the counts and lists of the sub-tasks of a task, and how long sub-tasks stay."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from taskframework.model.attempts import Fail
from taskframework.model.interventions import Cancel, Replay
from taskframework.model.marks import MarkPublished
from taskframework.model.query import RoundOfSubtasks
from taskframework.model.scope import EVERYONE
from taskframework.model.status import FINAL, LIVE, TaskStatus
from taskframework.model.subtasks import ALLOW_FAILURES, Counts, subtask_id
from taskframework.model.task import Task
from taskframework.model.task_fields import ParentLink, Subtasks
from taskframework.model.waiting import CountSubtasks, Reopen
from taskframework.stores.base import TaskStore
from taskframework.testing.conformance.store_suite import (
    HOUR,
    MINUTE,
    SECOND,
    StoreSuite,
    claim_task,
    make_error,
    make_mark,
    make_move,
    put,
    read_task,
)

NO_TIME = timedelta(0)
_ROUND = RoundOfSubtasks("parent", 2, 3)


async def _put_subtask(
    store: TaskStore, slot: int, status: TaskStatus, round: RoundOfSubtasks = _ROUND, **overrides: Any
) -> Task:
    parent = ParentLink(round.parent_id, round.generation, slot, round.round)
    return await put(store, parent=parent, status=status, **overrides)


class SubtaskCases(StoreSuite):
    """The promises of `count_subtasks` and `list_subtasks`."""

    async def test_the_subtasks_of_one_round_are_counted_by_status(self, store: TaskStore) -> None:
        statuses = [status for n, status in enumerate(TaskStatus) for _ in range(n % 3)]
        await asyncio.gather(*(_put_subtask(store, slot, status) for slot, status in enumerate(statuses)))
        for other in (RoundOfSubtasks("parent", 2, 4), RoundOfSubtasks("parent", 1, 3), RoundOfSubtasks("other", 2, 3)):
            await _put_subtask(store, 0, TaskStatus.QUEUED, other)
        await put(store)
        assert await store.count_subtasks(_ROUND) == Counter(statuses)
        assert await store.count_subtasks(RoundOfSubtasks("parent", 2, 4)) == {TaskStatus.QUEUED: 1}
        assert await store.count_subtasks(RoundOfSubtasks("parent", 0, 1)) == {}

    async def test_a_count_follows_the_subtasks(self, store: TaskStore) -> None:
        failed = await _put_subtask(store, 0, TaskStatus.FAILED)
        await make_move(store, Replay(failed.task_id, EVERYONE, "operator", HOUR))
        assert await store.count_subtasks(_ROUND) == {TaskStatus.QUEUED: 1}

    async def test_subtasks_are_listed_in_slot_order(self, store: TaskStore) -> None:
        statuses = {slot: list(TaskStatus)[slot % len(TaskStatus)] for slot in range(25)}
        for slot in sorted(statuses, key=lambda slot: slot % 7):
            await _put_subtask(store, slot, statuses[slot])
        await _put_subtask(store, 3, TaskStatus.QUEUED, RoundOfSubtasks("parent", 2, 4))

        async def slots(**options: Any) -> list[int]:
            found = await store.list_subtasks(_ROUND, **options)
            return [task.parent.slot for task in found if task.parent is not None]

        assert await slots(limit=100) == list(range(25))
        assert await slots(limit=4) == [0, 1, 2, 3]
        assert await slots(limit=4, after_slot=3) == [4, 5, 6, 7]
        live = [slot for slot, status in statuses.items() if status in LIVE]
        assert await slots(limit=100, statuses=LIVE) == live
        assert await slots(limit=3, after_slot=live[2], statuses=LIVE) == live[3:6]
        assert await slots(limit=9, statuses=[TaskStatus.FAILED]) == [
            slot for slot in statuses if statuses[slot] is TaskStatus.FAILED
        ]
        assert await slots(limit=9, after_slot=24) == []

    async def test_a_list_has_every_subtask_while_their_statuses_change(self, store: TaskStore) -> None:
        names = [subtask_id(_ROUND.parent_id, _ROUND.generation, _ROUND.round, slot) for slot in range(400)]
        await asyncio.gather(
            *(_put_subtask(store, slot, TaskStatus.QUEUED, task_id=name) for slot, name in enumerate(names))
        )

        async def change(names: Sequence[str]) -> None:
            for name in names:
                await store.apply(Cancel(name, EVERYONE, "operator", None))
                await store.apply(Replay(name, EVERYONE, "operator", HOUR))

        changing = asyncio.gather(*(change(names[first::8]) for first in range(8)))
        while not changing.done():
            found = await store.list_subtasks(_ROUND, limit=400)
            assert [task.parent.slot for task in found if task.parent is not None] == list(range(400))
        await changing


class FamilyPurgeCases(StoreSuite):
    """A family stays until each of its tasks is due for removal; then a parent is removed after its sub-tasks."""

    @pytest.mark.parametrize("status", sorted(TaskStatus))
    async def test_a_subtask_of_a_parent_that_is_there_and_live_stays(
        self, store: TaskStore, status: TaskStatus
    ) -> None:
        parent = await put(store, status=status, **_end_fields(store, HOUR if status in FINAL else None))
        old = [await _put_old(store, parent.task_id, slot, status) for slot, status in enumerate(sorted(FINAL))]
        removed = await store.purge(finished=MINUTE, dead_letters=MINUTE, limit=100)
        if status in LIVE:
            assert removed == 0
        else:
            removed += await store.purge(finished=MINUTE, dead_letters=MINUTE, limit=100)
            assert removed == len(old) + 1

    async def test_subtasks_stay_while_their_parent_is_not_due(self, store: TaskStore) -> None:
        young = await put(store, status=TaskStatus.COMPLETED, **_end_fields(store, SECOND))
        kept_longer = await put(store, status=TaskStatus.FAILED, **_end_fields(store, 2 * MINUTE))
        for parent in (young, kept_longer):
            await _put_old(store, parent.task_id, 0, TaskStatus.COMPLETED)
        assert await store.purge(finished=MINUTE, dead_letters=10 * MINUTE, limit=100) == 0
        assert await store.purge(finished=MINUTE, dead_letters=None, limit=100) == 0
        assert await _purge_three_times(store, finished=MINUTE, dead_letters=MINUTE) == 2, (
            "the failed parent and its sub-task"
        )
        assert await store.get(young.task_id, EVERYONE) is not None

    async def test_a_parent_stays_while_it_has_subtasks(self, store: TaskStore) -> None:
        parent = await put(store, status=TaskStatus.COMPLETED, **_end_fields(store, HOUR), **_PLANNED_FIELDS)
        dead = await _put_old(store, parent.task_id, 0, TaskStatus.DEAD_LETTER)
        live = await _put_subtask(store, 1, TaskStatus.QUEUED, RoundOfSubtasks(parent.task_id, 0, 1))
        assert await _purge_three_times(store, finished=MINUTE, dead_letters=None) == 0
        assert await _purge_three_times(store, finished=MINUTE, dead_letters=MINUTE) == 0
        assert None not in [await store.get(task.task_id, EVERYONE) for task in (parent, dead, live)]

    async def test_a_task_that_is_kept_for_longer_keeps_its_whole_tree(self, store: TaskStore) -> None:
        failed, own_time = await _put_tree(store, TaskStatus.FAILED), await _put_tree(store, TaskStatus.COMPLETED)
        longest = own_time[-1]
        await put(
            store, status=longest.status, **_end_fields(store, HOUR), purge_at=store.now() + HOUR, parent=longest.parent
        )
        over = await _put_tree(store, TaskStatus.COMPLETED)
        assert await _purge_three_times(store, finished=MINUTE, dead_letters=None) == len(over)
        for task in (*failed, *own_time):
            assert await store.get(task.task_id, EVERYONE) is not None, "its family stays"
        assert await _purge_three_times(store, finished=MINUTE, dead_letters=MINUTE) == len(failed)

    async def test_a_grandparent_that_stays_keeps_all_below(self, store: TaskStore) -> None:
        top = await put(store, status=TaskStatus.COMPLETED, **_end_fields(store, SECOND), **_PLANNED_FIELDS)
        old: dict[str, Any] = {"status": TaskStatus.COMPLETED, **_end_fields(store, HOUR)}
        middle = await put(store, **old, **_PLANNED_FIELDS, parent=ParentLink(top.task_id, 0, 0))
        await put(store, **old, parent=ParentLink(middle.task_id, 0, 0))
        assert await _purge_three_times(store, finished=MINUTE, dead_letters=MINUTE) == 0
        assert await _purge_three_times(store, finished=timedelta(0), dead_letters=MINUTE) == 3

    async def test_a_family_that_was_over_and_began_again_stays(self, store: TaskStore) -> None:
        old: dict[str, Any] = {"status": TaskStatus.COMPLETED, **_end_fields(store, HOUR)}
        top = await put(store, **old, **_PLANNED_FIELDS)
        first, second = [
            await put(
                store, **old, subtasks=Subtasks(2, None, policy=ALLOW_FAILURES), parent=ParentLink(top.task_id, 0, slot)
            )
            for slot in range(2)
        ]
        await _put_old(store, first.task_id, 0, TaskStatus.COMPLETED)
        failed = await _put_old(store, first.task_id, 1, TaskStatus.FAILED)
        live = await _put_subtask(store, 0, TaskStatus.QUEUED, RoundOfSubtasks(second.task_id, 0, 1))
        assert await _purge_three_times(store, finished=NO_TIME, dead_letters=MINUTE) == 0

        waiting = await make_move(store, Reopen(first.task_id, EVERYONE, "operator"))
        await make_move(store, Replay(failed.task_id, EVERYONE, "operator", NO_TIME))
        _, fence = await claim_task(store, await read_task(store, failed.task_id))
        ends = [
            await make_move(store, Fail(fence, "worker-1", make_error(), False, NO_TIME)),
            await make_move(store, CountSubtasks.of(waiting, Counts(succeeded=1, failed=1))),
            await make_move(store, Cancel(live.task_id, EVERYONE, "operator", None)),
        ]
        for ended in ends:
            await make_mark(store, MarkPublished(ended.task_id, ended.sequence))
        assert await _purge_three_times(store, finished=NO_TIME, dead_letters=MINUTE) == 0

    async def test_a_parent_that_was_replayed_stays_while_it_has_subtasks_from_before(self, store: TaskStore) -> None:
        old: dict[str, Any] = {"status": TaskStatus.COMPLETED, **_end_fields(store, HOUR)}
        top = await put(store, **old, **_PLANNED_FIELDS)
        replayed = await put(store, **old, generation=1, parent=ParentLink(top.task_id, 0, 0))
        await _put_old(store, top.task_id, 1, TaskStatus.COMPLETED)
        await _put_old(store, replayed.task_id, 0, TaskStatus.FAILED)
        alone = await put(store, **old, generation=1)
        await _put_old(store, alone.task_id, 0, TaskStatus.FAILED)
        assert await _purge_three_times(store, finished=MINUTE, dead_letters=None) == 0
        assert await _purge_three_times(store, finished=MINUTE, dead_letters=MINUTE) == 6

    async def test_a_subtask_whose_parent_is_gone_goes_by_itself(self, store: TaskStore) -> None:
        await _put_old(store, "gone", 0, TaskStatus.COMPLETED)
        assert await store.purge(finished=MINUTE, dead_letters=None, limit=100) == 1

    async def test_a_subtask_with_a_time_of_its_own_stays_as_long_as_its_parent(self, store: TaskStore) -> None:
        past_purge, future_purge = {"purge_at": store.now() - MINUTE}, {"purge_at": store.now() + HOUR}
        parents = [
            await put(store, status=status, **_end_fields(store, ended), **_PLANNED_FIELDS, **times)
            for status, ended, times in (
                (TaskStatus.WAITING, None, {}),
                (TaskStatus.COMPLETED, SECOND, {}),
                (TaskStatus.COMPLETED, HOUR, future_purge),
                (TaskStatus.COMPLETED, SECOND, past_purge),
                (TaskStatus.FAILED, HOUR, {}),
            )
        ]
        for parent in parents:
            family = RoundOfSubtasks(parent.task_id, 0, 1)
            await _put_subtask(store, 0, TaskStatus.COMPLETED, family, **_end_fields(store, SECOND), **past_purge)
        assert await _purge_three_times(store, finished=MINUTE, dead_letters=MINUTE) == 4
        left = [await store.get(parent.task_id, EVERYONE) is not None for parent in parents]
        assert left == [True, True, True, False, False]

    async def test_many_with_a_time_of_their_own_that_stay_hide_nothing(self, store: TaskStore) -> None:
        past_purge = {"purge_at": store.now() - MINUTE}
        parent = await put(store, status=TaskStatus.WAITING, **_PLANNED_FIELDS)
        family = RoundOfSubtasks(parent.task_id, 0, 1)
        await asyncio.gather(
            *(
                _put_subtask(store, n, TaskStatus.COMPLETED, family, **_end_fields(store, SECOND), **past_purge)
                for n in range(60)
            )
        )
        for _ in range(5):
            await put(store, status=TaskStatus.COMPLETED, **_end_fields(store, SECOND), **past_purge)
        steps = [await store.purge(finished=None, dead_letters=None, limit=2) for _ in range(24)]
        assert (max(steps), sum(steps)) == (2, 5)

    async def test_a_tree_goes_from_its_leaves_in_steps(self, store: TaskStore) -> None:
        above: Task | None = None
        for level in range(3):
            link = None if above is None else ParentLink(above.task_id, 0, level)
            ended = _end_fields(store, HOUR + level * MINUTE)
            above = await put(store, status=TaskStatus.COMPLETED, parent=link, **ended, **_PLANNED_FIELDS)
            for slot in range(10, 14):
                await _put_old(store, above.task_id, slot, TaskStatus.CANCELLED)
        steps = [await store.purge(finished=MINUTE, dead_letters=None, limit=4) for _ in range(12)]
        assert max(steps) == 4
        assert sum(steps) == 15
        assert sum((await store.count_by_status()).values()) == 0

    async def test_many_old_subtasks_of_a_live_parent_hide_nothing(self, store: TaskStore) -> None:
        parent = await put(store, status=TaskStatus.WAITING, **_PLANNED_FIELDS)
        await asyncio.gather(*(_put_old(store, parent.task_id, slot, TaskStatus.COMPLETED) for slot in range(60)))
        for _ in range(5):
            await put(store, status=TaskStatus.COMPLETED, **_end_fields(store, HOUR - SECOND))
        steps = [await store.purge(finished=MINUTE, dead_letters=None, limit=2) for _ in range(24)]
        assert max(steps) <= 2
        assert sum(steps) == 5
        assert len(await store.list_subtasks(RoundOfSubtasks(parent.task_id, 0, 1), limit=100)) == 60


_PLANNED_FIELDS = {"subtasks": Subtasks(4, None)}


async def _put_tree(store: TaskStore, status: TaskStatus) -> list[Task]:
    """Old tasks on three levels; the last one, on the lowest level, has this status."""
    ended: dict[str, Any] = {"status": TaskStatus.COMPLETED, **_end_fields(store, HOUR)}
    tree = [await put(store, **ended, **_PLANNED_FIELDS)]
    for slot in range(3):
        tree.append(await put(store, **ended, **_PLANNED_FIELDS, parent=ParentLink(tree[0].task_id, 0, slot)))
    for slot in range(3):
        last = {"status": status} if slot == 2 else {}
        tree.append(await put(store, **{**ended, **last}, parent=ParentLink(tree[2].task_id, 0, slot)))
    return tree


async def _put_old(store: TaskStore, parent_id: str, slot: int, status: TaskStatus) -> Task:
    return await _put_subtask(store, slot, status, RoundOfSubtasks(parent_id, 0, 1), **_end_fields(store, HOUR))


def _end_fields(store: TaskStore, ago: timedelta | None) -> dict[str, Any]:
    """Fields of a task that ended so long ago and whose events are all published; None: it has not ended."""
    published = {"publish_at": None, "published_sequence": 1}
    return {**published, "finished_at": None if ago is None else store.now() - ago}


async def _purge_three_times(store: TaskStore, *, finished: timedelta | None, dead_letters: timedelta | None) -> int:
    """Purge three times, and return how many tasks were removed altogether."""
    return sum([await store.purge(finished=finished, dead_letters=dead_letters, limit=100) for _ in range(3)])
