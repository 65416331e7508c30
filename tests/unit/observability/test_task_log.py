"""Which attempt a line on a task tells of."""

from __future__ import annotations

from datetime import timedelta

import pytest

from taskframework.bus import EventBus
from taskframework.clock import SystemClock
from taskframework.model.events import TaskRetryingEvent
from taskframework.model.outcome import describe
from taskframework.model.transitions import Claim, Fail, Fence
from taskframework.observability import task_log
from taskframework.testing.factories import new_task

NOW, SECOND = SystemClock().now(), timedelta(seconds=1)


async def test_a_task_that_is_further_on_is_told_of_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    task = new_task(now=NOW)
    running = Claim(task.task_id, 1, "first", "worker", 9 * SECOND).apply(task, NOW)
    assert running is not None
    error = describe(RuntimeError("on one line\nand another"), retryable=True)
    retrying = Fail(Fence(task.task_id, 1, "first"), "worker", error, True, timedelta(0)).apply(running, NOW + SECOND)
    assert retrying is not None
    again = Claim(task.task_id, 2, "second", "worker", 9 * SECOND).apply(retrying, NOW + 2 * SECOND)
    assert again is not None
    bus = EventBus()
    task_log.listen(bus)
    await bus.publish(TaskRetryingEvent(retrying))
    await bus.publish(TaskRetryingEvent(again))
    in_time, late = caplog.records
    assert [vars(record)["attempt"] for record in caplog.records] == [1, 1]
    assert vars(in_time)["duration"] == 1
    assert "duration" not in vars(late), "when that attempt began is not known any more"
    assert late.getMessage().endswith("RuntimeError: on one line and another")
