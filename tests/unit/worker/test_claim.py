"""The claim: the attempt it makes knows when its lease ends, even when the reply to the claim was lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from taskframework.bus import EventBus
from taskframework.errors import StoreUnavailableError
from taskframework.model.message import TaskMessage
from taskframework.model.task import Task
from taskframework.model.transitions import Transition
from taskframework.stores.sqlite import SqliteStore
from taskframework.testing.clock import FakeClock
from taskframework.testing.factories import new_task
from taskframework.worker.attempt import RunningAttempt
from taskframework.worker.claim import ClaimPolicy, ClaimStation

LEASE = timedelta(seconds=30)


class Forgetful(SqliteStore):
    """Loses the reply to what it did, when told."""

    loses_reply = False

    async def apply(self, transition: Transition) -> Task | None:
        task = await super().apply(transition)
        if self.loses_reply:
            raise StoreUnavailableError
        return task


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def store(tmp_path: Path, clock: FakeClock) -> AsyncIterator[Forgetful]:
    store = Forgetful(tmp_path / "tasks.db", clock=clock)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def station(store: Forgetful, clock: FakeClock) -> ClaimStation:
    policy = ClaimPolicy(LEASE, timedelta(seconds=30), 3)
    return ClaimStation(store, EventBus(), clock, "worker", policy, lambda _: True)


@pytest.mark.parametrize("lost_for", [None, 0, 20, 40])
async def test_a_lease_ends_when_the_store_says(
    store: Forgetful, station: ClaimStation, clock: FakeClock, lost_for: float | None
) -> None:
    task = (await store.insert(new_task(now=clock.now()))).task
    claim = station.request(TaskMessage.for_task(task, None))
    ends = clock.monotonic() + LEASE.total_seconds()
    if lost_for is not None:
        store.loses_reply = True
        with pytest.raises(StoreUnavailableError):
            await station.claim(claim)
        clock.advance(lost_for)
        store.loses_reply = False
    attempt = await station.claim(claim)
    assert isinstance(attempt, RunningAttempt)
    assert attempt.task.fencing_token == 1
    assert attempt.lease_ends == pytest.approx(ends)


async def test_a_claim_that_was_not_made_the_first_time_has_a_whole_lease(
    store: Forgetful, station: ClaimStation, clock: FakeClock
) -> None:
    task = (await store.insert(new_task(now=clock.now()))).task
    claim = station.request(TaskMessage.for_task(task, None))
    clock.advance(60)
    attempt = await station.claim(claim)
    assert isinstance(attempt, RunningAttempt)
    assert attempt.lease_ends == pytest.approx(clock.monotonic() + LEASE.total_seconds())
