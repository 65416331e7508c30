"""The moves into WAITING and out of it: wait, count the sub-tasks, reopen."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar

from taskframework.model.attempts import AttemptEnd, ended_by_cancel
from taskframework.model.scope import Scope
from taskframework.model.status import TaskStatus
from taskframework.model.streams import is_serial
from taskframework.model.subtasks import Counts, Policy, Verdict, next_round
from taskframework.model.task import FAMILY_VERSION, Stage, Task
from taskframework.model.task_fields import Batch, SignalWait, Subtasks
from taskframework.model.transitions import (
    UngroupedWrite,
    claimable_at,
    framework_error,
    with_error,
    with_event,
    with_final_status,
)
from taskframework.model.values import Json

#: How long after the last check a waiting task is checked again without an event: a release that does not know parents
#: may have ended a sub-task without a report. The time is long because each check counts sub-tasks, and many tasks may
#: wait.
WAIT_CHECK_INTERVAL = timedelta(minutes=30)
#: How long the process that found a parent due for a count has for the count, before another process counts. The count
#: itself puts the next check off by `WAIT_CHECK_INTERVAL`.
RECOUNT_AFTER = timedelta(seconds=30)
#: How long the process in which sub-tasks were planned has to begin to store them, before another process does so.
SPAWN_AFTER = timedelta(seconds=5)
#: How long the process that reopened a parent has to replay a sub-task, before the sub-tasks are counted anyway.
REOPENED_COUNT_DELAY = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class Wait(AttemptEnd):
    """RUNNING → WAITING for sub-tasks, a signal, or whichever comes first. A task with a cancel request ends instead.

    Only this write makes the plan of the sub-tasks valid. An attempt that fails has planned nothing.
    """

    failpoint: ClassVar[str] = "settle.after_write"
    reply_failpoint: ClassVar[str] = "settle.reply"
    #: The round that begins; its number is set by the write.
    subtasks: Subtasks | None
    signal: str | None
    #: How long to wait for the signal; None: forever.
    timeout: timedelta | None
    #: The result of the task if its sub-tasks meet the policy and no other method continues it.
    result: Json = field(repr=False)

    def apply(self, task: Task, now: datetime) -> Task | None:
        if not self.fence.holds(task):
            return None
        settled = task.evolve(last_claim_id=self.fence.claim_id)
        if task.cancel is not None:
            return ended_by_cancel(settled, now, self.worker_id)
        waits_for = None
        if self.signal is not None:
            waits_for = SignalWait(self.signal, None if self.timeout is None else now + self.timeout)
        waiting = settled.evolve(
            status=TaskStatus.WAITING,
            schema_version=FAMILY_VERSION,
            lease=None,
            subtasks=self._round_after(task),
            spawn_at=None if self.subtasks is None else now + SPAWN_AFTER,
            waits_for=waits_for,
            # A round without sub-tasks is over at once, but no sub-task ends and reports this.
            check_at=now if self.is_empty_round else next_check_of(task, waits_for, now),
            result=self.result,
            error=None,
        )
        data = {"subtasks": self.subtasks and self.subtasks.planned, "signal": self.signal}
        return with_event(waiting, "waiting", now, worker_id=self.worker_id, data=data)

    @property
    def is_empty_round(self) -> bool:
        """Whether the round that begins has no sub-task, and is therefore over at once."""
        return self.subtasks is not None and self.subtasks.planned == 0

    def _round_after(self, task: Task) -> Subtasks | None:
        if self.subtasks is None:
            return None if task.subtasks is None else replace(task.subtasks, is_awaited=False)
        return replace(self.subtasks, round=next_round(task))


@dataclass(frozen=True, slots=True)
class CountSubtasks(UngroupedWrite):
    """Write a count of the sub-tasks into the parent. If the count decides the round, the parent continues or ends.

    A count is refused if another count was written since the parent was read (`report_serial`); the reporter then
    counts again. So an older count never replaces a newer count.
    """

    failpoint: ClassVar[str] = "report.after_write"
    reply_failpoint: ClassVar[str] = "mark.reply"
    task_id: str
    generation: int
    round: int
    report_serial: int
    policy: str
    resumes: bool
    counts: Counts
    verdict: Verdict | None
    #: How many sub-tasks had not ended when they were counted; 0 if it is not known how many there will be.
    unfinished: int = 0
    #: The error of one sub-task that failed, as a sentence; empty if none did, or if the round is not over.
    failure: str = field(default="", repr=False)

    @classmethod
    def of(cls, parent: Task, counts: Counts) -> CountSubtasks:
        """The move for counts that were made after the parent was read."""
        subtasks = parent.subtasks
        assert subtasks is not None, "only a task with sub-tasks is counted"
        verdict = None
        # As long as failed sub-tasks are still to be replayed, their failures do not decide the round.
        if subtasks.planned is not None and parent.retry_at is None:
            verdict = Policy(subtasks.policy).verdict(subtasks.planned, counts)
        # Failed sub-tasks of a reopened round may be replayed one after the other. The failures of the others must not
        # cancel those that are live again.
        if verdict is Verdict.NOT_MET and counts.done < (subtasks.planned or 0) and is_reopened(parent):
            verdict = None
        return cls(
            parent.task_id,
            parent.generation,
            subtasks.round,
            subtasks.report_serial,
            subtasks.policy,
            subtasks.resumes,
            counts,
            verdict,
            0 if subtasks.planned is None else subtasks.planned - counts.done,
        )

    def apply(self, task: Task, now: datetime) -> Task | None:
        subtasks = task.subtasks
        if (
            task.status is not TaskStatus.WAITING
            or subtasks is None
            or not subtasks.is_awaited
            or (task.generation, subtasks.round, subtasks.report_serial)
            != (self.generation, self.round, self.report_serial)
        ):
            return None
        counted = task.evolve(
            subtasks=replace(subtasks, done=self.counts.done, report_serial=subtasks.report_serial + 1, **self.data),
            batch=self._batch_of(task, now),
        )
        if self.verdict is None:
            return counted.evolve(
                check_at=next_check_of(task, task.waits_for, now),
                progress_revision=task.progress_revision + 1,
                revision=task.revision + 1,
                updated_at=now,
            )
        if self.verdict is not Verdict.NOT_MET and self.resumes:
            return resumed(counted, "resume", now, self.data)
        return self._ended(counted, now)

    @property
    def status(self) -> TaskStatus:
        """The status in which the parent ends if no method continues it."""
        return _STATUS_BY_VERDICT[self.verdict] if self.verdict is not None else TaskStatus.WAITING

    @property
    def data(self) -> dict[str, Any]:
        """The counts by how sub-tasks ended: fields of the round, and the data of the event in the history."""
        return {name: getattr(self.counts, name) for name in ("succeeded", "failed", "cancelled")}

    @property
    def message(self) -> str:
        """Why the parent failed."""
        counts = f"{self.counts.succeeded} succeeded, {self.counts.failed} failed, {self.counts.cancelled} cancelled"
        rest = f", {self.unfinished} not finished and therefore cancelled now" if self.unfinished else ""
        return f"The sub-tasks did not meet {self.policy}: {counts}{rest}. {self.failure}".rstrip()

    def _batch_of(self, task: Task, now: datetime) -> Batch | None:
        batch = task.batch
        if batch is None or batch.first_result_at is not None or not self.counts.succeeded:
            return batch
        return replace(batch, first_result_at=now)

    def _ended(self, counted: Task, now: datetime) -> Task:
        ended = with_final_status(counted, self.status, now)
        if self.status is TaskStatus.FAILED:
            error = framework_error("subtasks_failed", self.message, retryable=False, attempt=counted.attempts, at=now)
            ended = with_error(ended, error)
        else:
            ended = ended.evolve(result=counted.result)
        return with_event(ended, self.status.lower(), now, data=self.data)


_STATUS_BY_VERDICT = {
    Verdict.MET: TaskStatus.COMPLETED,
    Verdict.MET_WITH_ERRORS: TaskStatus.COMPLETED_WITH_ERRORS,
    Verdict.NOT_MET: TaskStatus.FAILED,
}


@dataclass(frozen=True, slots=True)
class Reopen(UngroupedWrite):
    """Let a finished parent wait for its newest round of sub-tasks again, because one of them is about to be replayed.

    This does not apply to a task of a serial stream. An operator can replay that task itself; it then waits for its
    turn. Nor does it apply to a batch whose upload was never completed.
    """

    failpoint: ClassVar[str] = "reopen.after_write"
    reply_failpoint: ClassVar[str] = "mark.reply"
    task_id: str
    scope: Scope
    by: str

    def apply(self, task: Task, now: datetime) -> Task | None:
        subtasks = task.subtasks
        if not task.status.is_final or subtasks is None or not self.scope.covers(task.user_id):
            return None
        if subtasks.plan_records > 0:  # it ended while a large plan was being stored; the plan's records may be deleted
            return None
        if is_serial(task):  # another task has the turn of its stream, and both must not run at once
            return None
        if subtasks.planned is None:  # the upload of this batch is not continued, so it would be cancelled again
            return None
        if went_on_without(subtasks):
            return None
        waiting = task.evolve(
            status=TaskStatus.WAITING,
            subtasks=subtasks.reopened(),
            finished_at=None,
            purge_at=None,
            cancel=None,
            discarded=None,
            deadline=None,
            error=None,
            # The retry of a batch that a cancel ended stays ended.
            retry_at=None,
            batch=None if task.batch is None else replace(task.batch, retry_until=None),
            # A method will give a new result; without such a method, the result is what `execute` returned.
            result=None if subtasks.resumes else task.result,
            cascade_at=None,
            # If it ended while the plan was being stored, the rest of the plan has to be stored now.
            spawn_at=now + SPAWN_AFTER if subtasks.is_being_stored else None,
            # In case the process that asked for this dies before it replays a sub-task.
            check_at=now + REOPENED_COUNT_DELAY,
            # As after a replay, readers of its stream wait for its new end.
            stream=None if task.stream is None else replace(task.stream, is_skipped=False),
        )
        return with_event(waiting, "reopened", now, data={"by": self.by})


def is_reopened(task: Task) -> bool:
    """Return whether a task waits again for a round that was over before."""
    begun = [entry.type for entry in task.history if entry.type in ("waiting", "reopened")]
    return task.status is TaskStatus.WAITING and begun[-1:] == ["reopened"]


def went_on_without(subtasks: Subtasks) -> bool:
    """Return whether the code of a parent went on without this round, and no method of it takes what comes of it."""
    return not subtasks.is_awaited and not subtasks.resumes


def resumed(task: Task, stage: Stage, now: datetime, data: Json) -> Task:
    """WAITING → QUEUED: the next attempt calls another method, and the count of attempts starts again at 0. The task no
    longer waits for sub-tasks that are still live, so they are cancelled.
    """
    if stage == "signal" and task.subtasks is not None:
        task = task.evolve(subtasks=replace(task.subtasks, is_awaited=False))
    queued = claimable_at(task, TaskStatus.QUEUED, now).evolve(
        stage=stage,
        attempts=0,
        crashes=0,
        releases=0,
        spawn_at=None,
        check_at=None,
        waits_for=None,
        cascade_at=now if task.subtasks is not None and task.subtasks.is_open else task.cascade_at,
    )
    return with_event(queued, "resumed", now, data=data)


def next_check_of(task: Task, wait: SignalWait | None, now: datetime) -> datetime:
    """When a waiting task must be checked: now, if it has its signal already."""
    if wait is not None and any(signal.name == wait.name and not signal.is_heard for signal in task.signals):
        return now
    until = wait.until if wait is not None else None
    return now + WAIT_CHECK_INTERVAL if until is None else min(until, now + WAIT_CHECK_INTERVAL)
