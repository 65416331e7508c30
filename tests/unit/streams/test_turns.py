"""Whose turn it is: one of a key at a time, in order, whoever dies, and what a failure and an operator do to it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import timedelta
from types import NoneType
from typing import Any

import pytest

from taskframework import (
    IdempotencyConflictError,
    InvalidRequestError,
    SubmitRequest,
    TransitionRefusedError,
    failpoint,
)
from taskframework.errors import TaskUnreadableError
from taskframework.model.attempts import Fail, Release
from taskframework.model.drivers import missing_drivers
from taskframework.model.interventions import Cancel, Expire, Reap, Replay
from taskframework.model.marks import MarkPublished
from taskframework.model.options import StreamPlace
from taskframework.model.query import TaskFilter
from taskframework.model.records import RecordUnreadableError
from taskframework.model.scope import EVERYONE, Scope
from taskframework.model.status import TaskStatus
from taskframework.model.stream_moves import UNBLOCK_CHECK_INTERVAL, Unblock
from taskframework.model.streams import StreamKey
from taskframework.model.task import Task
from taskframework.model.transitions import Move
from taskframework.recovery.retention import RetentionRepair
from taskframework.recovery.streams import StreamRepair
from taskframework.stores.reading import read_record
from taskframework.streams.looks import StreamLooks
from taskframework.submission.refusals import StreamModeError
from taskframework.testing.conformance.store_suite import make_error
from tests.unit.streams.conftest import HOUR, KEY, NO_TIME, Installation, armed

QUEUED, BLOCKED, RUNNING = TaskStatus.QUEUED, TaskStatus.BLOCKED, TaskStatus.RUNNING
RETRYING, COMPLETED, CANCELLED, FAILED = (
    TaskStatus.RETRYING,
    TaskStatus.COMPLETED,
    TaskStatus.CANCELLED,
    TaskStatus.FAILED,
)


def repair(here: Installation) -> StreamRepair:
    return StreamRepair(here.store, here.services.looks, 100)


async def repaired(here: Installation) -> None:
    here.clock.advance(UNBLOCK_CHECK_INTERVAL + timedelta(seconds=1))
    await repair(here).run_once()
    await here.services.looks.finished()


async def cancel(here: Installation, task: Task) -> None:
    cancelled = await here.store.apply(Cancel(task.task_id, EVERYONE, "alice", None))
    assert cancelled is not None
    await here.look(cancelled)


async def test_the_tasks_of_a_key_go_one_after_the_other_in_the_order_of_submission(here: Installation) -> None:
    tasks = await here.submit_many(3)
    tasks.append(await here.submit())
    assert [task.stream and task.stream.position for task in tasks] == [0, 1, 2, 3]
    for at, task in enumerate(tasks):
        assert await here.statuses(*tasks) == [COMPLETED] * at + [QUEUED] + [BLOCKED] * (3 - at)
        await here.end(task)
    assert await here.statuses(*tasks) == [COMPLETED] * 4
    assert (await here.services.streams.status(KEY)).view() == {
        "key": KEY.key,
        "mode": "serial",
        "next_position": 4,
        "turn": None,
        "waiting": 0,
        "is_halted": False,
    }


async def test_a_task_with_the_id_of_a_deleted_one_passes_its_turn_on(here: Installation) -> None:
    """The version of a key that is submitted again after the retention has deleted its task has the same id."""
    first, second = await here.submit_many(2)
    deleted = first.evolve(
        status=COMPLETED, sequence=4, created_at=first.created_at - HOUR, stream=StreamPlace("other", "serial", 0)
    )
    await here.look(deleted)
    ended = await here.end(first)
    assert (ended.task_id, ended.sequence) == (deleted.task_id, deleted.sequence)
    assert await here.statuses(first, second) == [COMPLETED, QUEUED]


async def test_every_way_to_wait_keeps_the_turn(here: Installation) -> None:
    first, second = await here.submit_many(2)
    await here.release(first)
    assert await here.statuses(first, second) == [QUEUED, BLOCKED]
    await here.retry_later(first)
    await here.services.looks.turns.advance(KEY)
    assert await here.statuses(first, second) == [RETRYING, BLOCKED]
    other = await here.submit(stream={"key": "other"})
    assert await here.statuses(other) == [QUEUED], "another key does not wait"
    status = (await here.services.streams.status(KEY)).view()
    assert (status["turn"], status["waiting"]) == ({"task_id": first.task_id, "position": 0}, 1)


async def test_a_task_whose_time_has_not_come_holds_the_turn_until_then(here: Installation) -> None:
    later = here.store.now() + HOUR
    first, second = await here.submit(not_before=later), await here.submit()
    there = await here.get(first)
    assert (there.status, there.not_before, (await here.get(second)).status) == (QUEUED, later, BLOCKED)


async def test_a_blocked_task_has_a_driver_and_no_message(here: Installation) -> None:
    _, second = await here.submit_many(2)
    there = await here.get(second)
    assert (there.next_dispatch_at, missing_drivers(there)) == (None, [])
    assert there.unblock_at is not None


async def test_an_unreadable_task_keeps_its_turn_and_holds_up_no_other_stream(
    here: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    unreadable, second = await here.submit_many(2)
    other, after_other = await here.submit_many(2, stream={"key": "other"})
    read = here.store.get_many

    async def get_many(task_ids: Collection[str], scope: Scope) -> Mapping[str, Task]:
        if unreadable.task_id in task_ids:
            raise TaskUnreadableError(unreadable.task_id, "of a newer release")
        return await read(task_ids, scope)

    with monkeypatch.context() as patched:
        patched.setattr(here.store, "get_many", get_many)
        streams = (KEY, StreamKey(KEY.user_id, "other"))
        looks = await asyncio.gather(*map(here.services.looks.turns.advance, streams), return_exceptions=True)
    assert [type(look) for look in looks] == [TaskUnreadableError, NoneType]
    assert await here.statuses(unreadable, second, other, after_other) == [QUEUED, BLOCKED] * 2


async def test_a_record_that_cannot_be_read_holds_up_no_other_stream(here: Installation) -> None:
    """Somebody changed it by hand. The turns of streams whose tasks end at the same moment are passed on together."""
    first, second = await here.submit_many(2)
    other, after_other = await here.submit_many(2, stream={"key": "other"})
    ended = [await here.end(task, looks=False) for task in (first, other)]
    record = await read_record(here.store, KEY.record_id)
    assert record is not None
    [damaged] = await here.store.write_records([replace(record, data={**record.data, "turn": "a text"})])
    assert damaged is not None
    turns, streams = here.services.looks.turns, (KEY, StreamKey(KEY.user_id, "other"))
    passes = (turns.advance(stream, ended=task) for stream, task in zip(streams, ended, strict=True))
    looks = await asyncio.gather(*passes, return_exceptions=True)
    assert [type(look) for look in looks] == [RecordUnreadableError, NoneType]
    assert await here.statuses(second, after_other) == [BLOCKED, QUEUED]


async def test_a_blocked_task_may_be_cancelled_and_is_passed_over(here: Installation) -> None:
    first, second, third = await here.submit_many(3)
    await cancel(here, second)
    assert await here.statuses(first, second, third) == [QUEUED, CANCELLED, BLOCKED]
    await here.end(first)
    assert await here.statuses(third) == [QUEUED]


async def test_a_task_that_has_the_turn_may_be_cancelled(here: Installation) -> None:
    first, second = await here.submit_many(2)
    await cancel(here, first)
    assert await here.statuses(first, second) == [CANCELLED, QUEUED]


async def test_a_passed_deadline_lets_the_stream_continue_and_is_recorded_as_a_skip(here: Installation) -> None:
    deadline = here.store.now() + HOUR
    first, second, third = await here.submit(), await here.submit(stream={"deadline": deadline}), await here.submit()
    assert second.deadline == deadline
    here.clock.advance(2 * HOUR)
    expired = await here.services.moves.make(Expire(second.task_id))
    assert expired is not None
    assert [(entry.type, entry.sequence) for entry in expired.history] == [
        ("submitted", 1),
        ("skipped", 2),
        ("failed", 3),
    ]
    assert expired.history[1].data == {"stream": KEY.key, "position": 1}
    await here.end(first)
    assert await here.statuses(second, third) == [FAILED, QUEUED]


async def test_a_failure_lets_the_stream_go_on_or_halts_it_as_the_task_says(here: Installation) -> None:
    first, second, third = await here.submit(), await here.submit(stream={"on_failure": "halt"}), await here.submit()
    await here.end(first, fails=True)
    await here.end(second, fails=True)
    assert await here.statuses(first, second, third) == [FAILED, FAILED, BLOCKED]
    await repaired(here)
    status = (await here.services.streams.status(KEY)).view()
    assert (await here.statuses(third), status["is_halted"]) == ([BLOCKED], True)
    assert status["turn"] == {"task_id": second.task_id, "position": 1}


async def test_a_halted_stream_goes_on_with_the_replay_of_what_halted_it(here: Installation) -> None:
    first, second = await here.submit_many(2, stream={"on_failure": "halt"})
    await here.end(first, fails=True)
    replayed = await here.services.tasks.retry(first.task_id, EVERYONE, by="operator")
    await here.look(replayed)
    assert await here.statuses(first, second) == [QUEUED, BLOCKED]
    assert not (await here.stream()).is_halted
    await here.end(first)
    assert await here.statuses(first, second) == [COMPLETED, QUEUED]


async def test_a_halted_stream_is_let_go_on_without_what_halted_it(here: Installation) -> None:
    first, second = await here.submit_many(2, stream={"on_failure": "halt"})
    await here.end(first, fails=True)
    status = await here.services.streams.go_on(KEY)
    assert (await here.statuses(first, second), status.view()["is_halted"]) == ([FAILED, QUEUED], False)
    with pytest.raises(TransitionRefusedError, match="is not halted"):
        await here.services.streams.go_on(KEY)
    await here.look(await here.get(first))
    assert not (await here.stream()).is_halted, "a late word of the failure halts nothing"


RESUME_POINTS = ["stream.before_turn", "stream.after_turn"]


@pytest.mark.parametrize("point", RESUME_POINTS)
@pytest.mark.parametrize("position", [0, None])
async def test_letting_a_stream_go_on_may_be_repeated_if_it_failed_halfway(
    here: Installation, point: str, position: int | None
) -> None:
    first, second, third = await here.submit_many(3, stream={"on_failure": "halt"})
    await here.end(first, fails=True)
    with armed(point), pytest.raises(RuntimeError):
        await here.services.streams.go_on(KEY, position=position)
    assert await here.statuses(second, third) == [BLOCKED, BLOCKED]
    await here.services.streams.go_on(KEY, position=position)
    assert await here.statuses(second, third) == [QUEUED, BLOCKED]
    with pytest.raises(TransitionRefusedError, match="is not halted"):
        await here.services.streams.go_on(KEY, position=position)


@pytest.mark.parametrize("point", RESUME_POINTS)
async def test_a_repair_soon_finishes_what_a_dead_process_began_for_a_halted_stream(
    here: Installation, point: str
) -> None:
    first, second = await here.submit_many(2, stream={"on_failure": "halt"})
    await here.end(first, fails=True)
    here.clock.advance(timedelta(days=3))  # a repair looks at tasks that wait for days once in days
    await repaired(here)
    with armed(point), pytest.raises(RuntimeError):
        await here.services.streams.go_on(KEY)
    here.clock.advance(timedelta(seconds=11))
    await repair(here).run_once()
    await here.services.looks.finished()
    assert await here.statuses(second) == [QUEUED]


async def test_a_stream_stays_halted_after_the_task_that_halted_it_was_deleted(here: Installation) -> None:
    first, second = await here.submit_many(2, stream={"on_failure": "halt"})
    failed = await here.end(first, fails=True)
    await here.store.mark(MarkPublished(failed.task_id, failed.sequence))
    here.clock.advance(3 * HOUR)
    assert await here.store.purge(finished=HOUR, dead_letters=HOUR, limit=10) == 1
    third = await here.submit()
    await here.look(await here.get(second))
    assert await here.statuses(second, third) == [BLOCKED, BLOCKED]
    status = await here.services.streams.go_on(KEY, position=0)
    assert (await here.statuses(second, third), status.view()["is_halted"]) == ([QUEUED, BLOCKED], False)


async def test_a_stream_stays_halted_after_all_its_tasks_were_deleted(here: Installation) -> None:
    failed = await here.end(await here.submit(stream={"on_failure": "halt"}), fails=True)
    await here.store.mark(MarkPublished(failed.task_id, failed.sequence))
    repair = RetentionRepair(here.store, finished=HOUR, dead_letters=HOUR, idempotency_keys=HOUR, limit=10)
    for _ in range(3):
        here.clock.advance(3 * HOUR)
        await repair.purge()
    assert await here.store.get(failed.task_id, EVERYONE) is None
    later = await here.submit()
    assert await here.statuses(later) == [BLOCKED]
    await here.services.streams.go_on(KEY)
    assert await here.statuses(later) == [QUEUED]


async def test_a_submission_that_knows_only_of_the_halt_sees_that_the_stream_was_let_go_on(
    here: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    [first] = await here.submit_many(1, stream={"on_failure": "halt"})
    await here.end(first, fails=True)
    halted, looks = await here.stream(), here.services.looks
    assert halted.is_halted
    await here.services.streams.go_on(KEY)
    look_now = looks.look_now
    monkeypatch.setattr(looks, "look_now", lambda stream, _, tasks: look_now(stream, halted, tasks))
    [later] = await here.submit_many(1, stream={"on_failure": "halt"})
    assert await here.statuses(later) == [QUEUED]


async def test_a_halted_stream_goes_on_when_what_halted_it_is_discarded(here: Installation) -> None:
    first, second = await here.submit_many(2, stream={"on_failure": "halt"})
    await here.end(first, fails=True)
    await here.look(await here.services.tasks.discard(first.task_id, EVERYONE, by="operator", reason=None))
    assert await here.statuses(first, second) == [FAILED, QUEUED]
    assert not (await here.stream()).is_halted

    await here.end(second, fails=True)
    await here.look(await here.services.tasks.discard(second.task_id, EVERYONE, by="operator", reason=None))
    assert not (await here.stream()).is_halted, "nor does it halt where nobody waits"


async def test_a_process_may_die_between_a_discard_and_the_turn_of_the_next(here: Installation) -> None:
    first, second = await here.submit_many(2, stream={"on_failure": "halt"})
    await here.end(first, fails=True)
    await here.services.tasks.discard(first.task_id, EVERYONE, by="operator", reason=None)
    await repaired(here)
    assert await here.statuses(first, second) == [FAILED, QUEUED]


async def test_a_cancel_and_a_deadline_never_halt(here: Installation) -> None:
    halts = {"on_failure": "halt"}
    deadline = here.store.now() + HOUR
    first, second, third = (
        await here.submit(stream=halts),
        await here.submit(stream=halts, deadline=deadline),
        await here.submit(),
    )
    await cancel(here, first)
    here.clock.advance(2 * HOUR)
    expired = await here.services.moves.make(Expire(second.task_id))
    assert expired is not None
    await here.look(expired)
    assert await here.statuses(first, second, third) == [CANCELLED, FAILED, QUEUED]


@pytest.mark.parametrize("end", ["its worker dies", "its code fails on its own", "its worker hands it back"])
async def test_a_deadline_never_halts_however_a_running_task_then_ends(here: Installation, end: str) -> None:
    late = await here.submit(stream={"on_failure": "halt"}, deadline=here.store.now() + HOUR)
    after = await here.submit()
    fence = await here.begin(late)
    here.clock.advance(2 * HOUR)
    assert await here.services.moves.make(Expire(late.task_id)) is not None
    ends: dict[str, Move] = {
        "its worker dies": Reap(late.task_id, fence.fencing_token, None, 3, NO_TIME),
        "its code fails on its own": Fail(fence, "worker-1", make_error(), False, NO_TIME),
        "its worker hands it back": Release(fence, "worker-1"),
    }
    ended = await here.store.apply(ends[end])
    assert ended is not None
    await here.look(ended)
    assert await here.statuses(late, after) == [FAILED, QUEUED]
    assert not (await here.stream()).is_halted


async def test_a_replay_waits_at_its_old_position_and_comes_before_what_waits(here: Installation) -> None:
    first, second, third = await here.submit_many(3)
    await here.end(first, fails=True)
    replayed = await here.services.tasks.retry(first.task_id, EVERYONE, by="operator")
    await here.look(replayed)
    assert (replayed.status, await here.statuses(first, second, third)) == (BLOCKED, [BLOCKED, QUEUED, BLOCKED])
    await here.end(second)
    assert await here.statuses(first, third) == [QUEUED, BLOCKED]


async def test_a_task_is_let_go_in_the_generation_that_has_the_turn_only(here: Installation) -> None:
    _, second = await here.submit_many(2)
    assert await here.store.apply(Cancel(second.task_id, EVERYONE, "alice", None)) is not None
    assert await here.store.apply(Replay(second.task_id, EVERYONE, "alice", NO_TIME)) is not None
    assert await here.store.apply(Unblock(second.task_id, 0, NO_TIME)) is None
    assert await here.store.apply(Unblock(second.task_id, 1, NO_TIME)) is not None


@pytest.mark.parametrize(
    "point", ["stream.after_insert", "stream.before_turn", "stream.after_turn", "unblock.after_write"]
)
async def test_the_repair_continues_a_submission_whose_process_died(here: Installation, point: str) -> None:
    with armed(point), pytest.raises(RuntimeError):
        await here.services.submission.submit(here.request())
    second = await here.submit()
    await repaired(here)
    [first] = [task for task in await _all(here) if task.task_id != second.task_id]
    assert await here.statuses(first, second) == [QUEUED, BLOCKED]


async def test_a_position_whose_task_was_never_stored_is_passed_over(here: Installation) -> None:
    with armed("stream.after_position"), pytest.raises(RuntimeError):
        await here.services.submission.submit(here.request())
    task = await here.submit()
    assert ((await here.get(task)).status, task.stream and task.stream.position) == (QUEUED, 1)


@pytest.mark.parametrize("point", ["stream.before_turn", "stream.after_turn"])
async def test_the_next_look_passes_the_turn_if_a_process_died_after_an_end(here: Installation, point: str) -> None:
    first, second = await here.submit_many(2)
    with armed(point):
        ended = await here.end(first)
    assert await here.statuses(second) == [BLOCKED]
    await here.look(ended)
    assert await here.statuses(second) == [QUEUED]


async def test_an_end_that_nobody_saw_is_found_by_the_repair(here: Installation) -> None:
    first, second = await here.submit_many(2)
    await here.end(first, looks=False)
    await repaired(here)
    assert await here.statuses(second) == [QUEUED]


async def test_a_task_that_needs_no_look_is_reported_at_once(here: Installation) -> None:
    told: list[str] = []
    first, second = await here.submit_many(2)
    looks = here.services.looks
    looks.handle_task(await here.get(first), lambda: told.append("queued"))
    looks.handle_task(await here.get(second), lambda: told.append("blocked, seen to by its submission"))
    assert told == ["queued", "blocked, seen to by its submission"]
    other = StreamLooks(here.services.looks.turns)
    other.handle_task(await here.get(second), lambda: told.append("another process"))
    assert len(told) == 2
    await other.finished()
    assert told[2:] == ["another process"]


async def test_one_look_is_enough_for_two_requests_of_one_task(here: Installation) -> None:
    first, second = await here.submit_many(2)
    ended = await here.end(first, looks=False)
    told: list[int] = []
    looks = here.services.looks
    passed: list[None] = []

    async def passing() -> None:
        passed.append(None)
        looks.handle_task(ended, lambda: told.append(2))

    failpoint.arm("stream.before_turn", passing)
    looks.handle_task(ended, lambda: told.append(1))
    await looks.finished()
    assert (told, len(passed)) == ([1, 2], 1)
    assert await here.statuses(second) == [QUEUED]


async def test_a_task_that_is_blocked_for_long_is_looked_at_more_and_more_seldom(here: Installation) -> None:
    _, second = await here.submit_many(2)
    looks = 0
    for _ in range(7 * 24 * 60 // 10):
        here.clock.advance(timedelta(minutes=10))
        before = (await here.get(second)).unblock_at
        await repair(here).run_once()
        looks += (await here.get(second)).unblock_at != before
    assert looks < 20


async def test_one_of_many_concurrent_looks_passes_the_turn(here: Installation) -> None:
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    tasks = await here.submit_many(30)
    for task in tasks:
        ended = await here.end(task, looks=False)
        looks = [here.services.looks.turns.advance(KEY, ended=chance.choice([None, ended])) for _ in range(8)]
        await asyncio.gather(*looks)
        live = [status for status in await here.statuses(*tasks) if status in (QUEUED, RUNNING)]
        assert len(live) == (task is not tasks[-1]), f"seed {seed}"


async def test_a_stream_keeps_its_mode(here: Installation) -> None:
    await here.submit()
    with pytest.raises(StreamModeError, match="has the mode serial"):
        await here.submit(stream={"mode": "ordered_results"})


@pytest.mark.parametrize(
    "option",
    [
        {"idempotency_key": "k"},
        {"throttle": {"key": "k", "every": HOUR}},
        {"unique": {"key": "k", "version": 1}},
    ],
    ids=lambda option: next(iter(option)),
)
async def test_a_submission_that_finds_its_task_takes_no_position(here: Installation, option: dict[str, Any]) -> None:
    request = SubmitRequest(task_type="count-words", parameters={"text": "one"}, stream={"key": KEY.key}, **option)
    first, again = [(await here.services.submission.submit(request)).task for _ in range(2)]
    state = await here.stream()
    assert (again.task_id, state.next_position, state.skipped) == (first.task_id, 1, ())


async def test_a_submission_refused_for_its_mode_leaves_its_idempotency_key_free(here: Installation) -> None:
    await here.submit()
    with pytest.raises(StreamModeError):
        await here.submit(stream={"mode": "ordered_results"}, idempotency_key="k")
    corrected = await here.submit(idempotency_key="k")
    assert (await here.get(corrected)).idempotency_key == "k"


async def test_in_a_call_with_two_modes_only_those_of_the_other_mode_are_refused(here: Installation) -> None:
    async def refused(key: str, *modes: str) -> list[bool]:
        requests = [here.request(stream={"key": key, "mode": mode}) for mode in modes]
        outcomes = await here.services.submission.submit_many(requests)
        return [isinstance(outcome, StreamModeError) for outcome in outcomes]

    ordered = "ordered_results"
    assert await refused("new", "serial", ordered, "serial") == [False, True, False], "a new stream has the first mode"
    assert await refused("new", ordered, "serial", ordered) == [True, False, True]


async def test_contradicting_stream_options_are_refused(here: Installation) -> None:
    now = here.store.now()
    with pytest.raises(InvalidRequestError, match="on_failure halt"):
        await here.submit(stream={"mode": "ordered_results", "on_failure": "halt"})
    with pytest.raises(InvalidRequestError, match="combined with debounce"):
        await here.submit(debounce={"key": "k", "wait": "1s"})
    with pytest.raises(InvalidRequestError, match="its deadline differs"):
        await here.submit(stream={"deadline": now + HOUR}, deadline=now + 2 * HOUR)


async def test_a_repeated_submission_finds_its_task_and_takes_no_position(here: Installation) -> None:
    first = await here.submit(idempotency_key="k")
    [again] = await here.services.submission.submit_many([_again(first)])
    assert not isinstance(again, Exception)
    assert (again.is_new, again.task.task_id) == (False, first.task_id)
    with pytest.raises(IdempotencyConflictError):
        await here.submit(idempotency_key="k")
    assert (await here.stream()).next_position == 1


async def test_the_position_of_a_second_submission_with_one_key_is_given_up(
    here: Installation,
) -> None:
    requests = [here.request(idempotency_key="k")] * 2
    await asyncio.gather(*(here.services.submission.submit(request) for request in requests))
    stream = await here.stream()
    [task] = await _all(here)
    assert task.stream is not None
    free = set(range(stream.next_position)) - {task.stream.position}
    assert all(stream.has_skipped(position) for position in free)


async def test_an_older_version_that_waits_for_its_turn_ends(here: Installation) -> None:
    blocking = await here.submit()
    older = await here.submit(unique={"key": "page", "version": 1})
    newer = await here.submit(unique={"key": "page", "version": 2})
    assert await here.statuses(blocking, older, newer) == [QUEUED, CANCELLED, BLOCKED]


async def test_a_stream_is_forgotten_when_no_task_of_it_is_stored(here: Installation) -> None:
    retention = RetentionRepair(here.store, finished=5 * HOUR, dead_letters=HOUR, idempotency_keys=HOUR, limit=100)
    ended = await here.end(await here.submit())
    await here.store.mark(MarkPublished(ended.task_id, ended.sequence))
    here.clock.advance(4 * HOUR)
    await retention.purge()
    assert (await here.submit()).stream == StreamPlace(KEY.key, "serial", 1), "its task is there still"
    for task in await _all(here):
        there = await here.get(task)
        there = there if there.status.is_final else await here.end(task)
        await here.store.mark(MarkPublished(there.task_id, there.sequence))
    for _ in range(3):
        here.clock.advance(6 * HOUR)
        await retention.purge()
    assert await here.store.read_records([KEY.record_id]) == {}


def _again(task: Task) -> SubmitRequest:
    return SubmitRequest(
        task_type="count-words", parameters=task.parameters, stream={"key": KEY.key}, idempotency_key="k"
    )


async def _all(here: Installation) -> list[Task]:
    return list((await here.store.list_tasks(EVERYONE, TaskFilter(), limit=100)).items)
