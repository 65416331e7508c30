"""The claim: the attempt knows its lease even when a reply was lost, and other messages come to their right end."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from taskframework.bus import EventBus
from taskframework.errors import StoreUnavailableError, TaskUnreadableError
from taskframework.model.attempts import TakenSlot
from taskframework.model.events import TaskEvent
from taskframework.model.message import TaskMessage
from taskframework.model.scope import EVERYONE, Scope
from taskframework.model.status import TaskStatus
from taskframework.model.task import Task
from taskframework.model.task_fields import CancelRequest, Lease
from taskframework.model.transitions import Transition
from taskframework.moves import TaskMoves
from taskframework.stores.sqlite import SqliteStore
from taskframework.testing.clock import FakeClock
from taskframework.testing.conformance.store_suite import insert_one
from taskframework.testing.eventually import eventually
from taskframework.testing.factories import new_task
from taskframework.worker.admission import PutOff
from taskframework.worker.attempt import RunningAttempt
from taskframework.worker.claim import ClaimPolicy, ClaimStation, Refusal

LEASE = timedelta(seconds=30)


class Forgetful(SqliteStore):
    """Loses the reply to what it did, when told."""

    loses_reply = False
    #: How long the answer to the next claim takes.
    seconds_of_answer = 0.0
    #: Answers a claim that an earlier asking made, as MongoDB's groups do.
    answers_again = False

    async def apply(self, transition: Transition) -> Task | None:
        task = await super().apply(transition)
        assert isinstance(self._clock, FakeClock)
        self._clock.advance(self.seconds_of_answer)
        self.seconds_of_answer = 0.0
        if task is None and self.answers_again:
            task = await self.get(transition.task_id, EVERYONE)
        if self.loses_reply:
            raise StoreUnavailableError
        return task


@pytest.fixture
async def store(tmp_path: Path, clock: FakeClock) -> AsyncIterator[Forgetful]:
    store = Forgetful(tmp_path / "tasks.db", clock=clock)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def events() -> list[str]:
    return []


@pytest.fixture
def station(store: Forgetful, clock: FakeClock, events: list[str]) -> ClaimStation:
    """A worker that knows every type but those of tomorrow."""
    bus = EventBus()
    bus.listen(TaskEvent, lambda event: events.append(type(event).__name__), name="events")
    policy = ClaimPolicy(LEASE, timedelta(seconds=30), 2)
    moves = TaskMoves(store, bus)
    return ClaimStation(store, moves, clock, "worker", policy, lambda task_type: task_type != "of-tomorrow")


@pytest.mark.parametrize("answers_again", [False, True])
@pytest.mark.parametrize("lost_for", [None, 0, 20, 40])
async def test_a_lease_ends_when_the_store_says(
    store: Forgetful, station: ClaimStation, clock: FakeClock, lost_for: float | None, answers_again: bool
) -> None:
    store.answers_again = answers_again
    task = (await insert_one(store, new_task(now=clock.now()))).task
    claim = station.request(TaskMessage.for_task(task))
    ends = clock.monotonic() + LEASE.total_seconds()
    if lost_for is not None:
        store.loses_reply = True
        with pytest.raises(StoreUnavailableError):
            await station.claim(claim)
        clock.advance(lost_for)
        store.loses_reply = False
    attempt = await station.claim(claim, is_repeated=lost_for is not None)
    assert isinstance(attempt, RunningAttempt)
    assert attempt.task.fencing_token == 1
    assert attempt.lease_ends == pytest.approx(ends)


async def test_a_claim_that_was_not_made_the_first_time_has_a_whole_lease(
    store: Forgetful, station: ClaimStation, clock: FakeClock
) -> None:
    task = (await insert_one(store, new_task(now=clock.now()))).task
    claim = station.request(TaskMessage.for_task(task))
    clock.advance(60)
    attempt = await station.claim(claim, is_repeated=True)
    assert isinstance(attempt, RunningAttempt)
    assert attempt.lease_ends == pytest.approx(clock.monotonic() + LEASE.total_seconds())


def message_of(task: Task, **changes: Any) -> TaskMessage:
    """The task's message, or one that says something else."""
    return replace(TaskMessage.for_task(task), **changes)


async def asked(station: ClaimStation, message: TaskMessage) -> RunningAttempt | Refusal:
    return await station.claim(station.request(message))


async def test_a_message_without_a_task_is_refused_as_without_document(
    store: Forgetful, station: ClaimStation, clock: FakeClock
) -> None:
    message = TaskMessage.for_task(new_task(now=clock.now()))
    assert await asked(station, message) is Refusal.NO_DOCUMENT
    assert await station.hand_over(message, PutOff(timedelta(0))) is Refusal.NO_DOCUMENT
    assert await asked(station, replace(message, task_type="of-tomorrow")) is Refusal.NO_DOCUMENT


@pytest.mark.parametrize(
    "why_not",
    [
        {"dispatch_epoch": 2},
        {"cancel": CancelRequest("ada", datetime(2026, 1, 1, tzinfo=UTC), None)},
        {"status": TaskStatus.RUNNING, "lease": Lease("another", "its claim", datetime(2100, 1, 1, tzinfo=UTC))},
        {"status": TaskStatus.COMPLETED},
        {"not_before": timedelta(minutes=1)},
        {"not_before": timedelta(seconds=1)},
    ],
    ids=lambda why: next(iter(why)),
)
@pytest.mark.parametrize("is_early", [True, False])
async def test_a_task_that_cannot_be_claimed_is_neither_waited_for_nor_changed(
    store: Forgetful, station: ClaimStation, clock: FakeClock, why_not: dict[str, Any], is_early: bool
) -> None:
    early = timedelta(milliseconds=200 if is_early else -200)
    later = why_not.get("not_before", early)
    task = new_task(now=clock.now()).evolve(**{**why_not, "not_before": clock.now() + later})
    there = (await insert_one(store, task)).task
    assert await asked(station, message_of(there, dispatch_epoch=1)) is Refusal.NOT_NEEDED
    assert await store.get(task.task_id, EVERYONE) == there
    assert clock.monotonic() == 0


@pytest.mark.parametrize("milliseconds", [1, 500, 995])
async def test_a_message_that_is_a_little_early_is_claimed_in_time(
    store: Forgetful, station: ClaimStation, clock: FakeClock, milliseconds: int
) -> None:
    due = clock.now() + timedelta(milliseconds=milliseconds)
    task = (await insert_one(store, new_task(now=clock.now(), not_before=due))).task
    claiming = asyncio.create_task(asked(station, message_of(task)))
    await eventually(lambda: clock.sleeping == 1)
    clock.advance(timedelta(milliseconds=milliseconds + 5))
    assert isinstance(await claiming, RunningAttempt)


@pytest.mark.parametrize("seconds_of_answer", [0.4, 0.5, 30])
async def test_a_task_that_becomes_due_while_its_claim_is_refused_is_claimed(
    store: Forgetful, station: ClaimStation, clock: FakeClock, seconds_of_answer: float
) -> None:
    """On a busy machine the answer came after the time of the task, and its message was dropped."""
    due = clock.now() + timedelta(milliseconds=400)
    task = (await insert_one(store, new_task(now=clock.now(), not_before=due))).task
    store.seconds_of_answer = seconds_of_answer
    claiming = asyncio.create_task(asked(station, message_of(task)))
    await eventually(lambda: clock.sleeping == 1 or claiming.done())
    clock.advance(0.005)
    assert isinstance(await claiming, RunningAttempt)


@pytest.mark.parametrize(("ahead", "outcome"), [(0.3, RunningAttempt), (0.5, Refusal)])
async def test_a_claim_is_asked_for_again_if_the_clock_of_the_store_is_behind_its_estimate(
    store: Forgetful,
    station: ClaimStation,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
    ahead: float,
    outcome: type[object],
) -> None:
    task = (await insert_one(store, new_task(now=clock.now(), not_before=clock.now() + timedelta(seconds=ahead)))).task
    monkeypatch.setattr(store, "now", lambda: clock.now() + timedelta(seconds=ahead + 0.005))
    claiming = asyncio.create_task(asked(station, message_of(task)))
    for pause in (0.0, 0.01, 0.05, 0.25):
        await eventually(lambda: clock.sleeping == 1 or claiming.done())
        clock.advance(pause)
    assert isinstance(await claiming, outcome)


async def test_a_claim_that_came_too_late_for_the_deadline_is_not_asked_for_again(
    store: Forgetful, station: ClaimStation, clock: FakeClock
) -> None:
    due = clock.now() + timedelta(milliseconds=400)
    deadline = due + timedelta(milliseconds=100)
    task = (await insert_one(store, new_task(now=clock.now(), not_before=due, deadline=deadline))).task
    store.seconds_of_answer = 0.6
    assert await asked(station, message_of(task)) is Refusal.NOT_NEEDED
    assert clock.monotonic() == 0.6


async def test_a_message_of_another_type_is_not_waited_for(
    store: Forgetful, station: ClaimStation, clock: FakeClock
) -> None:
    due = clock.now() + timedelta(milliseconds=100)
    task = (await insert_one(store, new_task(now=clock.now(), not_before=due))).task
    assert await asked(station, message_of(task, task_type="other")) is Refusal.NOT_NEEDED


@pytest.mark.parametrize(
    ("foreign", "epoch", "refusal", "postponed"),
    [
        ({"schema_version": 99}, 1, Refusal.NOT_OURS, 1),
        ({"task_type": "of-tomorrow"}, 1, Refusal.NOT_OURS, 1),
        ({"task_type": "of-tomorrow"}, 2, Refusal.NOT_NEEDED, 0),
        ({"task_type": "of-tomorrow", "status": TaskStatus.COMPLETED}, 1, Refusal.NOT_NEEDED, 0),
    ],
)
async def test_a_task_that_waits_for_a_newer_worker_is_postponed(
    store: Forgetful,
    station: ClaimStation,
    clock: FakeClock,
    foreign: dict[str, Any],
    epoch: int,
    refusal: Refusal,
    postponed: int,
) -> None:
    task = (await insert_one(store, new_task(now=clock.now()).evolve(**foreign))).task
    clock.advance(1)
    assert await asked(station, message_of(task, task_type="test-task", dispatch_epoch=epoch)) is refusal
    after = await store.get(task.task_id, EVERYONE)
    assert after is not None
    assert (after.status, after.no_handler, after.attempts) == (task.status, postponed, 0)


@pytest.mark.parametrize("task_type", ["count-words", "of-tomorrow"])
async def test_a_task_that_only_a_newer_release_can_read_is_marked_as_unread(
    store: Forgetful, station: ClaimStation, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, task_type: str
) -> None:
    async def unreadable(task_id: str, scope: Scope) -> None:
        raise TaskUnreadableError(task_id, "a status of tomorrow")

    task = (await insert_one(store, new_task(now=clock.now(), task_type=task_type).evolve(schema_version=99))).task
    with monkeypatch.context() as patch:
        patch.setattr(store, "get", unreadable)
        assert await asked(station, message_of(task)) is Refusal.NOT_OURS
        assert await station.hand_over(message_of(task, dispatch_epoch=2), PutOff(timedelta(0))) is Refusal.NOT_OURS
    after = await store.get(task.task_id, EVERYONE)
    assert after is not None
    assert (after.no_handler, after.next_dispatch_at) == (1, clock.now() + timedelta(seconds=30))


@pytest.mark.parametrize("task_type", ["count-words", "of-tomorrow"])
async def test_a_damaged_task_is_left_as_it_is(
    store: Forgetful, station: ClaimStation, clock: FakeClock, tmp_path: Path, task_type: str
) -> None:
    task = (await insert_one(store, new_task(now=clock.now(), task_type=task_type))).task
    with contextlib.closing(sqlite3.connect(tmp_path / "tasks.db", isolation_level=None)) as raw:
        raw.execute("UPDATE tasks SET document = '{}'")
        before = raw.execute("SELECT * FROM tasks").fetchall()
        assert await asked(station, message_of(task)) is Refusal.NOT_OURS
        assert await station.hand_over(message_of(task), PutOff(timedelta(0))) is Refusal.NOT_OURS
        assert raw.execute("SELECT * FROM tasks").fetchall() == before


async def test_an_old_message_of_a_type_that_nobody_runs_changes_nothing(
    store: Forgetful, station: ClaimStation, clock: FakeClock, events: list[str]
) -> None:
    task = (await insert_one(store, new_task(now=clock.now()))).task
    assert await asked(station, message_of(task, task_type="of-tomorrow", dispatch_epoch=2)) is Refusal.NOT_OURS
    assert (await store.get(task.task_id, EVERYONE), events) == (task, [])


async def test_a_task_whose_type_nobody_runs_for_too_long_becomes_a_dead_letter(
    store: Forgetful, station: ClaimStation, clock: FakeClock, events: list[str]
) -> None:
    task = (await insert_one(store, new_task(now=clock.now()))).task
    for _ in range(3):
        assert events == []
        assert await asked(station, message_of(task, task_type="of-tomorrow")) is Refusal.NOT_OURS
        clock.advance(30)
        present = await store.get(task.task_id, EVERYONE)
        assert present is not None
        task = present
    assert task.status is TaskStatus.DEAD_LETTER
    assert events == ["TaskFailedEvent"]


@pytest.mark.parametrize(("until", "seconds"), [(0, 0), (5, 5), ("in an hour", 3600), ("an hour ago", 0)])
async def test_a_task_that_is_handed_over_is_due_for_the_sweeper(
    store: Forgetful, station: ClaimStation, clock: FakeClock, until: int | str, seconds: int
) -> None:
    task = (await insert_one(store, new_task(now=clock.now(), next_dispatch_at=clock.now() + timedelta(hours=1)))).task
    hour = timedelta(hours=1 if until == "in an hour" else -1)
    put_off = PutOff(timedelta(seconds=until) if isinstance(until, int) else clock.now() + hour)
    assert await station.hand_over(message_of(task), put_off) is Refusal.NOT_OURS
    after = await store.get(task.task_id, EVERYONE)
    assert after is not None
    assert after.next_dispatch_at == clock.now() + timedelta(seconds=seconds)
    assert after.status is TaskStatus.QUEUED


@pytest.mark.parametrize(
    "condition",
    [{"slot": TakenSlot("slots/resize", datetime(2000, 1, 1, tzinfo=UTC))}, {"parameters_hash": "of others"}],
    ids=["its slot is over", "its parameters were replaced"],
)
async def test_a_claim_that_a_limit_let_through_too_early_leaves_the_task_due_at_once(
    store: Forgetful, station: ClaimStation, clock: FakeClock, condition: dict[str, Any]
) -> None:
    """The message is acknowledged, so that nothing else would bring it before the sweeper's own time."""
    task = (await insert_one(store, new_task(now=clock.now(), next_dispatch_at=clock.now() + timedelta(hours=1)))).task
    claim = replace(station.request(message_of(task)), **condition)
    assert await station.claim(claim) is Refusal.NOT_OURS
    after = await store.get(task.task_id, EVERYONE)
    assert after is not None
    assert (after.status, after.next_dispatch_at) == (TaskStatus.QUEUED, clock.now())
