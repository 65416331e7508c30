"""Which attempt a line on a task tells of."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest

from taskframework.bus import EventBus
from taskframework.clock import SystemClock
from taskframework.model.attempts import Claim, Fail
from taskframework.model.events import (
    TaskCompletedEvent,
    TaskFailedEvent,
    TaskProgressEvent,
    TaskResumedEvent,
    TaskRetryingEvent,
    TaskStartedEvent,
    TaskWaitingEvent,
)
from taskframework.model.outcome import describe
from taskframework.model.status import TaskStatus
from taskframework.model.subtasks import Counts
from taskframework.model.task_fields import Batch, Subtasks
from taskframework.model.transitions import Fence
from taskframework.model.waiting import CountSubtasks, Wait
from taskframework.observability import task_log
from taskframework.observability.metrics import Metrics
from taskframework.testing.factories import new_task

NOW, SECOND = SystemClock().now(), timedelta(seconds=1)


async def test_an_attempt_of_a_task_that_has_moved_on_is_logged_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
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


@pytest.mark.parametrize(
    ("planned", "signal", "said"),
    [
        (1, None, "waits for 1 sub-task in attempt 1"),
        (1500, None, "waits for 1,500 sub-tasks in attempt 1"),
        (None, "approved", "waits for the signal 'approved' in attempt 1"),
        (2, "approved", "waits for 2 sub-tasks or the signal 'approved' in attempt 1"),
    ],
)
async def test_an_attempt_that_ends_in_waiting_is_logged_like_a_completed_one(
    caplog: pytest.LogCaptureFixture, planned: int | None, signal: str | None, said: str
) -> None:
    task = new_task(now=NOW)
    running = Claim(task.task_id, 1, "first", "worker", 9 * SECOND).apply(task, NOW)
    assert running is not None
    subtasks = None if planned is None else Subtasks(planned, [])
    waiting = Wait(Fence(task.task_id, 1, "first"), "worker", subtasks, signal, None, None).apply(running, NOW + SECOND)
    assert waiting is not None
    bus, metrics = EventBus(), Metrics()
    task_log.listen(bus)
    metrics.listen(bus)
    with caplog.at_level(logging.DEBUG, "taskframework"):
        await bus.publish(TaskWaitingEvent(waiting))
    [line] = [record for record in caplog.records if record.name == "taskframework.observability.task_log"]
    assert line.levelno == logging.DEBUG
    assert f"{said} of 5 after 1.0 s" in line.getMessage()
    assert (vars(line)["status"], vars(line)["attempt"]) == ("WAITING", 1)
    shown = metrics.exposition().decode()
    assert f'tasks_execution_seconds_count{{status="WAITING",task_type="{task.task_type}"}} 1.0' in shown


async def test_a_parent_that_ends_by_a_count_ends_no_attempt() -> None:
    """The time that it waited would count as time of execution."""
    parent = new_task(now=NOW, status=TaskStatus.WAITING, started_at=NOW, subtasks=Subtasks(1, None))
    ended = CountSubtasks.of(parent, Counts(1)).apply(parent, NOW + 9 * SECOND)
    assert ended is not None
    assert ended.status is TaskStatus.COMPLETED
    bus, metrics = EventBus(), Metrics()
    metrics.listen(bus)
    await bus.publish(TaskCompletedEvent(ended))
    assert "tasks_execution_seconds_count" not in metrics.exposition().decode()


async def test_the_first_response_of_a_batch_is_measured_from_its_own_start() -> None:
    """The count that finds all sub-tasks ended also moves `not_before`, for `on_batch_finished`."""
    own, subtasks = Batch(items=1, not_before=NOW), Subtasks(1, None, resumes=True)
    batch = new_task(now=NOW, status=TaskStatus.WAITING, batch=own, subtasks=subtasks)
    resumed = CountSubtasks.of(batch, Counts(1)).apply(batch, NOW + 9 * SECOND)
    assert resumed is not None
    assert resumed.not_before == NOW + 9 * SECOND
    bus, metrics = EventBus(), Metrics()
    metrics.listen(bus)
    await bus.publish(TaskResumedEvent(resumed))
    assert f'first_response_seconds_sum{{task_type="{batch.task_type}"}} 9.0' in metrics.exposition().decode()


async def test_progress_is_no_change_of_status_and_a_failed_batch_no_dead_letter() -> None:
    running = Claim("t1", 1, "first", "worker", 9 * SECOND).apply(new_task(task_id="t1", now=NOW), NOW)
    assert running is not None
    bus, metrics = EventBus(), Metrics()
    metrics.listen(bus)
    await bus.publish(TaskStartedEvent(running))
    await bus.publish(TaskProgressEvent(running))
    batch = new_task(now=NOW, status=TaskStatus.FAILED, batch=Batch(items=1), subtasks=Subtasks(1, None))
    await bus.publish(TaskFailedEvent(batch))
    shown = metrics.exposition().decode()
    assert 'tasks_state_db_updates_total{operation="started"} 1.0' in shown
    assert "tasks_dlq_entered_total{" not in shown
    await bus.publish(TaskFailedEvent(new_task(now=NOW, status=TaskStatus.FAILED)))
    assert "tasks_dlq_entered_total{" in metrics.exposition().decode()
