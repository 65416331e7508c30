"""Store suite: marks that come late, together or at once, and the tasks that the relay finds."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from taskframework.model.drivers import DISPATCH, OUTBOX
from taskframework.model.marks import EndPutOff, ForgetDispatch, MakeDue, MarkDispatched, MarkPublished
from taskframework.model.task import Task
from taskframework.model.task_fields import HistoryEntry
from taskframework.stores.base import TaskStore
from taskframework.testing.conformance.comparison import differences
from taskframework.testing.conformance.store_suite import (
    HOUR,
    MINUTE,
    SECOND,
    StoreSuite,
    make_mark,
    put,
    put_running,
    read_task,
)
from taskframework.testing.conformance.store_values import HOSTILE

FIRST, LONGEST = 20 * SECOND, 15 * MINUTE


def _dispatched(task: Task) -> MarkDispatched:
    return MarkDispatched(task.task_id, 1, FIRST, LONGEST)


class DispatchMarkCases(StoreSuite):
    """The effects of the marks of dispatched messages."""

    async def test_a_mark_that_comes_after_a_hand_over_moves_nothing(self, store: TaskStore) -> None:
        """The mark of a confirmed message waits for a moment. Meanwhile a worker may leave the task to the sweeper."""
        sent, untouched = await put(store), await put(store)
        late = [
            MarkDispatched(task.task_id, 1, FIRST, LONGEST, due=task.next_dispatch_at) for task in (sent, untouched)
        ]
        handed_over = await make_mark(store, MakeDue(sent.task_id, 1))

        await store.mark(*late)

        after = await read_task(store, sent.task_id)
        assert (after.next_dispatch_at, after.dispatches) == (handed_over.next_dispatch_at, 0)
        assert (await read_task(store, untouched.task_id)).dispatches == 1
        assert (await make_mark(store, late[0])).dispatches == 0

    async def test_a_task_keeps_its_turn_when_it_is_put_off_for_another_reason(self, store: TaskStore) -> None:
        put_off = await make_mark(store, MakeDue((await put(store)).task_id, 1, HOUR, "rate/openai"))
        assert put_off.waits_for_limit is not None
        assert put_off.waits_for_limit.until == put_off.next_dispatch_at
        later = await make_mark(store, MakeDue(put_off.task_id, 1, MINUTE))
        assert later.waits_for_limit == put_off.waits_for_limit

    async def test_a_lost_dispatch_is_forgotten(self, store: TaskStore) -> None:
        sent = await make_mark(store, _dispatched(await put(store, progress=HOSTILE)))
        later = store.now() + HOUR
        delayed = await put(store, not_before=later, next_dispatch_at=later)
        due, (running, _) = await put(store, next_dispatch_at=store.now() - MINUTE), await put_running(store)
        assert [task.task_id for task in await store.upcoming(DISPATCH, 10)] == [sent.task_id]

        for task in (sent, delayed, running):
            await make_mark(store, ForgetDispatch(task.task_id))

        after = await read_task(store, sent.task_id)
        assert differences(after, sent.evolve(next_dispatch_at=sent.not_before, dispatches=0), timedelta(0)) == []
        assert (await read_task(store, delayed.task_id)).next_dispatch_at == later
        assert await read_task(store, running.task_id) == running
        assert await store.upcoming(DISPATCH, 10) == []
        assert {task.task_id for task in await store.due(DISPATCH, 10)} == {sent.task_id, due.task_id}

    async def test_a_task_that_was_put_off_is_made_due_only_while_it_has_no_message(self, store: TaskStore) -> None:
        put_off = await make_mark(store, MakeDue((await put(store)).task_id, 1, HOUR))
        sent = await make_mark(store, _dispatched(await put(store)))
        future = store.now() + MINUTE
        later = await put(store, not_before=future, next_dispatch_at=future + MINUTE)
        due = store.now() - HOUR
        for task in (put_off, sent, later):
            await make_mark(store, EndPutOff(task.task_id, due))
        ended = await read_task(store, put_off.task_id)
        assert differences(ended, put_off.evolve(next_dispatch_at=due), timedelta(0)) == []
        assert await read_task(store, sent.task_id) == sent, "another message would be one too many"
        assert (await read_task(store, later.task_id)).next_dispatch_at == future
        await make_mark(store, EndPutOff(put_off.task_id, due + MINUTE))
        assert await read_task(store, put_off.task_id) == ended, "it is due earlier"

    async def test_tasks_that_were_put_off_are_found_by_their_type(self, store: TaskStore) -> None:
        put_off, later, other = [await put(store, task_type=task_type) for task_type in ("t", "t", "other")]
        for task, delay in ((put_off, MINUTE), (later, 2 * HOUR), (other, MINUTE)):
            await store.mark(MakeDue(task.task_id, 1, delay))
        await store.mark(_dispatched(await put(store, task_type="t")))
        future = store.now() + MINUTE
        await put(store, task_type="t", not_before=future, next_dispatch_at=future)
        await put(store, task_type="t", next_dispatch_at=store.now() - SECOND)

        async def found(limit: int, within: timedelta) -> list[str]:
            found = await store.put_off("t", store.now(), store.now() + within, limit)
            return [task.task_id for task in found]

        assert await found(10, HOUR) == [put_off.task_id]
        assert await found(10, 3 * HOUR) == [put_off.task_id, later.task_id]
        assert await found(1, 3 * HOUR) == [put_off.task_id]
        await store.mark(EndPutOff(put_off.task_id, store.now() - SECOND))
        assert await found(10, HOUR) == []

    async def test_a_task_that_was_sent_in_the_meantime_is_not_put_off(self, store: TaskStore) -> None:
        due = await put(store, next_dispatch_at=store.now())
        sent = await make_mark(store, _dispatched(due))
        await make_mark(store, MakeDue(due.task_id, 1, HOUR, due=due.next_dispatch_at))
        assert await read_task(store, due.task_id) == sent, "it would be sent again"
        put_off = await make_mark(store, MakeDue(due.task_id, 1, HOUR, due=sent.next_dispatch_at))
        assert put_off.dispatches == 0

    async def test_tasks_with_a_later_dispatch_time_are_found_in_parts(self, store: TaskStore) -> None:
        sent = {(await make_mark(store, _dispatched(await put(store)))).task_id for _ in range(5)}
        parts = []
        while part := await store.upcoming(DISPATCH, 2):
            await store.mark(*(ForgetDispatch(task.task_id) for task in part))
            parts.append({task.task_id for task in part})
        assert sorted(map(len, parts)) == [1, 2, 2]
        assert set.union(*parts) == sent


class HistoryCases(StoreSuite):
    """The effects of several marks on the outbox."""

    async def test_concurrent_marks_leave_the_highest(self, store: TaskStore) -> None:
        history = tuple(HistoryEntry(n, "released", store.now(), 1, "worker-1", None) for n in range(1, 31))
        task = await put(store, history=history, sequence=30)
        await asyncio.gather(*(store.mark(MarkPublished(task.task_id, n)) for n in (7, 29, 3, 30, 12)))
        after = await read_task(store, task.task_id)
        assert (after.published_sequence, after.publish_at) == (30, None)

    async def test_marks_of_one_call_on_one_task_are_all_made_in_their_order(self, store: TaskStore) -> None:
        task, other = await put(store), await put(store)
        await store.mark(
            MarkPublished(task.task_id, 1),
            MakeDue(task.task_id, 1, HOUR),
            MarkPublished(other.task_id, 1),
            MakeDue(task.task_id, 1, MINUTE),
        )
        after = await read_task(store, task.task_id)
        assert (after.published_sequence, (await read_task(store, other.task_id)).published_sequence) == (1, 1)
        assert after.next_dispatch_at is not None
        assert after.next_dispatch_at < store.now() + HOUR / 2


class RelayCases(StoreSuite):
    """The tasks that the relay finds."""

    async def test_the_longest_due_is_relayed_first(self, store: TaskStore) -> None:
        due = [await put(store, publish_at=store.now() - n * SECOND) for n in (1, 3, 2)]
        await put(store, publish_at=store.now() + MINUTE)
        await put(store, publish_at=None)
        found = [task.task_id for task in await store.due(OUTBOX, 10)]
        assert found == [task.task_id for task in (due[1], due[2], due[0])]
        assert [task.task_id for task in await store.due(OUTBOX, 1)] == [due[1].task_id]
