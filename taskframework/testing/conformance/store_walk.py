"""Store suite: random lives of a task, held to the pure rule step by step."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from taskframework.model.interventions import Cancel, Expire, Postpone, Reap, Replay
from taskframework.model.marks import (
    ForgetDispatch,
    MakeDue,
    MarkDispatched,
    MarkPublished,
    PostponeRelay,
    RenewLease,
    ReserveDispatch,
)
from taskframework.model.scope import EVERYONE, Scope
from taskframework.model.status import FINAL, MOVES
from taskframework.model.task import ParentLink, Task, new_claim_id
from taskframework.model.transitions import (
    DEADLINE,
    Claim,
    Complete,
    Fail,
    Fence,
    RecordStep,
    Release,
    ReportProgress,
)
from taskframework.stores.base import TaskStore
from taskframework.testing.conformance.store_suite import HOUR, MINUTE, Request, StoreSuite, an_error, asked, put

STEPS = 25
_VALUES: tuple[Any, ...] = (None, {"$set": 1}, [1, 1.0], "$$ROOT", {"": {}})
_STEPS = ("a", "a.b", "$set", "__proto__")


class WalkCases(StoreSuite):
    """No schedule of moves, alone or among others, leads the store away from the rule."""

    @pytest.mark.parametrize("seed", range(10))
    async def test_a_life_alone(self, store: TaskStore, seed: int) -> None:
        await _walk(store, random.Random(seed))

    async def test_a_hundred_lives_at_once(self, store: TaskStore) -> None:
        await asyncio.gather(*(_walk(store, random.Random(seed)) for seed in range(100, 200)))


async def _walk(store: TaskStore, chance: random.Random) -> None:
    walker = _Walker(chance, await _born(store, chance))
    for _ in range(STEPS):
        walker.observe(await asked(store, walker.next_request()) or walker.task)


async def _born(store: TaskStore, chance: random.Random) -> Task:
    now = store.now()
    deadline = chance.choice([None, None, now - HOUR, now + HOUR])
    parent = chance.choice([None, ParentLink("parent", 0, 1)])
    # Due late: a walk on a slow machine must not come to the time of the sweeper by itself.
    return await put(
        store, deadline=deadline, parent=parent, max_attempts=chance.randint(1, 4), next_dispatch_at=now + HOUR
    )


class _Walker:
    """Someone who holds every claim there ever was of a task, and sends whatever comes to mind."""

    def __init__(self, chance: random.Random, task: Task) -> None:
        self.task = task
        self._chance = chance
        self._fences = [Fence(task.task_id, 1, "never-claimed")]

    def next_request(self) -> Request:
        make = self._chance.choice(_REQUESTS)
        return make(self)

    def observe(self, after: Task) -> None:
        """Check what holds in every life, and remember a claim that was won."""
        before, self.task = self.task, after
        assert after.status is before.status or after.status in MOVES[before.status]
        assert after.fencing_token >= before.fencing_token
        assert after.steps[: len(before.steps)] == before.steps, "what was done stays done"
        assert [entry.sequence for entry in after.history] == list(range(1, after.sequence + 1))
        ends = [entry for entry in after.history if entry.type.upper() in FINAL]
        assert len(ends) <= after.generation + 1, "at most one end in each generation"
        if after.lease is not None and after.fencing_token > before.fencing_token:
            self._fences.append(Fence(after.task_id, after.fencing_token, after.lease.claim_id))

    def fence(self) -> Fence:
        return self._fences[-1] if self._chance.random() < 0.8 else self._chance.choice(self._fences)

    def epoch(self) -> int:
        return self.task.dispatch_epoch - (self._chance.random() < 0.1)

    def soon(self) -> timedelta:
        """In the past or far ahead: no request of a walk depends on the time it takes."""
        return -MINUTE if self._chance.random() < 0.8 else HOUR

    def flag(self) -> bool:
        return self._chance.random() < 0.7

    def pick(self, values: tuple[Any, ...]) -> Any:
        return self._chance.choice(values)


_REQUESTS: tuple[Callable[[_Walker], Request], ...] = (
    *[lambda w: Claim(w.task.task_id, w.epoch(), new_claim_id(), w.pick(("worker-1", "worker-2")), w.soon())] * 5,
    *[lambda w: Fail(w.fence(), "worker-1", an_error(), w.flag(), w.soon())] * 3,
    lambda w: Complete(w.fence(), "worker-1", w.pick(_VALUES)),
    lambda w: ReportProgress(w.fence(), w.pick(_VALUES)),
    lambda w: RecordStep(w.fence(), w.pick(_STEPS), w.pick(_VALUES)),
    lambda w: Release(w.fence(), "worker-1"),
    *[lambda w: Reap(w.task.task_id, w.task.fencing_token - (not w.flag()), timedelta(0), 3, w.soon())] * 2,
    lambda w: Cancel(
        w.task.task_id,
        w.pick((EVERYONE, Scope.of("alice"), Scope.of("bob"))),
        w.pick(("alice", DEADLINE)),
        w.pick((None, "$why")),
    ),
    lambda w: Expire(w.task.task_id),
    lambda w: Postpone(w.task.task_id, w.epoch(), w.soon(), 2),
    *[lambda w: Replay(w.task.task_id, EVERYONE, "operator", w.soon(), w.pick((None, w.task.revision, 1)))] * 3,
    lambda w: MarkDispatched(w.task.task_id, w.epoch(), MINUTE, HOUR),
    lambda w: MakeDue(w.task.task_id, w.epoch()),
    lambda w: ForgetDispatch(w.task.task_id),
    lambda w: RenewLease(w.fence(), w.soon()),
    lambda w: ReserveDispatch(w.task.task_id, w.epoch(), MINUTE, HOUR),
    lambda w: MarkPublished(w.task.task_id, w.task.sequence - w.pick((0, 1, 2))),
    lambda w: PostponeRelay(w.task.task_id, HOUR),
)
