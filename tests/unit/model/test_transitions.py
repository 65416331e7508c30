"""The rules of a worker's moves and of the repairs, at their borders."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from taskframework.model.attempts import Claim, Complete, Fail, RecordStep, Release, ReportProgress
from taskframework.model.interventions import Cancel, Expire, Postpone, Reap, Replay
from taskframework.model.marks import (
    MakeDue,
    MarkDispatched,
    MarkPublished,
    PostponeRelay,
    ReserveDispatch,
    redispatch_delay,
)
from taskframework.model.scope import EVERYONE, Scope
from taskframework.model.status import CLAIMABLE, TaskStatus
from taskframework.model.task import ERRORS_KEPT, HISTORY_LENGTH, SCHEMA_VERSION, Task, initial_fields
from taskframework.model.task_fields import HistoryEntry, Lease, StepOutcome
from taskframework.model.transitions import BY_DEADLINE, RELAY_AFTER, with_event
from tests.unit.model.scenes import (
    FENCE,
    MINUTE,
    NOW,
    SECOND,
    TASK_ID,
    TOKEN,
    ZERO,
    an_error,
    in_status,
    queued,
    running,
    wish_to_stop,
)

CLAIM = Claim(TASK_ID, 1, "a-claim", "worker-2", MINUTE)
FAIL = Fail(FENCE, "worker-1", an_error(), True, MINUTE)
REAP = Reap(TASK_ID, TOKEN, SECOND, 3, MINUTE)


def applied(transition: Any, task: Task) -> Task:
    after: Task | None = transition.apply(task, NOW)
    assert after is not None
    return after


# --- submit -----------------------------------------------------------------------------------------------------------


def test_a_task_that_may_start_is_left_to_the_live_path_for_a_while() -> None:
    assert initial_fields(NOW - MINUTE, NOW, 5 * SECOND)["next_dispatch_at"] == NOW + 5 * SECOND
    task = queued().evolve(**initial_fields(NOW, NOW, 5 * SECOND))
    assert (task.next_dispatch_at, task.publish_at) == (NOW + 5 * SECOND, NOW + 5 * SECOND)
    assert (task.sequence, [entry.type for entry in task.history]) == (1, ["submitted"])


def test_a_task_for_later_is_due_at_its_time() -> None:
    assert initial_fields(NOW + MINUTE, NOW, 5 * SECOND)["next_dispatch_at"] == NOW + MINUTE


# --- claim ------------------------------------------------------------------------------------------------------------


def test_a_claim_gives_the_task_a_lease_a_token_and_an_attempt() -> None:
    task = applied(CLAIM, queued(no_handler=2))
    assert (task.status, task.fencing_token, task.attempts, task.no_handler) == (TaskStatus.RUNNING, TOKEN + 1, 4, 0)
    assert task.lease == Lease("worker-2", "a-claim", NOW + MINUTE)
    assert (task.started_at, task.updated_at, task.next_dispatch_at) == (NOW, NOW, None)
    assert task.history[-1] == HistoryEntry(2, "started", NOW, 4, "worker-2", None)
    assert task.publish_at == NOW + RELAY_AFTER


def test_a_claim_is_never_early() -> None:
    assert CLAIM.apply(queued(not_before=NOW + SECOND / 1000), NOW) is None
    assert CLAIM.apply(queued(not_before=NOW), NOW) is not None


def test_a_claim_needs_the_present_epoch() -> None:
    assert [replace(CLAIM, dispatch_epoch=n).apply(queued(dispatch_epoch=2), NOW) is None for n in (1, 2, 3)] == [
        True,
        False,
        True,
    ]


def test_a_claim_respects_a_cancel_and_a_newer_version() -> None:
    assert CLAIM.apply(queued(cancel=wish_to_stop()), NOW) is None
    assert CLAIM.apply(queued(schema_version=SCHEMA_VERSION + 1), NOW) is None
    assert CLAIM.apply(queued(schema_version=SCHEMA_VERSION), NOW) is not None


def test_a_claim_that_was_won_is_recognised() -> None:
    task = applied(CLAIM, queued())
    assert CLAIM.was_applied(task)
    assert not CLAIM.was_applied(queued())
    assert not replace(CLAIM, claim_id="another").was_applied(task)


# --- settle -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "write",
    [
        ReportProgress(FENCE, 1),
        RecordStep(FENCE, "a", 1),
        Complete(FENCE, "worker-1", 1),
        FAIL,
        Release(FENCE, "worker-1"),
    ],
)
def test_a_worker_writes_only_under_its_own_claim(write: Any) -> None:
    assert write.apply(running(), NOW) is not None
    for stale in (
        replace(FENCE, fencing_token=TOKEN - 1),
        replace(FENCE, fencing_token=TOKEN + 1),
        replace(FENCE, claim_id="other"),
    ):
        assert replace(write, fence=stale).apply(running(), NOW) is None
    for status in set(TaskStatus) - {TaskStatus.RUNNING}:
        assert write.apply(in_status(status), NOW) is None
    assert write.apply(running(lease=None), NOW) is None


@pytest.mark.parametrize("write", [Complete(FENCE, "worker-1", 1), FAIL, Release(FENCE, "worker-1")])
def test_an_outcome_that_was_stored_is_recognised(write: Any) -> None:
    assert write.was_applied(applied(write, running()))
    assert not write.was_applied(running())
    assert not write.was_applied(running(last_claim_id="an-older-claim"))


def test_progress_is_recognised_while_the_claim_holds() -> None:
    assert ReportProgress(FENCE, 1).was_applied(running())
    assert not ReportProgress(FENCE, 1).was_applied(queued())


def test_a_completion_stores_the_result_and_ends_the_task() -> None:
    task = applied(Complete(FENCE, "worker-1", {"n": 1}), running(error=an_error(), cancel=wish_to_stop()))
    assert (task.status, task.result, task.error, task.finished_at) == (TaskStatus.COMPLETED, {"n": 1}, None, NOW)
    assert (task.lease, task.last_claim_id, task.history[-1].type) == (None, "the-claim", "completed")


@pytest.mark.parametrize(
    ("changes", "retryable", "status"),
    [
        ({}, True, TaskStatus.RETRYING),
        ({"max_attempts": 4}, True, TaskStatus.RETRYING),
        ({"max_attempts": 3}, True, TaskStatus.DEAD_LETTER),
        ({}, False, TaskStatus.FAILED),
        ({"max_attempts": 3}, False, TaskStatus.FAILED),
        ({"cancel": wish_to_stop()}, True, TaskStatus.CANCELLED),
        ({"cancel": wish_to_stop()}, False, TaskStatus.CANCELLED),
        ({"cancel": wish_to_stop(BY_DEADLINE)}, True, TaskStatus.FAILED),
    ],
)
def test_a_failure_ends_with_the_right_status(changes: dict[str, Any], retryable: bool, status: TaskStatus) -> None:
    task = applied(replace(FAIL, retryable=retryable), running(**changes))
    assert (task.status, task.history[-1].type) == (status, status.lower())
    assert task.error == replace(an_error(), attempt=3, at=NOW)
    assert task.finished_at == (NOW if status.is_final else None)


def test_a_retry_is_due_after_its_delay() -> None:
    task = applied(FAIL, running(dispatches=6))
    assert (task.not_before, task.next_dispatch_at, task.dispatches) == (NOW + MINUTE, NOW + MINUTE, 0)
    assert task.dispatch_epoch == 2


def test_the_last_errors_are_kept() -> None:
    older = tuple(an_error(str(n)) for n in range(ERRORS_KEPT))
    task = applied(FAIL, running(errors=older))
    assert [error.message for error in task.errors] == ["1", "2", "3", "4", "it broke"]


def test_a_release_gives_the_attempt_back() -> None:
    task = applied(Release(FENCE, "worker-1"), running(releases=1))
    assert (task.status, task.attempts, task.releases, task.dispatch_epoch) == (TaskStatus.QUEUED, 2, 2, 2)
    assert (task.not_before, task.next_dispatch_at, task.error) == (NOW, NOW, None)
    assert task.history[-1].type == "released"


@pytest.mark.parametrize(("by", "status"), [("alice", TaskStatus.CANCELLED), (BY_DEADLINE, TaskStatus.FAILED)])
def test_a_release_of_a_cancelled_task_ends_it(by: str, status: TaskStatus) -> None:
    task = applied(Release(FENCE, "worker-1"), running(cancel=wish_to_stop(by)))
    assert (task.status, task.next_dispatch_at, task.history[-1].type) == (status, None, status.lower())


def test_reported_progress_is_stored_in_the_task() -> None:
    before = running()
    task = applied(ReportProgress(FENCE, 7), before)
    assert task == before.evolve(progress=7, progress_revision=1, revision=before.revision + 1, updated_at=NOW)


def test_a_step_is_recorded() -> None:
    before = running(steps=(StepOutcome("charge", 1),))
    task = applied(RecordStep(FENCE, "$set", {"$set": 1}), before)
    steps = (StepOutcome("charge", 1), StepOutcome("$set", {"$set": 1}))
    assert task == before.evolve(steps=steps, revision=before.revision + 1)
    assert (task.outcome_of("$set"), task.outcome_of("set")) == (StepOutcome("$set", {"$set": 1}), None)


def test_the_first_outcome_of_a_step_stays() -> None:
    before = running(steps=(StepOutcome("charge", None),))
    assert applied(RecordStep(FENCE, "charge", 2), before) == before


def test_a_step_that_was_recorded_is_recognised() -> None:
    record = RecordStep(FENCE, "charge", 2)
    assert record.was_applied(applied(record, running()))
    assert not record.was_applied(running())
    assert not record.was_applied(queued(steps=(StepOutcome("charge", 2),))), "the claim is over"


@pytest.mark.parametrize(
    "end", [Complete(FENCE, "worker-1", 1), FAIL, Release(FENCE, "worker-1"), REAP], ids=lambda end: type(end).__name__
)
def test_the_steps_outlive_the_attempt(end: Any) -> None:
    done = (StepOutcome("charge", 1),)
    assert applied(end, running(steps=done)).steps == done


# --- interventions ----------------------------------------------------------------------------------------------------


def test_a_lease_is_reaped_when_its_grace_is_over() -> None:
    ends = Lease("worker-1", "the-claim", NOW - SECOND)
    assert REAP.apply(running(lease=replace(ends, expires_at=NOW - SECOND + SECOND / 1000)), NOW) is None
    task = applied(REAP, running(lease=ends))
    assert (task.status, task.crashes, task.not_before) == (TaskStatus.RETRYING, 1, NOW + MINUTE)
    assert task.error is not None
    assert (task.error.code, task.error.attempt) == ("lease_expired", 3)
    assert task.history[-1].worker_id == "worker-1"


def test_the_error_tells_that_the_limit_of_lost_workers_is_why_no_attempt_follows() -> None:
    lease = Lease("worker-1", "the-claim", NOW - SECOND)
    texts = []
    for crashes in (1, 2):
        task = applied(REAP, running(lease=lease, crashes=crashes))
        assert task.error is not None
        assert isinstance(data := task.history[-1].data, dict)
        assert data["message"] == task.error.message
        texts.append((task.status, task.error.message.partition("the store.")[2]))
    limit = " This has happened 3 times, which is the limit (worker.max_crashes)."
    assert texts == [(TaskStatus.RETRYING, ""), (TaskStatus.DEAD_LETTER, limit)]


def test_the_lease_of_a_dead_worker_is_reaped_before_its_end() -> None:
    lease = Lease("worker-1", "the-claim", NOW + MINUTE)
    assert applied(replace(REAP, grace=None), running(lease=lease)).status is TaskStatus.RETRYING
    assert REAP.apply(running(lease=lease), NOW) is None


def test_a_reaper_that_comes_late_does_nothing() -> None:
    assert replace(REAP, fencing_token=TOKEN - 1).apply(running(), NOW) is None
    assert REAP.apply(queued(), NOW) is None
    assert not REAP.was_applied(running())


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"crashes": 1}, TaskStatus.RETRYING),
        ({"crashes": 2}, TaskStatus.DEAD_LETTER),
        ({"max_attempts": 3}, TaskStatus.DEAD_LETTER),
        ({"cancel": wish_to_stop(), "crashes": 2}, TaskStatus.CANCELLED),
        ({"cancel": wish_to_stop(BY_DEADLINE)}, TaskStatus.FAILED),
    ],
)
def test_a_reaped_task_gets_the_right_status(changes: dict[str, Any], status: TaskStatus) -> None:
    assert applied(REAP, running(**changes)).status is status


@pytest.mark.parametrize("crashes", [0, 2])
def test_the_deadline_ends_a_task_whose_worker_died_before_it_stopped(crashes: int) -> None:
    task = applied(REAP, running(cancel=wish_to_stop(BY_DEADLINE), crashes=crashes))
    assert task.error is not None
    assert (task.error.code, task.error.retryable, task.error.attempt) == ("deadline", False, 3)
    assert task.error.message == (
        "The deadline passed. The worker stopped renewing its lease: it died, hung or lost the store."
    )
    assert task.history[-1].data == {"code": "deadline", "type": "taskframework", "message": task.error.message}


def test_a_deadline_counts_from_its_moment() -> None:
    assert Expire(TASK_ID).apply(queued(deadline=NOW + SECOND / 1000), NOW) is None
    task = applied(Expire(TASK_ID), queued(deadline=NOW))
    assert task.error is not None
    assert (task.status, task.error.code) == (TaskStatus.FAILED, "deadline")


def test_a_running_task_is_asked_to_stop_and_keeps_its_lease() -> None:
    for asking in (Cancel(TASK_ID, EVERYONE, "alice", "why"), Expire(TASK_ID)):
        before = running(deadline=NOW)
        task = applied(asking, before)
        assert (task.status, task.lease, task.history[-1].type) == (
            TaskStatus.RUNNING,
            before.lease,
            "cancel_requested",
        )
        assert asking.apply(task, NOW) is None, "one wish is enough"


def test_a_cancel_checks_the_owner() -> None:
    assert Cancel(TASK_ID, Scope.of("bob"), "bob", None).apply(queued(user_id="alice"), NOW) is None
    assert Cancel(TASK_ID, Scope.of("alice"), "alice", None).apply(queued(user_id="alice"), NOW) is not None
    assert Cancel(TASK_ID, EVERYONE, "operator", None).apply(queued(user_id="alice"), NOW) is not None


def test_a_postponed_task_is_given_up_after_the_limit() -> None:
    postpone = Postpone(TASK_ID, 1, MINUTE, 2)
    waiting = applied(postpone, queued(no_handler=1))
    assert (waiting.status, waiting.next_dispatch_at, waiting.sequence) == (TaskStatus.QUEUED, NOW + MINUTE, 1)
    given_up = applied(postpone, queued(no_handler=2))
    assert (given_up.status, given_up.history[-1].type) == (TaskStatus.DEAD_LETTER, "dead_letter")
    assert postpone.apply(queued(cancel=wish_to_stop()), NOW) is None
    assert postpone.apply(queued(dispatch_epoch=2), NOW) is None


def test_a_replay_is_a_new_generation_with_the_old_token() -> None:
    spent: dict[str, Any] = {"crashes": 2, "releases": 1, "no_handler": 1, "cancel": wish_to_stop(), "progress": 5}
    spent["steps"] = (StepOutcome("charge", 1),)
    before = in_status(TaskStatus.DEAD_LETTER, error=an_error(), deadline=NOW, purge_at=NOW, **spent)
    task = applied(Replay(TASK_ID, EVERYONE, "operator", 5 * SECOND), before)
    assert (task.status, task.generation, task.fencing_token) == (TaskStatus.QUEUED, 1, TOKEN)
    assert (task.attempts, task.crashes, task.releases, task.no_handler) == (0, 0, 0, 0)
    assert (task.cancel, task.error, task.deadline, task.progress, task.purge_at) == (None, None, None, None, None)
    assert task.steps == spent["steps"], "what was done is done"
    assert (task.not_before, task.next_dispatch_at) == (NOW, NOW + 5 * SECOND)


def test_a_replay_of_what_has_changed_since_is_refused() -> None:
    dead = in_status(TaskStatus.FAILED, revision=7)
    assert Replay(TASK_ID, EVERYONE, "operator", ZERO, revision=6).apply(dead, NOW) is None
    assert Replay(TASK_ID, EVERYONE, "operator", ZERO, revision=7).apply(dead, NOW) is not None
    assert Replay(TASK_ID, Scope.of("bob"), "bob", ZERO).apply(dead, NOW) is None


# --- marks ------------------------------------------------------------------------------------------------------------


def test_a_dispatch_waits_longer_each_time() -> None:
    waits = [redispatch_delay(n, 20 * SECOND, 15 * MINUTE) for n in (0, 1, 2, 5, 6, 7, 1000)]
    assert [wait.total_seconds() for wait in waits] == [20, 40, 80, 640, 900, 900, 900]


def test_a_delayed_task_is_dispatched_again_only_after_its_own_time() -> None:
    task = applied(MarkDispatched(TASK_ID, 1, 20 * SECOND, MINUTE), queued(not_before=NOW + MINUTE))
    assert (task.next_dispatch_at, task.dispatches) == (NOW + MINUTE + 20 * SECOND, 1)


def test_only_a_task_that_waits_for_this_message_is_dispatched_or_postponed() -> None:
    for about_message in (MarkDispatched(TASK_ID, 1, SECOND, MINUTE), Postpone(TASK_ID, 1, MINUTE, 2)):
        assert about_message.apply(queued(dispatch_epoch=2), NOW) is None
        for status in set(TaskStatus) - CLAIMABLE:
            assert about_message.apply(in_status(status), NOW) is None


def test_a_reservation_is_for_what_is_due() -> None:
    reserve = ReserveDispatch(TASK_ID, 1, 20 * SECOND, MINUTE)
    assert applied(reserve, queued(next_dispatch_at=NOW)).next_dispatch_at == NOW + 20 * SECOND
    assert reserve.apply(queued(next_dispatch_at=NOW + SECOND / 1000), NOW) is None
    assert reserve.apply(queued(next_dispatch_at=None), NOW) is None
    assert reserve.apply(queued(next_dispatch_at=NOW, not_before=NOW + SECOND), NOW) is None
    assert reserve.apply(queued(next_dispatch_at=NOW, dispatch_epoch=2), NOW) is None


def test_a_task_that_was_handed_back_is_due_after_its_delay() -> None:
    make_due = MakeDue(TASK_ID, 1)
    for due in (NOW - MINUTE, NOW + MINUTE, None):
        assert applied(make_due, queued(next_dispatch_at=due)).next_dispatch_at == NOW
        assert applied(MakeDue(TASK_ID, 1, SECOND), queued(next_dispatch_at=due)).next_dispatch_at == NOW + SECOND
    assert make_due.apply(queued(dispatch_epoch=2), NOW) is None
    assert make_due.apply(running(), NOW) is None


def test_a_mark_of_publication_only_grows() -> None:
    task = queued(sequence=4, published_sequence=2, publish_at=NOW)
    assert MarkPublished(TASK_ID, 2).apply(task, NOW) is None
    assert applied(MarkPublished(TASK_ID, 3), task) == task.evolve(published_sequence=3)
    assert applied(MarkPublished(TASK_ID, 4), task) == task.evolve(published_sequence=4, publish_at=None)
    assert applied(MarkPublished(TASK_ID, 9), task) == task.evolve(published_sequence=4, publish_at=None)


def test_a_relay_is_postponed_only_while_something_waits() -> None:
    assert PostponeRelay(TASK_ID, MINUTE).apply(queued(publish_at=None), NOW) is None
    assert applied(PostponeRelay(TASK_ID, MINUTE), queued()).publish_at == NOW + MINUTE


# --- history ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("published", [0, 1, 50, 99, 100, 101, 150])
def test_trimming_keeps_the_last_hundred_and_everything_unpublished(published: int) -> None:
    history = tuple(HistoryEntry(n, "released", NOW, 1, None, None) for n in range(1, 151))
    task = with_event(queued(history=history, sequence=150, published_sequence=published), "started", NOW)
    sequences = [entry.sequence for entry in task.history]
    assert sequences == list(range(sequences[0], 152)), "no gap"
    assert len(sequences) >= HISTORY_LENGTH
    assert sequences[0] == min(published, 151 - HISTORY_LENGTH) + 1
    assert [entry.sequence for entry in task.unpublished] == list(range(published + 1, 152))
