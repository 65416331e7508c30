"""What the metrics ask of the store, they ask more rarely the longer it takes."""

from __future__ import annotations

from typing import cast

import pytest

from taskframework.model.status import TaskStatus
from taskframework.observability import metrics as module
from taskframework.observability.metrics import Metrics
from taskframework.stores.base import TaskStore


class Clock:
    """In place of the module `time`."""

    now = 1_000.0

    def monotonic(self) -> float:
        return self.now


class Store:
    """Needs its time for an answer."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self.seconds = seconds
        self.asked = 0

    async def count_by_status(self) -> dict[TaskStatus, int]:
        self._clock.now += self.seconds
        self.asked += 1
        return {TaskStatus.QUEUED: self.asked}

    async def undriven(self, limit: int) -> list[str]:
        return []


@pytest.mark.parametrize(("seconds", "rest"), [(0.01, 5), (0.3, 150), (60, 900)])
async def test_a_slow_answer_is_asked_for_rarely(monkeypatch: pytest.MonkeyPatch, seconds: float, rest: float) -> None:
    clock, metrics = Clock(), Metrics()
    monkeypatch.setattr(module, "time", clock)
    store = Store(clock, seconds)
    for _ in range(3):
        assert await metrics.keep_fresh(cast(TaskStore, store)) is False
    assert store.asked == 1
    clock.now += rest - 0.001
    await metrics.keep_fresh(cast(TaskStore, store))
    assert store.asked == 1
    clock.now += 0.002
    await metrics.keep_fresh(cast(TaskStore, store))
    assert store.asked == 2
    assert b'tasks_by_status{status="QUEUED"} 2.0' in metrics.exposition()
