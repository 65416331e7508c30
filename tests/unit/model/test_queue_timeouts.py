"""Queue timeouts: how long a task may wait for a worker, and what does not count."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from taskframework.model.attempts import Claim, Release
from taskframework.model.interventions import NOT_STARTED, EndUnstarted, Replay
from taskframework.model.marks import MakeDue, RestartQueueTimeout
from taskframework.model.options import StartLimit
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.model.stream_moves import Unblock
from taskframework.model.task import Task
from taskframework.model.transitions import Fence
from taskframework.testing.factories import new_task
from tests.unit.model.scenes import MINUTE, NOW, SECOND, TASK_ID, TOKEN, ZERO, in_status, queued

LIMIT, STRICT = StartLimit(60_000), StartLimit(60_000, counts_limits=True)


def applied(request: Any, task: Task) -> Task:
    after: Task | None = request.apply(task, NOW)
    assert after is not None
    return after


def test_a_task_has_its_time_to_wait_from_when_it_could_begin() -> None:
    later = NOW + timedelta(hours=1)
    assert new_task(now=NOW, start_limit=LIMIT).start_by == NOW + MINUTE
    assert new_task(now=NOW, not_before=later, start_limit=LIMIT).start_by == later + MINUTE
    assert new_task(now=NOW).start_by is None


def test_a_task_past_its_queue_timeout_is_a_dead_letter_with_its_own_code() -> None:
    task = applied(EndUnstarted(TASK_ID), queued(start_limit=LIMIT, start_by=NOW, attempts=0))
    assert (task.status, task.history[-1].type) == (TaskStatus.DEAD_LETTER, "dead_letter")
    assert task.error is not None
    assert (task.error.code, task.error.message) == ("queue_timeout", NOT_STARTED)
    assert EndUnstarted(TASK_ID).apply(queued(start_limit=LIMIT, start_by=NOW + SECOND), NOW) is None


def test_a_task_that_has_begun_once_has_no_queue_timeout_until_its_replay() -> None:
    begun = applied(Claim(TASK_ID, 1, "a-claim", "worker-1", MINUTE), queued(start_limit=LIMIT, start_by=NOW))
    released = applied(Release(Fence(TASK_ID, TOKEN + 1, "a-claim"), "worker-1"), begun)
    assert released.status is TaskStatus.QUEUED
    assert EndUnstarted(TASK_ID).apply(released, NOW + MINUTE) is None
    replayed = applied(
        Replay(TASK_ID, EVERYONE, "operator", ZERO), in_status(TaskStatus.DEAD_LETTER, start_limit=LIMIT, start_by=NOW)
    )
    assert replayed.start_by == NOW + MINUTE
    assert EndUnstarted(TASK_ID).apply(replayed, NOW + MINUTE) is not None
    assert applied(Replay(TASK_ID, EVERYONE, "operator", ZERO), in_status(TaskStatus.FAILED)).start_by is None


def test_in_a_serial_stream_the_time_begins_with_the_turn() -> None:
    blocked = in_status(TaskStatus.BLOCKED, start_limit=LIMIT, start_by=NOW - MINUTE)
    assert applied(Unblock(TASK_ID, blocked.generation, ZERO), blocked).start_by == NOW + MINUTE


def test_the_queue_timeout_of_a_task_that_is_put_off_starts_at_its_new_time() -> None:
    waiting = queued(start_limit=LIMIT, start_by=NOW + SECOND)
    put_off = applied(MakeDue(TASK_ID, 1, 10 * SECOND), waiting)
    assert put_off.start_by == NOW + 10 * SECOND + MINUTE
    assert applied(MakeDue(TASK_ID, 1, 10 * SECOND), put_off).start_by == put_off.start_by, "twice put off is once"
    assert applied(MakeDue(TASK_ID, 1, SECOND), put_off).start_by == put_off.start_by, "never sooner"
    assert applied(MakeDue(TASK_ID, 1), waiting).start_by == NOW + SECOND, "handed back, which is no limit"
    assert applied(RestartQueueTimeout(TASK_ID), waiting).start_by == NOW + MINUTE
    assert RestartQueueTimeout(TASK_ID).apply(waiting.evolve(started_at=NOW), NOW) is None
    strict = queued(start_limit=STRICT, start_by=NOW + SECOND)
    for mark in (MakeDue(TASK_ID, 1, 10 * SECOND), RestartQueueTimeout(TASK_ID)):
        assert applied(mark, strict).start_by == NOW + SECOND
