"""Store suite: drivers, marks and history."""

from __future__ import annotations

import asyncio
import itertools
from datetime import timedelta

from taskframework.model.drivers import DISPATCH, OUTBOX
from taskframework.model.interventions import Cancel
from taskframework.model.marks import (
    ForgetDispatch,
    MakeDue,
    MarkDispatched,
    MarkPublished,
    PostponeRelay,
    ReserveDispatch,
)
from taskframework.model.scope import EVERYONE
from taskframework.model.status import CLAIMABLE, TaskStatus
from taskframework.model.task import HISTORY_LENGTH, HistoryEntry, Task, new_task_id
from taskframework.model.transitions import Complete, Release
from taskframework.stores.base import TaskStore
from taskframework.testing.conformance.comparison import differences
from taskframework.testing.conformance.store_suite import (
    HOUR,
    MINUTE,
    SECOND,
    StoreSuite,
    claimed,
    marked,
    moved,
    put,
    put_running,
    refused,
    stored,
)
from taskframework.testing.conformance.store_values import HOSTILE

FIRST, LONGEST = 20 * SECOND, 15 * MINUTE


def _dispatched(task: Task, epoch: int = 1) -> MarkDispatched:
    return MarkDispatched(task.task_id, epoch, FIRST, LONGEST)


def _reserve(task: Task, epoch: int = 1) -> ReserveDispatch:
    return ReserveDispatch(task.task_id, epoch, FIRST, LONGEST)


class DispatchMarkCases(StoreSuite):
    """What `MarkDispatched` and `ReserveDispatch` promise: repaired, never flooded."""

    async def test_each_dispatch_doubles_the_wait(self, store: TaskStore) -> None:
        task = await put(store)
        for doubled in (FIRST, 2 * FIRST, 4 * FIRST):
            after = await marked(store, _dispatched(task))
            assert after.next_dispatch_at is not None
            assert doubled - 5 * SECOND < after.next_dispatch_at - store.now() < doubled + 5 * SECOND
        assert after.dispatches == 3

    async def test_the_wait_does_not_grow_for_ever(self, store: TaskStore) -> None:
        after = await marked(store, _dispatched(await put(store, dispatches=500)))
        assert after.next_dispatch_at is not None
        assert after.next_dispatch_at < store.now() + LONGEST + 5 * SECOND

    async def test_a_delayed_task_waits_from_its_own_time(self, store: TaskStore) -> None:
        task = await put(store, not_before=store.now() + HOUR)
        after = await marked(store, _dispatched(task))
        assert after.next_dispatch_at == task.not_before + FIRST

    async def test_an_old_message_moves_nothing(self, store: TaskStore) -> None:
        task = await put(store, dispatch_epoch=2)
        assert (await marked(store, _dispatched(task, 1))).dispatches == 0

    async def test_a_task_that_does_not_wait_gets_no_driver(self, store: TaskStore) -> None:
        for status in set(TaskStatus) - CLAIMABLE:
            task = await put(store, status=status, next_dispatch_at=None)
            assert (await marked(store, _dispatched(task))).next_dispatch_at is None

    async def test_a_mark_that_comes_after_a_hand_over_moves_nothing(self, store: TaskStore) -> None:
        """The mark of a confirmed message waits for a moment; in it a worker may have left the task to the sweeper."""
        sent, untouched = await put(store), await put(store)
        late = [
            MarkDispatched(task.task_id, 1, FIRST, LONGEST, due=task.next_dispatch_at) for task in (sent, untouched)
        ]
        handed_over = await marked(store, MakeDue(sent.task_id, 1))

        await store.mark(*late)

        after = await stored(store, sent.task_id)
        assert (after.next_dispatch_at, after.dispatches) == (handed_over.next_dispatch_at, 0)
        assert (await stored(store, untouched.task_id)).dispatches == 1
        assert (await marked(store, late[0])).dispatches == 0

    async def test_a_mark_on_nothing_is_no_error(self, store: TaskStore) -> None:
        await store.mark(MarkDispatched(new_task_id(), 1, FIRST, LONGEST))
        await store.mark(MarkPublished(new_task_id(), 1))

    async def test_of_many_sweepers_one_reserves(self, store: TaskStore) -> None:
        task = await put(store, next_dispatch_at=store.now() - SECOND)
        replies = await asyncio.gather(*(store.apply(_reserve(task)) for _ in range(10)))
        assert sum(reply is not None for reply in replies) == 1
        assert (await stored(store, task.task_id)).dispatches == 1

    async def test_a_due_task_is_reserved(self, store: TaskStore) -> None:
        task = await put(store, next_dispatch_at=store.now() - SECOND)
        after = await moved(store, _reserve(task))
        assert (after.dispatches, after.revision, after.sequence) == (1, task.revision, task.sequence)

    async def test_what_is_not_due_is_not_reserved(self, store: TaskStore) -> None:
        due = store.now() - SECOND
        await refused(store, _reserve(await put(store, next_dispatch_at=store.now() + MINUTE)))
        await refused(store, _reserve(await put(store, next_dispatch_at=due, not_before=store.now() + MINUTE)))
        await refused(store, _reserve(await put(store, next_dispatch_at=due, dispatch_epoch=2)))
        await refused(store, _reserve(await put(store, next_dispatch_at=None)))
        await refused(store, _reserve(await put(store, next_dispatch_at=due, status=TaskStatus.COMPLETED)))

    async def test_what_was_handed_back_is_due_after_its_delay(self, store: TaskStore) -> None:
        """Exactly then, whenever it was due before: a task that is put off must not be sent again meanwhile."""
        now = store.now()
        before = (now - MINUTE, now + MINUTE, now + 24 * HOUR, None)
        for due, delay in itertools.product(before, (timedelta(0), HOUR)):
            task = await put(store, next_dispatch_at=due, dispatches=3)
            after = await marked(store, MakeDue(task.task_id, 1, delay))
            assert after.next_dispatch_at is not None
            assert now <= after.next_dispatch_at - delay <= store.now()
            assert after == task.evolve(next_dispatch_at=after.next_dispatch_at, dispatches=0)
            is_due = task.task_id in {found.task_id for found in await store.due(DISPATCH, 10)}
            assert is_due == (not delay)

    async def test_only_what_still_waits_for_this_message_is_made_due(self, store: TaskStore) -> None:
        newer = await put(store, dispatch_epoch=2)
        running, _ = await put_running(store)
        done = await put(store, status=TaskStatus.COMPLETED, next_dispatch_at=None)
        for task in (newer, running, done):
            assert await marked(store, MakeDue(task.task_id, 1)) == task
        await store.mark(MakeDue(new_task_id(), 1))

    async def test_a_lost_dispatch_is_forgotten(self, store: TaskStore) -> None:
        sent = await marked(store, _dispatched(await put(store, progress=HOSTILE)))
        later = store.now() + HOUR
        delayed = await put(store, not_before=later, next_dispatch_at=later)
        due, (running, _) = await put(store, next_dispatch_at=store.now() - MINUTE), await put_running(store)
        assert [task.task_id for task in await store.upcoming(DISPATCH, 10)] == [sent.task_id]

        for task in (sent, delayed, running):
            await marked(store, ForgetDispatch(task.task_id))

        after = await stored(store, sent.task_id)
        assert differences(after, sent.evolve(next_dispatch_at=sent.not_before, dispatches=0), timedelta(0)) == []
        assert (await stored(store, delayed.task_id)).next_dispatch_at == later
        assert await stored(store, running.task_id) == running
        assert await store.upcoming(DISPATCH, 10) == []
        assert {task.task_id for task in await store.due(DISPATCH, 10)} == {sent.task_id, due.task_id}

    async def test_what_is_dispatched_later_is_found_in_parts(self, store: TaskStore) -> None:
        sent = {(await marked(store, _dispatched(await put(store)))).task_id for _ in range(5)}
        parts = []
        while part := await store.upcoming(DISPATCH, 2):
            await store.mark(*(ForgetDispatch(task.task_id) for task in part))
            parts.append({task.task_id for task in part})
        assert sorted(map(len, parts)) == [1, 2, 2]
        assert set.union(*parts) == sent


class HistoryCases(StoreSuite):
    """What the outbox promises: no event is skipped, none is trimmed before it is published."""

    async def test_marks_only_grow(self, store: TaskStore) -> None:
        task, fence = await put_running(store)
        await moved(store, Complete(fence, "worker-1", None))
        assert (await marked(store, MarkPublished(task.task_id, 2))).published_sequence == 2
        assert (await marked(store, MarkPublished(task.task_id, 1))).published_sequence == 2
        assert (await marked(store, MarkPublished(task.task_id, 99))).published_sequence == 2

    async def test_the_relay_rests_only_when_everything_is_published(self, store: TaskStore) -> None:
        task, fence = await put_running(store)
        await moved(store, Complete(fence, "worker-1", None))
        assert (await marked(store, MarkPublished(task.task_id, 1))).publish_at is not None
        assert (await marked(store, MarkPublished(task.task_id, 2))).publish_at is None

    async def test_a_mark_beyond_the_end_stops_there(self, store: TaskStore) -> None:
        task = await put(store)
        after = await marked(store, MarkPublished(task.task_id, 50))
        assert (after.published_sequence, after.publish_at) == (1, None)

    async def test_the_next_event_wakes_the_relay_again(self, store: TaskStore) -> None:
        task = await marked(store, MarkPublished((await put(store)).task_id, 1))
        running, _ = await claimed(store, task)
        assert running.publish_at is not None
        assert [entry.sequence for entry in running.unpublished] == [2]

    async def test_a_relay_is_postponed_only_while_something_waits(self, store: TaskStore) -> None:
        task = await put(store)
        after = await moved(store, PostponeRelay(task.task_id, HOUR))
        assert after.publish_at is not None
        assert after.publish_at > store.now() + HOUR / 2
        await marked(store, MarkPublished(task.task_id, 1))
        await refused(store, PostponeRelay(task.task_id, HOUR))

    async def test_concurrent_marks_leave_the_highest(self, store: TaskStore) -> None:
        task = await self._long_lived(store, events=30)
        await asyncio.gather(*(store.mark(MarkPublished(task.task_id, n)) for n in (7, 29, 3, 30, 12)))
        after = await stored(store, task.task_id)
        assert (after.published_sequence, after.publish_at) == (30, None)

    async def test_marks_of_one_call_on_one_task_are_all_made_in_their_order(self, store: TaskStore) -> None:
        task, other = await put(store), await put(store)
        await store.mark(
            MarkPublished(task.task_id, 1),
            MakeDue(task.task_id, 1, HOUR),
            MarkPublished(other.task_id, 1),
            MakeDue(task.task_id, 1, MINUTE),
        )
        after = await stored(store, task.task_id)
        assert (after.published_sequence, (await stored(store, other.task_id)).published_sequence) == (1, 1)
        assert after.next_dispatch_at is not None
        assert after.next_dispatch_at < store.now() + HOUR / 2

    async def test_the_sequence_has_no_gaps(self, store: TaskStore) -> None:
        task = await put(store)
        for _ in range(5):
            _, fence = await claimed(store, task)
            task = await moved(store, Release(fence, "worker-1"))
        await moved(store, Cancel(task.task_id, EVERYONE, "alice", None))
        after = await stored(store, task.task_id)
        assert [entry.sequence for entry in after.history] == list(range(1, 13))
        assert after.sequence == after.revision == 12

    async def test_what_is_unpublished_is_never_trimmed(self, store: TaskStore) -> None:
        task = await self._long_lived(store, events=HISTORY_LENGTH + 20)
        running, _ = await claimed(store, task)
        assert [entry.sequence for entry in running.unpublished] == list(range(1, HISTORY_LENGTH + 22))

    async def test_what_is_published_is_trimmed(self, store: TaskStore) -> None:
        task = await self._long_lived(store, events=HISTORY_LENGTH + 20)
        await marked(store, MarkPublished(task.task_id, 15))
        running, fence = await claimed(store, await stored(store, task.task_id))
        assert running.history[0].sequence == 16
        await marked(store, MarkPublished(task.task_id, running.sequence))
        after = await moved(store, Complete(fence, "worker-1", None))
        assert (len(after.history), after.history[-1].sequence) == (HISTORY_LENGTH, HISTORY_LENGTH + 22)

    async def _long_lived(self, store: TaskStore, *, events: int) -> Task:
        at = store.now()
        history = tuple(HistoryEntry(n, "released", at, 1, "worker-1", None) for n in range(1, events + 1))
        return await put(store, history=history, sequence=events, revision=events)


class RelayCases(StoreSuite):
    """What the relay finds."""

    async def test_the_longest_due_is_relayed_first(self, store: TaskStore) -> None:
        due = [await put(store, publish_at=store.now() - n * SECOND) for n in (1, 3, 2)]
        await put(store, publish_at=store.now() + MINUTE)
        await put(store, publish_at=None)
        found = [task.task_id for task in await store.due(OUTBOX, 10)]
        assert found == [task.task_id for task in (due[1], due[2], due[0])]
        assert [task.task_id for task in await store.due(OUTBOX, 1)] == [due[1].task_id]

    async def test_it_is_relayed_when_its_time_has_come(self, store: TaskStore) -> None:
        task = await put(store, publish_at=store.now() + timedelta(seconds=0.2))
        await self.pass_time(0.3)
        assert [found.task_id for found in await store.due(OUTBOX, 10)] == [task.task_id]
