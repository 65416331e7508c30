"""Batches: an upload that is announced and sealed, abandoned or retried; and what everybody sees of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from taskframework.model.batch_status import BatchStatus, items_by_status, results_of
from taskframework.model.batches import AbandonUpload, Announce, EndRetry, ReopenBatch, Seal, parts_of, subtask_group
from taskframework.model.drivers import missing_drivers
from taskframework.model.interventions import Cancel, Replay
from taskframework.model.message import rfc3339
from taskframework.model.scope import EVERYONE, Scope
from taskframework.model.status import FINAL, REPLAYABLE, Priority, TaskStatus
from taskframework.model.subtasks import Counts, subtask_of
from taskframework.model.task import FAMILY_VERSION, Task
from taskframework.model.task_fields import Batch, CancelRequest, ParentLink, Subtasks
from taskframework.model.transitions import framework_error
from taskframework.model.waiting import CountSubtasks, resumed
from tests.unit.model.scenes import MINUTE, NOW, SECOND, TASK_ID, ZERO, in_status

HOUR = timedelta(hours=1)


def open_batch(**changes: Any) -> Task:
    fields = {"batch": Batch(), "subtasks": Subtasks(None, None), "check_at": NOW + HOUR, "seal_by": NOW + MINUTE}
    return in_status(TaskStatus.WAITING, **{**fields, **changes})


ROUND = Subtasks(5, None, done=4, succeeded=1, failed=2, cancelled=1, report_serial=3, policy="allow_failures")


def sealed_batch(status: TaskStatus = TaskStatus.WAITING, **changes: Any) -> Task:
    return in_status(status, **{"batch": Batch(items=5), "subtasks": ROUND, "check_at": NOW + HOUR, **changes})


def made(move: Any, task: Task) -> Task:
    after = move.apply(task, NOW)
    assert isinstance(after, Task)
    return after


class TestUpload:
    def test_an_announcement_counts_items_and_moves_the_seal_time_forward(self) -> None:
        batch = made(Announce(TASK_ID, 500, HOUR), open_batch())
        assert (parts_of(batch)[0].items, batch.seal_by) == (500, NOW + HOUR)

    def test_an_upload_that_is_repeated_takes_nothing_back(self) -> None:
        assert parts_of(made(Announce(TASK_ID, 3, HOUR), open_batch(batch=Batch(items=500))))[0].items == 500

    def test_no_item_is_announced_in_a_batch_that_is_sealed_or_ended(self) -> None:
        assert Announce(TASK_ID, 9, HOUR).apply(sealed_batch(), NOW) is None
        assert Announce(TASK_ID, 9, HOUR).apply(in_status(TaskStatus.WAITING), NOW) is None
        over = made(Cancel(TASK_ID, EVERYONE, "alice", None), open_batch())
        assert Announce(TASK_ID, 9, HOUR).apply(over, NOW) is None

    @pytest.mark.parametrize(("items", "chunk_size", "planned"), [(1, 1, 1), (5, 1, 5), (5, 2, 3), (6, 2, 3)])
    def test_the_seal_says_how_many_there_are(self, items: int, chunk_size: int, planned: int) -> None:
        batch = made(Seal(TASK_ID, items), open_batch(batch=Batch(chunk_size, items)))
        assert parts_of(batch)[1].planned == planned
        assert (batch.seal_by, batch.check_at) == (None, NOW), "all of them may have ended already"
        assert batch.history[-1].type == "sealed"

    def test_a_count_from_before_the_seal_does_not_put_off_the_look_after_it(self) -> None:
        batch = open_batch(batch=Batch(items=1))
        assert CountSubtasks.of(batch, Counts(1)).apply(made(Seal(TASK_ID, 1), batch), NOW) is None

    @pytest.mark.parametrize("announced", [4, 6])
    def test_a_seal_with_another_number_than_announced_is_refused(self, announced: int) -> None:
        assert Seal(TASK_ID, 5).apply(open_batch(batch=Batch(items=announced)), NOW) is None

    def test_a_batch_is_sealed_once(self) -> None:
        assert Seal(TASK_ID, 5).apply(sealed_batch(), NOW) is None

    def test_an_upload_that_does_not_go_on_in_time_is_abandoned(self) -> None:
        assert AbandonUpload(TASK_ID).apply(open_batch(seal_by=NOW + SECOND), NOW) is None
        batch = made(AbandonUpload(TASK_ID), open_batch(seal_by=NOW))
        assert batch.status is TaskStatus.CANCELLED
        assert batch.error is not None
        assert batch.error.code == "upload_abandoned"
        assert batch.cascade_at == NOW, "what is stored of it is cancelled"
        assert AbandonUpload(TASK_ID).apply(sealed_batch(seal_by=NOW), NOW) is None

    def test_a_batch_that_waits_for_its_upload_is_driven(self) -> None:
        assert missing_drivers(open_batch()) == []


class TestRetry:
    @pytest.mark.parametrize("status", [*sorted(FINAL), TaskStatus.WAITING])
    def test_a_batch_waits_for_what_did_not_succeed(self, status: TaskStatus) -> None:
        batch = made(ReopenBatch(TASK_ID, EVERYONE, "alice"), sealed_batch(status))
        own, subtasks = parts_of(batch)
        assert (batch.status, batch.finished_at) == (TaskStatus.WAITING, None)
        assert (own.retry_until, subtasks.done, subtasks.failed, subtasks.cancelled) == (NOW, 1, 0, 0)
        assert batch.retry_at is not None
        assert missing_drivers(batch) == []

    @pytest.mark.parametrize(
        "batch",
        [
            sealed_batch(TaskStatus.COMPLETED, subtasks=replace(ROUND, policy="first_success")),
            sealed_batch(TaskStatus.COMPLETED, subtasks=replace(ROUND, failed=0, cancelled=0)),
            sealed_batch(TaskStatus.RUNNING),
            open_batch(),
            open_batch().evolve(status=TaskStatus.CANCELLED),
            in_status(TaskStatus.FAILED, subtasks=Subtasks(3, None)),
            sealed_batch(TaskStatus.CANCELLED, cascade_at=NOW),
        ],
        ids=["policy met", "all succeeded", "at its end", "open", "abandoned", "no batch", "being cancelled"],
    )
    def test_a_batch_that_cannot_be_retried_is_not_reopened(self, batch: Task) -> None:
        assert ReopenBatch(TASK_ID, EVERYONE, "alice").apply(batch, NOW) is None

    def test_a_batch_of_another_owner_is_not_reopened(self) -> None:
        assert ReopenBatch(TASK_ID, Scope.of("bob"), "bob").apply(sealed_batch(TaskStatus.FAILED), NOW) is None

    def test_a_reopened_batch_has_no_fields_of_its_end(self) -> None:
        error = framework_error("deadline", "too late", retryable=False)
        end = {
            "cancel": CancelRequest("alice", NOW, None),
            "deadline": NOW,
            "purge_at": NOW,
            "error": error,
            "result": 1,
        }
        batch = made(ReopenBatch(TASK_ID, EVERYONE, "alice"), sealed_batch(TaskStatus.FAILED, **end))
        assert [getattr(batch, name) for name in end] == [None] * len(end)

    def test_a_batch_that_has_not_ended_keeps_its_deadline(self) -> None:
        batch = sealed_batch(deadline=NOW + HOUR)
        assert made(ReopenBatch(TASK_ID, EVERYONE, "alice"), batch).deadline == NOW + HOUR

    def test_a_cancel_in_the_middle_cancels_what_was_replayed(self) -> None:
        batch = made(ReopenBatch(TASK_ID, EVERYONE, "alice"), sealed_batch(TaskStatus.COMPLETED_WITH_ERRORS))
        assert made(Cancel(TASK_ID, EVERYONE, "alice", None), batch).cascade_at == NOW

    def test_no_count_ends_a_batch_that_is_being_retried(self) -> None:
        before = sealed_batch()
        old = CountSubtasks.of(before, Counts(1, 3, 1))
        batch = made(ReopenBatch(TASK_ID, EVERYONE, "alice"), before)
        assert old.apply(batch, NOW) is None, "it was begun before"
        counted = made(CountSubtasks.of(batch, Counts(1, 3, 1)), batch)
        assert counted.status is TaskStatus.WAITING

    def test_a_retried_batch_ends_by_a_count_after_the_retry(self) -> None:
        batch = made(ReopenBatch(TASK_ID, EVERYONE, "alice"), sealed_batch())
        assert batch.retry_at is not None
        assert EndRetry(TASK_ID, NOW - HOUR).apply(batch, NOW) is None, "another process has it in hand"
        retried = made(EndRetry(TASK_ID, batch.retry_at), batch)
        assert CountSubtasks.of(batch, Counts(5)).apply(retried, NOW) is None, "it would put off the look"
        assert (retried.retry_at, parts_of(retried)[0].retry_until, retried.check_at) == (None, None, NOW)
        assert made(CountSubtasks.of(retried, Counts(5)), retried).status is TaskStatus.COMPLETED

    @pytest.mark.parametrize("status", sorted(REPLAYABLE))
    def test_a_batch_itself_is_never_queued(self, status: TaskStatus) -> None:
        assert Replay(TASK_ID, EVERYONE, "alice", ZERO).apply(sealed_batch(status), NOW) is None


def test_the_items_of_a_batch_are_done_as_it_says() -> None:
    options = {"priority": Priority.HIGH, "max_attempts": 7, "not_before": NOW + HOUR, "user_id": "alice"}
    batch = open_batch(**options)
    item = subtask_of(batch, 2, subtask_group(batch), {"n": 2}, "hash", NOW, MINUTE)
    assert {name: getattr(item, name) for name in options} == options
    assert item.task_type == batch.task_type
    assert item.parent == ParentLink(TASK_ID, 0, 2)
    deadline, above = NOW + HOUR, ParentLink("top", 0, 0, depth=3)
    parent = open_batch(batch=Batch(chunk_size=2), parent=above, generation=1)
    group = {**subtask_group(parent), "deadline": deadline.isoformat(), "correlation_id": "own"}
    chunk = subtask_of(parent, 2, group, [1, 2], "hash", NOW, MINUTE)
    assert (chunk.deadline, chunk.correlation_id, chunk.schema_version) == (deadline, "own", FAMILY_VERSION)
    assert chunk.parent == ParentLink(TASK_ID, 1, 2, depth=4, is_chunk=True)


class TestFirstResult:
    def test_the_first_count_with_a_success_tells_the_time(self) -> None:
        batch = open_batch()
        failed = made(CountSubtasks.of(batch, Counts(failed=1)), batch)
        assert parts_of(failed)[0].first_result_at is None
        first = made(CountSubtasks.of(failed, Counts(1, 1)), failed)
        assert parts_of(first)[0].first_result_at == NOW
        later = CountSubtasks.of(first, Counts(2, 1)).apply(first, NOW + MINUTE)
        assert later is not None
        assert parts_of(later)[0].first_result_at == NOW


class TestStatus:
    def test_the_status_of_a_batch_has_its_progress_and_estimated_end(self) -> None:
        batch = sealed_batch(created_at=NOW - 10 * SECOND, not_before=NOW - 10 * SECOND)
        counts = {TaskStatus.COMPLETED: 1, TaskStatus.FAILED: 1, TaskStatus.RUNNING: 1}
        status = BatchStatus(batch, NOW, counts)
        assert (status.total, status.ended, status.percent) == (5, Counts(1, 1), 40.0)
        assert (status.rate, status.estimated_end) == (0.2, NOW + 15 * SECOND)

    @pytest.mark.parametrize(
        ("stored", "was_resumed", "not_before", "rate"),
        [
            (NOW - 10 * SECOND, True, NOW - 10 * SECOND, 0.4),
            (None, False, NOW - 10 * SECOND, 0.4),
            (None, True, NOW - 20 * SECOND, 0.2),
        ],
        ids=["stored", "of an older release", "of an older release, in its own method"],
    )
    def test_an_attempt_of_its_own_method_does_not_move_the_start_of_a_batch(
        self, stored: datetime | None, was_resumed: bool, not_before: datetime, rate: float
    ) -> None:
        times: dict[str, Any] = {"created_at": NOW - 20 * SECOND, "not_before": NOW - 10 * SECOND}
        batch = sealed_batch(batch=Batch(items=5, not_before=stored), **times)
        status = BatchStatus(resumed(batch, "resume", NOW - SECOND, None) if was_resumed else batch, NOW)
        assert (status.rate, status.view()["not_before"]) == (rate, rfc3339(not_before))

    def test_the_status_of_an_open_batch_has_no_estimate(self) -> None:
        status = BatchStatus(open_batch(batch=Batch(items=3)), NOW, {TaskStatus.COMPLETED: 2})
        assert (status.total, status.percent, status.estimated_end) == (3, None, None)
        status = BatchStatus(sealed_batch(), NOW, {TaskStatus.QUEUED: 5})
        assert (status.percent, status.rate, status.estimated_end) == (0.0, None, None)

    def test_items_that_will_be_replayed_do_not_count_as_ended(self) -> None:
        batch = sealed_batch(TaskStatus.CANCELLED, created_at=NOW - 10 * SECOND, not_before=NOW - 10 * SECOND)
        counts = {TaskStatus.COMPLETED: 1, TaskStatus.CANCELLED: 4}
        assert BatchStatus(batch, NOW, counts).percent == 100.0
        reopened = made(ReopenBatch(TASK_ID, EVERYONE, "alice"), batch)
        status = BatchStatus(reopened, NOW, counts)
        assert (status.ended, status.percent, status.rate) == (Counts(1), 20.0, 0.1)
        assert status.estimated_end is None
        assert reopened.retry_at is not None
        cancelled = reopened.evolve(status=TaskStatus.CANCELLED)
        assert BatchStatus(cancelled, NOW, counts).ended == Counts(1, 0, 4), "it is over, whoever replayed what"
        replayed = made(EndRetry(TASK_ID, reopened.retry_at), reopened)
        again = BatchStatus(replayed, NOW, {TaskStatus.COMPLETED: 1, TaskStatus.FAILED: 3, TaskStatus.RUNNING: 1})
        assert (again.percent, again.estimated_end) == (80.0, None)

    def test_the_status_of_a_batch_without_a_new_count_shows_the_last_one(self) -> None:
        assert BatchStatus(sealed_batch(), NOW).ended == Counts(1, 2, 1)

    @pytest.mark.parametrize(("last", "running"), [(TaskStatus.RUNNING, 1), (TaskStatus.COMPLETED, 2), (None, 2)])
    def test_the_last_chunk_may_have_fewer_items(self, last: TaskStatus | None, running: int) -> None:
        batch = sealed_batch(batch=Batch(2, 5), subtasks=Subtasks(3, None))
        items = items_by_status(batch, {TaskStatus.COMPLETED: 2, TaskStatus.RUNNING: 1}, last)
        assert items[TaskStatus.RUNNING] == running
        assert sum(items.values()) == (5 if last else 6)

    def test_each_item_of_a_chunk_has_its_own_result(self) -> None:
        chunk = in_status(TaskStatus.COMPLETED, parameters=["a", "b"], result=[1, 2], parent=ParentLink("p", 0, 3))
        assert [(result.index, result.result) for result in results_of(chunk, 2)] == [(6, 1), (7, 2)]
        waiting = replace(chunk, status=TaskStatus.QUEUED, result=None)
        assert [(result.index, result.result) for result in results_of(waiting, 2)] == [(6, None), (7, None)]
