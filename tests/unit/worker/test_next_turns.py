"""Which tasks of streams a worker starts itself when it has passed the turn on."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, cast

import pytest

from taskframework import BackgroundTaskExecutable, RateLimit, TaskContext, TaskOptions
from taskframework.model.stream_moves import ClaimTurn
from taskframework.model.streams import Turn
from taskframework.tasks.registry import TaskRegistry
from taskframework.testing.factories import new_task
from taskframework.worker.next_turns import NextTurns

LEASE = timedelta(seconds=30)


class Executable(BackgroundTaskExecutable[Mapping[str, str], None]):
    async def execute(self, context: TaskContext[Mapping[str, str]]) -> None: ...


class Plain(Executable):
    task_type = "plain"


class Rated(Executable):
    task_type = "rated"
    options = TaskOptions(rate_limit="openai")


class RatedByKey(Executable):
    task_type = "rated-by-key"
    options = TaskOptions(rate_limit=RateLimit("openai", key="user"))


class FakeWorker:
    """Consumer and intake of a worker that is idle and takes every type."""

    def __init__(self) -> None:
        self.claims: list[ClaimTurn] = []
        self.is_claimed = True
        self.takes: set[str] = {"plain", "rated", "rated-by-key", "unknown"}

    async def try_start_turn(self, claim: ClaimTurn) -> bool:
        self.claims.append(claim)
        return self.is_claimed

    def takes_freely(self, task_type: str) -> bool:
        return task_type in self.takes


@pytest.fixture
def worker() -> FakeWorker:
    return FakeWorker()


async def start(worker: FakeWorker, task_type: str = "plain", position: int = 1, needs_slot: bool = False) -> bool:
    registry = TaskRegistry()
    for executable in (Plain, Rated, RatedByKey):
        registry.register(executable)
    turns = NextTurns(cast(Any, worker), cast(Any, worker), registry, "worker-1", LEASE, lambda _: needs_slot)
    before = new_task(priority="high").evolve(task_type=task_type)
    return await turns.try_start(Turn("next", 2, position), before)


async def test_the_next_task_is_claimed_as_one_like_the_task_before(worker: FakeWorker) -> None:
    assert await start(worker)
    [claim] = worker.claims
    assert (claim.task_id, claim.generation, claim.task_type, claim.priority) == ("next", 2, "plain", "high")
    assert (claim.worker_id, claim.lease) == ("worker-1", LEASE)


async def test_a_task_that_is_not_claimed_is_left_to_a_message(worker: FakeWorker) -> None:
    worker.is_claimed = False
    assert not await start(worker)


async def test_each_claim_of_a_turn_has_its_own_claim_id(worker: FakeWorker) -> None:
    await start(worker)
    await start(worker)
    first, second = worker.claims
    assert first.claim_id != second.claim_id


async def test_one_turn_of_ten_goes_through_the_broker(worker: FakeWorker) -> None:
    assert [position for position in range(1, 25) if not await start(worker, position=position)] == [10, 20]


@pytest.mark.parametrize("task_type", ["rated", "rated-by-key", "unknown"])
async def test_a_task_that_an_admission_check_must_see_is_left_to_a_message(worker: FakeWorker, task_type: str) -> None:
    assert not await start(worker, task_type)
    assert worker.claims == []


async def test_a_task_that_needs_a_slot_is_left_to_a_message(worker: FakeWorker) -> None:
    assert not await start(worker, needs_slot=True)
    assert worker.claims == []


async def test_a_type_that_is_not_taken_at_present_is_left_to_a_message(worker: FakeWorker) -> None:
    worker.takes.clear()
    assert not await start(worker)
    assert worker.claims == []
