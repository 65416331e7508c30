"""The heartbeat: leases are kept, losses and cancels come back, and a silent store ends attempts before their lease."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from taskframework import background
from taskframework.errors import StoreError, StoreUnavailableError
from taskframework.model.events import TaskCancelRequestedEvent
from taskframework.model.task_fields import CancelRequest, Lease
from taskframework.model.transitions import Fence
from taskframework.stores.base import TaskStore
from taskframework.testing.clock import FakeClock
from taskframework.testing.eventually import eventually
from taskframework.testing.factories import new_task
from taskframework.worker.attempt import RunningAttempt, StopReason
from taskframework.worker.heartbeat import Heartbeat

LEASE = timedelta(seconds=30)


class Renewals:
    """Answers as told."""

    def __init__(self) -> None:
        self.lease = LEASE
        #: Ids of tasks, or of claims.
        self.lost: set[str] = set()
        self.cancelled: set[str] = set()
        #: What a renewal or a look does instead of answering.
        self.renewal_ends: BaseException | None = None
        self.look_ends: BaseException | None = None
        self.hangs = asyncio.Event()
        #: The tasks that each renewal and each look asked for.
        self.renewed: list[list[str]] = []
        self.looked: list[list[str]] = []

    async def renew(self, fences: Sequence[Fence], lease: timedelta) -> dict[Fence, CancelRequest | None]:
        assert lease == self.lease
        self.renewed.append([fence.task_id for fence in fences])
        await self._fail(self.renewal_ends)
        return {
            fence: self._cancel() if fence.task_id in self.cancelled else None
            for fence in fences
            if not self.lost & {fence.task_id, fence.claim_id}
        }

    async def cancel_requests(self, fences: Sequence[Fence]) -> dict[Fence, CancelRequest]:
        self.looked.append([fence.task_id for fence in fences])
        await self._fail(self.look_ends)
        return {fence: self._cancel() for fence in fences if fence.task_id in self.cancelled}

    async def _fail(self, error: BaseException | None) -> None:
        if error is HANGING:
            await self.hangs.wait()
        elif error is not None:
            raise error

    @staticmethod
    def _cancel() -> CancelRequest:
        return CancelRequest("ada", datetime.now(UTC), None)


HANGING = TimeoutError()
AWAY = StoreUnavailableError()


@pytest.fixture
def store() -> Renewals:
    return Renewals()


@pytest.fixture
def heartbeat(store: Renewals, clock: FakeClock) -> Heartbeat:
    return Heartbeat(cast(TaskStore, store), clock, LEASE)


@asynccontextmanager
async def beating(heartbeat: Heartbeat) -> AsyncIterator[asyncio.Task[None]]:
    run = asyncio.create_task(heartbeat.run())
    await settled()
    yield run
    assert not run.done(), "nothing ends a heartbeat"
    run.cancel()
    await asyncio.wait([run])


async def settled() -> None:
    """Let everybody run who was woken."""
    for _ in range(10):
        await asyncio.sleep(0)


async def live(clock: FakeClock, seconds: float) -> None:
    """Let time pass as it does for a process that runs."""
    end = clock.monotonic() + seconds
    while clock.monotonic() < end:
        clock.advance(0.25)
        await settled()


def attempt(heartbeat: Heartbeat, clock: FakeClock, *, lease: float = LEASE.total_seconds()) -> RunningAttempt:
    """An attempt under way, whose lease ends after so many seconds."""
    task = new_task()
    running = RunningAttempt(task, Fence(task.task_id, 1, f"claim-{task.task_id}"), clock.monotonic() + lease)
    heartbeat.add(running)
    return running


def _nothing() -> None:
    pass


async def test_all_attempts_of_the_worker_are_renewed_in_one_call(
    heartbeat: Heartbeat, store: Renewals, clock: FakeClock
) -> None:
    attempts = [attempt(heartbeat, clock) for _ in range(5)]
    assert await heartbeat.beat()
    assert store.renewed == [[running.task.task_id for running in attempts]]
    assert [running.stop_reason for running in attempts] == [None] * 5


async def test_without_attempts_the_store_is_left_alone(
    heartbeat: Heartbeat, store: Renewals, clock: FakeClock
) -> None:
    async with beating(heartbeat):
        await live(clock, 60)
    assert (store.renewed, store.looked) == ([], [])


async def test_an_attempt_that_is_done_is_neither_renewed_nor_asked_about_nor_stopped(
    heartbeat: Heartbeat, store: Renewals, clock: FakeClock
) -> None:
    done, running = attempt(heartbeat, clock), attempt(heartbeat, clock)
    heartbeat.remove(done)
    heartbeat.remove(done)
    await heartbeat.beat()
    await heartbeat.look_for_cancels()
    heartbeat.release_all()
    assert store.renewed == store.looked == [[running.task.task_id]]
    assert heartbeat.attempts == (running,)
    assert (done.stop_reason, running.stop_reason) == (None, StopReason.RELEASED)


async def test_only_the_newer_of_two_attempts_of_one_task_continues(
    heartbeat: Heartbeat, store: Renewals, clock: FakeClock
) -> None:
    newer = attempt(heartbeat, clock)
    older = RunningAttempt(newer.task, Fence(newer.task.task_id, 0, "older"), clock.monotonic() + LEASE.total_seconds())
    heartbeat.add(older)
    store.lost = {"older"}
    assert await heartbeat.beat()
    assert (older.stop_reason, newer.stop_reason) == (StopReason.LEASE_LOST, None)


async def test_an_attempt_that_ends_while_its_lease_is_renewed_lost_nothing(
    heartbeat: Heartbeat, store: Renewals, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    running = attempt(heartbeat, clock)
    store.renewal_ends, store.lost = HANGING, {running.task.task_id}
    beat = asyncio.create_task(heartbeat.beat())
    await settled()
    heartbeat.remove(running)  # settled meanwhile, which is why the store knows no lease
    store.hangs.set()
    assert await beat
    assert running.stop_reason is None
    assert caplog.messages == []


async def test_a_cancel_in_the_same_process_stops_the_attempt_under_its_claim_at_once(
    heartbeat: Heartbeat, store: Renewals, clock: FakeClock
) -> None:
    running, other = attempt(heartbeat, clock), attempt(heartbeat, clock)
    lease = Lease("worker", running.fence.claim_id, datetime.now(UTC))
    elsewhere = Lease("another", "another claim", datetime.now(UTC))
    cancel = CancelRequest("ada", datetime.now(UTC), None)
    stopped = []
    for held in (None, elsewhere, lease):
        heartbeat.on_cancel_requested(TaskCancelRequestedEvent(running.task.evolve(lease=held, cancel=cancel)))
        stopped.append((running.stop_reason, running.cancel))
    assert stopped == [(None, None), (None, None), (StopReason.CANCELLED, cancel)]
    assert other.stop_reason is None
    assert store.looked == []


@pytest.mark.parametrize(("trouble", "is_told"), [(AWAY, True), (HANGING, True), (StoreError("refused"), False)])
async def test_the_consumer_hears_of_a_store_that_is_away(
    store: Renewals, clock: FakeClock, trouble: Exception, is_told: bool
) -> None:
    told: list[StoreUnavailableError] = []
    store.lease = timedelta(milliseconds=30)  # a third of it is waited for
    heartbeat = Heartbeat(cast(TaskStore, store), clock, store.lease, told.append)
    attempt(heartbeat, clock)
    assert await heartbeat.beat()
    store.renewal_ends = trouble
    assert not await heartbeat.beat()
    assert bool(told) is is_told


async def test_the_heartbeat_beats_four_times_as_often_after_a_failed_renewal(
    heartbeat: Heartbeat, store: Renewals, clock: FakeClock
) -> None:
    attempt(heartbeat, clock)
    store.renewal_ends = AWAY
    async with beating(heartbeat):
        await live(clock, 10)
        assert len(store.renewed) == 1
        await live(clock, 2.5)
        assert len(store.renewed) == 2
        store.renewal_ends = None
        await live(clock, 2.5)
        assert len(store.renewed) == 3
        await live(clock, 9.75)
        assert len(store.renewed) == 3
        await live(clock, 0.25)
        assert len(store.renewed) == 4


async def test_a_lost_lease_and_a_cancel_stop_only_their_attempts(
    heartbeat: Heartbeat, store: Renewals, clock: FakeClock
) -> None:
    lost, cancelled, fine = (attempt(heartbeat, clock) for _ in range(3))
    store.lost, store.cancelled = {lost.task.task_id}, {cancelled.task.task_id}
    await heartbeat.beat()
    assert (lost.stop_reason, cancelled.stop_reason, fine.stop_reason) == (
        StopReason.LEASE_LOST,
        StopReason.CANCELLED,
        None,
    )
    assert cancelled.cancel is not None


async def test_the_heartbeat_beats_three_times_a_lease(heartbeat: Heartbeat, store: Renewals, clock: FakeClock) -> None:
    attempt(heartbeat, clock)
    async with beating(heartbeat):
        for beats in range(1, 4):
            await live(clock, 9.5)
            assert len(store.renewed) == beats - 1
            await live(clock, 0.5)
            assert len(store.renewed) == beats


@pytest.mark.parametrize("trouble", [AWAY, HANGING, ValueError("a bug")], ids=repr)
@pytest.mark.parametrize("claimed_after", range(3, 30, 3))
async def test_a_store_that_does_not_answer_ends_attempts_before_their_lease_does(
    heartbeat: Heartbeat, store: Renewals, clock: FakeClock, trouble: Exception, claimed_after: int
) -> None:
    renewed = attempt(heartbeat, clock)
    async with beating(heartbeat):
        await live(clock, claimed_after)
        claimed = attempt(heartbeat, clock)
        store.renewal_ends = trouble
        for running in sorted((renewed, claimed), key=lambda running: running.lease_ends):
            await live(clock, running.lease_ends - clock.monotonic() - 6.5)
            assert running.stop_reason is None, "the lease has time left"
            await live(clock, 2)
            assert running.stop_reason is StopReason.LEASE_LOST
            assert clock.monotonic() < running.lease_ends, "stopped before anybody else may start"


async def test_a_renewal_gives_the_attempt_a_whole_lease_again(
    heartbeat: Heartbeat, store: Renewals, clock: FakeClock
) -> None:
    running = attempt(heartbeat, clock)
    async with beating(heartbeat):
        await live(clock, 20)
        store.renewal_ends = AWAY
        await live(clock, 24)
        assert running.stop_reason is None
        await live(clock, 2)
        assert running.stop_reason is StopReason.LEASE_LOST


async def test_a_lease_that_was_given_up_is_not_renewed_when_the_store_is_back(
    heartbeat: Heartbeat, store: Renewals, clock: FakeClock
) -> None:
    given_up = attempt(heartbeat, clock, lease=6)
    kept = attempt(heartbeat, clock)
    async with beating(heartbeat):
        store.renewal_ends = AWAY
        await live(clock, 5)
        assert given_up.stop_reason is StopReason.LEASE_LOST
        store.renewal_ends = None
        await live(clock, 5)
    assert store.renewed == [[kept.task.task_id]], "its reaper need not wait for another lease"


async def test_a_process_that_was_stopped_beyond_a_lease_gives_it_up_first_of_all(
    heartbeat: Heartbeat, store: Renewals, clock: FakeClock
) -> None:
    running = attempt(heartbeat, clock)
    async with beating(heartbeat):
        await live(clock, 3)
        clock.advance(60)
        await settled()
        assert running.stop_reason is StopReason.LEASE_LOST
    assert store.renewed == []


async def test_a_beat_after_a_stop_gives_up_what_is_over_and_renews_the_rest(
    heartbeat: Heartbeat, store: Renewals, clock: FakeClock
) -> None:
    over = attempt(heartbeat, clock, lease=10)
    held = attempt(heartbeat, clock, lease=20)
    clock.advance(10)
    assert await heartbeat.beat()
    assert over.stop_reason is StopReason.LEASE_LOST
    assert store.renewed == [[held.task.task_id]]


async def test_a_process_that_was_stopped_for_less_than_a_lease_may_still_renew_it(
    heartbeat: Heartbeat, store: Renewals, clock: FakeClock
) -> None:
    running = attempt(heartbeat, clock)
    async with beating(heartbeat):
        await live(clock, 3)
        clock.advance(25)  # where a process that runs would have fenced itself long ago
        await settled()
        await live(clock, 3)
        assert running.stop_reason is None
        assert clock.monotonic() > LEASE.total_seconds()


async def test_an_attempt_that_begins_after_its_lease_never_runs(heartbeat: Heartbeat, clock: FakeClock) -> None:
    running = attempt(heartbeat, clock, lease=-1)
    code = asyncio.create_task(asyncio.Event().wait())
    running.attach(cast("asyncio.Task[Any]", code), on_given_up=_nothing)
    await asyncio.wait([code])
    assert code.cancelled()


async def test_code_that_has_ended_is_not_stopped(
    heartbeat: Heartbeat, store: Renewals, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    running = attempt(heartbeat, clock)
    code = asyncio.create_task(asyncio.sleep(0))
    running.attach(code, on_given_up=_nothing)
    await code
    store.lost = {running.task.task_id}  # its settlement is in the store and the reply under way
    await heartbeat.beat()
    assert running.stop_reason is None
    assert caplog.messages == []


async def test_a_cancel_by_another_process_is_found_within_a_second(
    heartbeat: Heartbeat, store: Renewals, clock: FakeClock
) -> None:
    cancelled, fine = attempt(heartbeat, clock), attempt(heartbeat, clock)
    async with beating(heartbeat):
        await live(clock, 3)
        store.cancelled = {cancelled.task.task_id}
        await live(clock, 1)
        assert (cancelled.stop_reason, fine.stop_reason) == (StopReason.CANCELLED, None)
        assert cancelled.cancel is not None
        await live(clock, 1)
    both = [cancelled.task.task_id, fine.task.task_id]
    assert store.looked == [both, both, both, both, [fine.task.task_id]], "one look a second, for who may need it"
    assert store.renewed == []


@pytest.mark.parametrize("trouble", [AWAY, HANGING, ValueError("a bug")], ids=repr)
async def test_a_look_that_fails_delays_nothing(
    heartbeat: Heartbeat, store: Renewals, clock: FakeClock, trouble: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    running = attempt(heartbeat, clock)
    store.look_ends = trouble
    async with beating(heartbeat):
        await live(clock, 20)
        assert len(store.renewed) == 2
        assert bool(caplog.messages) == isinstance(trouble, ValueError), "of a store that is away the beat tells"
        store.renewal_ends = AWAY
        await live(clock, 25)
        assert running.stop_reason is StopReason.LEASE_LOST
        assert len(store.looked) == (1 if trouble is HANGING else 45), "one that hangs is not followed by more of them"


async def test_a_cancellation_out_of_the_store_does_not_end_the_heartbeat(
    heartbeat: Heartbeat, store: Renewals, clock: FakeClock
) -> None:
    running = attempt(heartbeat, clock)
    async with beating(heartbeat):
        store.renewal_ends = store.look_ends = asyncio.CancelledError()
        await live(clock, 11)
        store.renewal_ends = None
        await live(clock, 60)
        assert running.stop_reason is None


async def test_a_renewal_that_loses_a_cancellation_does_not_keep_the_heartbeat_alive(
    heartbeat: Heartbeat, store: Renewals, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def renew(*_: object) -> dict[Fence, CancelRequest | None]:
        store.renewed.append([])
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return {}
        raise AssertionError

    monkeypatch.setattr(store, "renew", renew)
    monkeypatch.setattr(background, "_CANCEL_INTERVAL_SECONDS", 0.001)
    attempt(heartbeat, clock)
    run = asyncio.create_task(heartbeat.run())
    await settled()
    await live(clock, LEASE.total_seconds() / 3)
    assert store.renewed, "the renewal is under way"
    ending = asyncio.create_task(background.end(run))
    await eventually(ending.done)
    assert run.cancelled()
    assert asyncio.all_tasks() == {asyncio.current_task()}, "a loop runs on without the others"


async def test_a_second_request_to_stop_does_not_tear_the_clean_up(
    heartbeat: Heartbeat, store: Renewals, clock: FakeClock
) -> None:
    running = attempt(heartbeat, clock)
    cleaned_up = asyncio.Event()

    async def code() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            await cleaned_up.wait()

    run = asyncio.create_task(code())
    await settled()
    running.attach(run, on_given_up=_nothing)
    store.cancelled = {running.task.task_id}
    await heartbeat.look_for_cancels()
    await settled()
    await heartbeat.beat()
    heartbeat.release_all()
    await settled()
    assert not run.done()
    assert running.stop_reason is StopReason.CANCELLED
    heartbeat.remove(running)
    cleaned_up.set()
    await asyncio.wait([run])


async def test_an_attempt_claimed_after_the_grace_is_released_before_it_begins(
    heartbeat: Heartbeat, clock: FakeClock
) -> None:
    heartbeat.release_all()
    late = attempt(heartbeat, clock)
    assert late.stop_reason is StopReason.RELEASED
