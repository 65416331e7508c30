"""The results of a stream: in order, no gap waited for longer than its deadline, none given up sooner, none lost."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from taskframework import TaskNotFoundError, failpoint
from taskframework.model.options import StreamPlace
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.model.stream_moves import Skip
from taskframework.model.stream_results import StreamResult
from taskframework.model.streams import STREAMS, Gap, StreamKey
from taskframework.model.subtasks import Counts
from taskframework.model.task import Task
from taskframework.model.task_fields import Subtasks
from taskframework.model.waiting import CountSubtasks, Reopen, Wait
from taskframework.stores.reading import read_record
from tests.unit.streams.conftest import HOUR, KEY, Installation, armed

SECOND = timedelta(seconds=1)
#: The default of `streams.gap`, and how long a position without a task is waited for.
GAP, GIVEN_UP = timedelta(seconds=60), timedelta(seconds=30)
ORDERED = {"mode": "ordered_results"}


async def read(here: Installation, first: int = 0, limit: int = 50) -> list[StreamResult]:
    page = await here.services.streams.results(KEY, limit=limit, first=first)
    assert page.next_cursor == str(first + len(page.items))
    return list(page.items)


async def shown(here: Installation, first: int = 0) -> list[str]:
    """The statuses of the results, one letter each."""
    return [result.status[0] for result in await read(here, first)]


async def ordered(here: Installation, count: int) -> list[Task]:
    tasks = await here.submit_many(count, stream=ORDERED)
    assert {task.status for task in tasks} == {TaskStatus.QUEUED}, "nobody waits for a turn"
    return tasks


async def submits_slowly(here: Installation) -> tuple[asyncio.Task[Task], asyncio.Event]:
    """A submission that has taken position 0, which was given up since, and stores its task when it may go on."""
    may_go, has_position = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        failpoint.disarm("stream.after_position")
        has_position.set()
        await may_go.wait()

    failpoint.arm("stream.after_position", wait)
    late = asyncio.create_task(here.submit(stream=ORDERED))
    await has_position.wait()
    [second] = await ordered(here, 1)
    await here.end(second)
    here.clock.advance(GIVEN_UP)
    assert await shown(here) == ["S", "C"]
    return late, may_go


async def test_results_come_in_order_whatever_ends_first(here: Installation) -> None:
    tasks = await ordered(here, 4)
    for at in (2, 1, 3):
        await here.end(tasks[at])
    assert await read(here) == []
    await here.end(tasks[0], fails=True)
    results = await read(here)
    assert [(result.position, result.task_id, result.status, result.result) for result in results] == [
        (0, tasks[0].task_id, "FAILED", None),
        *((at, tasks[at].task_id, "COMPLETED", 7) for at in (1, 2, 3)),
    ]
    assert results[0].error is not None
    assert await read(here, first=2) == results[2:]
    assert await read(here, first=1, limit=2) == results[1:3]
    assert await read(here, first=4) == []


async def test_a_task_without_a_deadline_is_skipped_a_gap_after_a_later_one_ended(here: Installation) -> None:
    first, second, _ = await ordered(here, 3)
    here.clock.advance(HOUR)
    assert await shown(here) == [], "nothing later has ended"
    await here.end(second)
    here.clock.advance(GAP - SECOND)
    assert await shown(here) == []
    here.clock.advance(SECOND)
    assert await shown(here) == ["S", "C"]
    there = await here.get(first)
    assert ([entry.type for entry in there.history], there.status) == (["submitted", "skipped"], TaskStatus.QUEUED)


async def test_a_task_with_a_deadline_is_waited_for_until_its_deadline(here: Installation) -> None:
    first = await here.submit(stream=ORDERED, deadline=here.store.now() + HOUR)
    fence = await here.begin(first)
    [second] = await ordered(here, 1)
    await here.end(second)
    here.clock.advance(HOUR - SECOND)
    assert await shown(here) == []
    here.clock.advance(SECOND)
    assert await shown(here) == ["S", "C"]
    assert (await here.get(first)).status is TaskStatus.RUNNING
    assert fence.holds(await here.get(first)), "it runs on"


async def test_every_reader_sees_a_skipped_task_as_skipped_whatever_happens_later(here: Installation) -> None:
    first, second = await ordered(here, 2)
    await here.end(second)
    here.clock.advance(GAP)
    assert await shown(here) == ["S", "C"]
    await here.end(first)
    results = await read(here)
    assert [result.status for result in results] == ["SKIPPED", "COMPLETED"]
    assert (results[0].task_id, results[0].result) == (first.task_id, None)


async def test_a_skip_is_recorded_once_however_many_readers_there_are(here: Installation) -> None:
    first, second = await ordered(here, 2)
    await here.end(second)
    here.clock.advance(GAP)
    await asyncio.gather(*(read(here) for _ in range(10)))
    there = await here.get(first)
    assert [entry.type for entry in there.history].count("skipped") == 1


async def test_the_store_refuses_to_skip_before_the_time(here: Installation) -> None:
    [first] = await ordered(here, 1)
    assert await here.store.apply(Skip(first.task_id, here.store.now() + SECOND)) is None


async def test_a_replay_gives_the_position_a_result_after_all(here: Installation) -> None:
    first, second = await ordered(here, 2)
    await here.end(second)
    here.clock.advance(GAP)
    await read(here)
    await here.end(first, fails=True)
    await here.services.tasks.retry(first.task_id, EVERYONE, by="operator")
    await here.end(first)
    assert await shown(here) == ["C", "C"]


async def test_readers_wait_for_a_replay_as_for_any_live_task(here: Installation) -> None:
    first, second = await ordered(here, 2)
    await here.end(first, fails=True)
    await here.end(second)
    assert await shown(here) == ["F", "C"]
    here.clock.advance(2 * GAP)
    await here.services.tasks.retry(first.task_id, EVERYONE, by="operator")
    assert await shown(here) == []
    here.clock.advance(GAP - SECOND)
    assert await shown(here) == []
    here.clock.advance(SECOND)
    assert await shown(here) == ["S", "C"]


async def test_readers_wait_for_a_reopened_parent_as_for_any_live_task(here: Installation) -> None:
    async def fail_sub_task() -> None:
        assert await here.store.apply(CountSubtasks.of(await here.get(parent), Counts(failed=1))) is not None

    parent, second = await ordered(here, 2)
    wait = Wait(await here.begin(parent), "worker-1", Subtasks(1, None), None, None, None)
    assert await here.store.apply(wait) is not None
    await fail_sub_task()
    await here.end(second)
    assert await shown(here) == ["F", "C"]
    for _ in range(2):  # the second time although readers had skipped it before
        here.clock.advance(2 * GAP)
        assert await here.store.apply(Reopen(parent.task_id, EVERYONE, "operator")) is not None
        assert await shown(here) == []
        here.clock.advance(GAP)
        assert await shown(here) == ["S", "C"]
        await fail_sub_task()


async def test_positions_without_a_task_are_given_up_half_a_minute_after_a_later_one_was_stored(
    here: Installation,
) -> None:
    with armed("stream.after_position"), pytest.raises(RuntimeError):
        await here.services.submission.submit_many([here.request(stream=ORDERED) for _ in range(3)])
    here.clock.advance(HOUR)
    assert await read(here) == [], "nothing later is stored"
    [task] = await ordered(here, 1)
    await here.end(task)
    here.clock.advance(GIVEN_UP - SECOND)
    assert await read(here) == []
    here.clock.advance(SECOND)
    results = await read(here)
    assert [(result.position, result.task_id, result.status) for result in results] == [
        *((at, None, "SKIPPED") for at in range(3)),
        (3, task.task_id, "COMPLETED"),
    ]
    assert len((await here.stream()).skipped) == 1


async def test_any_number_of_positions_without_a_task_is_given_up_as_one_gap(here: Installation) -> None:
    """As in an old stream whose first tasks the retention has deleted: not one step for each position."""
    await here.end((await ordered(here, 1))[0])
    record = await read_record(here.store, KEY.record_id)
    assert record is not None
    far = 10**12
    later = STREAMS.changed(record, replace(STREAMS.content(record), next_position=far))
    assert await here.store.write_records([later]) != [None]
    [task] = await ordered(here, 1)
    await here.end(task)
    here.clock.advance(GIVEN_UP)
    assert await shown(here, first=far - 2) == ["S", "S", "C"]
    assert {result.status for result in await read(here, first=1)} == {"SKIPPED"}
    assert (await here.stream()).skipped == (Gap(1, far - 1),), "what touches a gap becomes part of it"


async def test_a_task_at_a_given_up_position_gets_a_later_one_during_its_submission(
    here: Installation,
) -> None:
    late, go = await submits_slowly(here)
    go.set()
    task = await late
    assert task.stream == StreamPlace(KEY.key, "ordered_results", 2)
    await here.end(task)
    assert await shown(here) == ["S", "C", "C"]


async def test_a_task_stored_at_a_given_up_position_is_moved_by_a_reader(here: Installation) -> None:
    late, go = await submits_slowly(here)
    with armed("stream.after_insert"):
        go.set()
        with pytest.raises(RuntimeError):
            await late
    assert await shown(here) == ["S", "C"], "it waits behind them now"
    [_, moved] = await here.store.list_stream(KEY, limit=10)
    assert moved.stream == StreamPlace(KEY.key, "ordered_results", 2)
    await here.end(moved)
    assert await shown(here) == ["S", "C", "C"]


async def test_a_task_stored_while_its_position_is_given_up_is_moved_by_that_reader(here: Installation) -> None:
    """The submission reads the record before the reader has written it, and the reader the tasks before the insert."""
    with armed("stream.after_position"), pytest.raises(RuntimeError):
        await here.services.submission.submit(here.request(stream=ORDERED))
    [second] = await ordered(here, 1)
    await here.end(second)
    here.clock.advance(GIVEN_UP)
    late = second.evolve(
        task_id="late",
        stream=StreamPlace(KEY.key, "ordered_results", 0),
        correlation_id="late",
        parameters={"text": "a"},
    )
    write = here.store.write_records

    async def write_after_insert(records: object) -> object:
        here.store.write_records = write  # type: ignore[method-assign]
        await here.store.insert([late])
        return await write(records)  # type: ignore[arg-type]

    here.store.write_records = write_after_insert  # type: ignore[method-assign, assignment]
    assert await shown(here) == ["S", "C"]
    assert (await here.get(late)).stream == StreamPlace(KEY.key, "ordered_results", 2)


async def test_a_followed_result_comes_as_soon_as_it_is_there(here: Installation) -> None:
    tasks = await ordered(here, 3)
    followed = here.services.streams.follow_results(KEY, first=1)
    assert list(await anext(followed)) == []
    await here.end(tasks[2])
    assert list(await anext(followed)) == []
    await here.end(tasks[1])
    assert [result.position for result in await anext(followed)] == [1]
    assert [result.position for result in await anext(followed)] == [2]
    await followed.aclose()  # type: ignore[attr-defined]


async def test_a_serial_stream_is_read_too_and_waits_for_what_has_the_turn(here: Installation) -> None:
    first, second = await here.submit_many(2)
    here.clock.advance(10 * HOUR)
    assert await read(here) == []
    await here.end(first)
    await here.end(second)
    assert await shown(here) == ["C", "C"]


async def test_a_stream_that_nobody_began_is_not_there(here: Installation) -> None:
    streams, nothing = here.services.streams, StreamKey("bob", KEY.key)
    await here.submit()
    for asked in (streams.status(nothing), streams.results(nothing, limit=1), streams.go_on(nothing)):
        with pytest.raises(TaskNotFoundError, match="no stream"):
            await asked
