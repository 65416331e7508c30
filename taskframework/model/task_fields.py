"""What the fields of a task contain: small records, each stored as a document within the document of the task."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime

from taskframework.model.values import Json


@dataclass(frozen=True, slots=True)
class Lease:
    """A worker's right to a running task until `expires_at` by the store's clock."""

    worker_id: str
    claim_id: str
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """The request that the task should end. If a completion competes with it, the first final write wins."""

    by: str
    at: datetime
    reason: str | None


@dataclass(frozen=True, slots=True)
class Discarded(CancelRequest):
    """An operator gave a dead letter up: no list of dead letters shows it any more."""


@dataclass(frozen=True, slots=True)
class TaskError:
    """Why an attempt, or the task, failed. `fingerprint` is equal for errors of one cause."""

    code: str
    type: str
    message: str
    retryable: bool
    fingerprint: str
    traceback: str | None = None
    attempt: int = 0
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One lifecycle event: the timeline a person reads and the outbox the relay publishes."""

    sequence: int
    type: str
    at: datetime
    attempt: int
    worker_id: str | None
    data: Json


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """The outcome of a step of the task. A user chose the step's name, so it is a value, not the name of a field."""

    step: str
    outcome: Json = field(repr=False)


@dataclass(frozen=True, slots=True)
class ParentLink:
    """Which task this one is a sub-task of: the generation and round in which the parent planned it, and its slot."""

    task_id: str
    generation: int
    slot: int
    #: The rounds of a generation count from 1.
    round: int = 1
    #: How many tasks are above this one.
    depth: int = 1
    #: Whether it is a chunk of a batch: its parameters are a list of items, and its result is a list of results.
    is_chunk: bool = False


@dataclass(frozen=True, slots=True)
class Subtasks:
    """The newest round of sub-tasks of a task, and how far it is by the last count."""

    #: How many there are; None while a batch is still open.
    planned: int | None
    #: The sub-tasks that are still to be stored, as `model.subtasks` describes them. None once all are stored.
    plan: Json = field(repr=False)
    done: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    round: int = 1
    #: When the round is decided and how, as `Policy.text`.
    policy: str = "all_must_succeed"
    #: Whether the task continues in `on_subtasks_finished` when the policy is met.
    resumes: bool = False
    #: How many records hold the plan if it is too large for this document; 0 if the plan is in `plan`.
    plan_records: int = 0
    #: Raised by each count that is written, so that an older count cannot overwrite a newer one.
    report_serial: int = 0
    #: Whether the task waits for this round; false after it has continued without the round.
    is_awaited: bool = True
    #: How many rounds without sub-tasks came one after the other, this one included; 0 if this round has sub-tasks.
    empty_rounds: int = 0

    @property
    def is_open(self) -> bool:
        """Whether sub-tasks may still be alive, by the last count."""
        return self.planned is None or self.done < self.planned

    def reopened(self) -> Subtasks:
        """The round that is awaited again: sub-tasks without success may be live, and counts begun before are void."""
        return replace(
            self, done=self.succeeded, failed=0, cancelled=0, is_awaited=True, report_serial=self.report_serial + 1
        )

    @property
    def is_being_stored(self) -> bool:
        """Whether some sub-tasks of the plan may not be stored yet."""
        return self.plan is not None or self.plan_records > 0


@dataclass(frozen=True, slots=True)
class Batch:
    """What makes a task a batch: a parent without code, whose sub-tasks are the items of an upload."""

    #: Items in one sub-task; the last sub-task may have fewer.
    chunk_size: int = 1
    #: How many items were announced; only these are stored. After the seal, how many items the batch has.
    items: int = 0
    #: When a count first found a sub-task that had succeeded.
    first_result_at: datetime | None = None
    #: Sub-tasks that ended without success up to this time are to be replayed. None: no retry is open.
    retry_until: datetime | None = None
    #: The earliest start of the sub-tasks. None: the batch was stored by a release without this field.
    not_before: datetime | None = None


@dataclass(frozen=True, slots=True)
class Signal:
    """A named message to the task from outside. One key is one signal, even if it is sent several times."""

    key: str
    name: str
    at: datetime
    payload: Json = field(default=None, repr=False)
    #: Whether the task has continued with this signal; its payload is then deleted.
    is_heard: bool = False
    #: Whether the signal did not come in time, so that the task continues without it.
    timed_out: bool = False


@dataclass(frozen=True, slots=True)
class SignalWait:
    """Which signal a waiting task waits for, and until when."""

    name: str
    #: None: forever.
    until: datetime | None


@dataclass(frozen=True, slots=True)
class LimitWait:
    """The task was put off because a limit let no more tasks begin. It has a turn, which only this epoch can use."""

    #: The id of the record of the bucket or of the slots.
    limit: str
    dispatch_epoch: int
    #: When its turn comes.
    until: datetime


@dataclass(frozen=True, slots=True)
class HeldSlot:
    """The slot of a concurrency limit with which an attempt began. It is held while the task runs under that claim."""

    #: The id of the limit's record.
    limit: str
    claim_id: str
