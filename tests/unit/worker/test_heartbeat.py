"""The heartbeat: leases are kept, losses and cancels come back, and a silent store ends attempts before their lease."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import cast

import pytest

from taskframework.errors import StoreUnavailableError
from taskframework.model.task import CancelRequest
from taskframework.model.transitions import Fence
from taskframework.stores.base import Renewal, TaskStore
from taskframework.testing.clock import FakeClock
from taskframework.testing.eventually import eventually
from taskframework.testing.factories import new_task
from taskframework.worker.attempt import RunningAttempt, StopReason
from taskframework.worker.heartbeat import Heartbeat

LEASE = timedelta(seconds=30)


class Renewals:
    """Answers renewals as told."""

    def __init__(self) -> None:
        self.lost: set[str] = set()
        self.cancelled: set[str] = set()
        self.is_away = False
        self.asked: list[int] = []

    def was_asked(self, times: int) -> bool:
        return len(self.asked) == times

    async def renew(self, worker_id: str, fences: Sequence[Fence], lease: timedelta) -> dict[str, Renewal]:
        assert (worker_id, lease) == ("worker", LEASE)
        self.asked.append(len(fences))
        if self.is_away:
            raise StoreUnavailableError
        cancel = CancelRequest("ada", datetime.now(UTC), None)
        return {
            fence.task_id: Renewal(cancel if fence.task_id in self.cancelled else None)
            for fence in fences
            if fence.task_id not in self.lost
        }


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store() -> Renewals:
    return Renewals()


@pytest.fixture
def heartbeat(store: Renewals, clock: FakeClock) -> Heartbeat:
    return Heartbeat(cast(TaskStore, store), clock, "worker", LEASE)


def attempt(heartbeat: Heartbeat, clock: FakeClock) -> RunningAttempt:
    task = new_task()
    running = RunningAttempt(
        task, Fence(task.task_id, 1, f"claim-{task.task_id}"), clock.monotonic() + LEASE.total_seconds()
    )
    heartbeat.add(running)
    return running


async def test_one_renewal_for_all_attempts_of_the_worker(
    heartbeat: Heartbeat, store: Renewals, clock: FakeClock
) -> None:
    attempts = [attempt(heartbeat, clock) for _ in range(5)]
    assert await heartbeat.beat()
    assert store.asked == [5]
    assert [running.stop_reason for running in attempts] == [None] * 5


async def test_without_attempts_the_store_is_left_alone(heartbeat: Heartbeat, store: Renewals) -> None:
    assert await heartbeat.beat()
    assert store.asked == []


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


async def test_a_store_that_is_away_ends_attempts_before_their_lease_does(
    heartbeat: Heartbeat, store: Renewals, clock: FakeClock
) -> None:
    running = attempt(heartbeat, clock)
    store.is_away = True
    clock.advance(20)
    assert not await heartbeat.beat()
    assert running.stop_reason is None, "the lease has time left"
    clock.advance(6)
    await heartbeat.beat()
    assert running.stop_reason is StopReason.LEASE_LOST
    assert clock.monotonic() < running.lease_ends, "stopped before anybody else may start"


async def test_a_renewal_gives_the_attempt_a_whole_lease_again(
    heartbeat: Heartbeat, store: Renewals, clock: FakeClock
) -> None:
    running = attempt(heartbeat, clock)
    clock.advance(20)
    await heartbeat.beat()
    store.is_away = True
    clock.advance(20)
    await heartbeat.beat()
    assert running.stop_reason is None


async def test_it_beats_three_times_a_lease(heartbeat: Heartbeat, store: Renewals, clock: FakeClock) -> None:
    attempt(heartbeat, clock)
    beating = asyncio.create_task(heartbeat.run())
    for beat in range(1, 4):
        await eventually(lambda: clock.sleeping == 1)
        clock.advance(9)
        await asyncio.sleep(0)
        assert len(store.asked) == beat - 1
        clock.advance(1)
        await eventually(partial(store.was_asked, beat))
    beating.cancel()
    await asyncio.wait([beating])
