"""Sub-tasks: the policies that decide a round, the plan of a round, and the tasks that the plan becomes.

A plan is JSON: a list of groups `{"task_type": …, <options of all its sub-tasks>, "items": […]}`. Each item is a pair:
the parameters of one sub-task, and their hash. Slots are numbered through all groups.
"""

from __future__ import annotations

import enum
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar, Self

from taskframework.model.options import KeptFor, StartLimit
from taskframework.model.status import DEAD, SUCCEEDED, TaskStatus
from taskframework.model.task import FAMILY_VERSION, Task, initial_fields, record_from_document
from taskframework.model.task_fields import ParentLink, Subtasks
from taskframework.model.values import Json

#: Sub-tasks of one round: as many as one upload of a batch may have.
MAX_SUBTASKS = 100_000
#: Most rounds without sub-tasks that a task may plan one after the other. Nothing happens between such rounds, so more
#: of them are an endless loop.
MAX_EMPTY_ROUNDS = 100
#: The options of a submission that a sub-task may have too. It needs no idempotency key: its slot identifies it.
SUBTASK_OPTIONS = ("priority", "max_attempts", "not_before", "deadline", "correlation_id")
#: A process that was storing or replaying sub-tasks when their parent ended may store or replay more of them. For this
#: long after the end, and with these pauses, the cascade looks for them.
LATE_SPAWN_TIME = timedelta(minutes=1)
LATE_SPAWN_PAUSE = timedelta(seconds=5)
#: How many levels of parents a task may have. A cancel goes down level by level, and no known use needs more levels.
MAX_DEPTH = 16
#: The namespace of the ids of sub-tasks. Its value is arbitrary, but must never change.
_ID_NAMESPACE = uuid.UUID("b1d5e2a4-1c1b-5a8e-9d57-3f0f6a1f2c77")
_AT_LEAST = re.compile(r"at_least\(([1-9][0-9]{0,5})\)")
#: The form of a policy as a regular expression, for the OpenAPI document.
POLICY_PATTERN = r"^(all_must_succeed|allow_failures|first_success|at_least\([1-9][0-9]{0,5}\))$"


class Verdict(enum.Enum):
    """How a round of sub-tasks was decided."""

    MET = "met"
    MET_WITH_ERRORS = "met with errors"
    NOT_MET = "not met"


@dataclass(frozen=True, slots=True)
class Counts:
    """How many sub-tasks of a round are over, and how they ended."""

    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0

    @property
    def done(self) -> int:
        return self.succeeded + self.failed + self.cancelled

    @classmethod
    def of(cls, by_status: Mapping[TaskStatus, int]) -> Self:
        """The counts, from the numbers of sub-tasks in each status."""
        ends = SUCCEEDED, DEAD, {TaskStatus.CANCELLED}
        return cls(*(sum(by_status.get(status, 0) for status in statuses) for statuses in ends))


def count_deleted(subtasks: Subtasks, by_status: Mapping[TaskStatus, int]) -> int:
    """How many sub-tasks of a round were stored once and are not there any more; 0 if some may not be stored yet."""
    if subtasks.planned is None or subtasks.is_being_stored:
        return 0
    return subtasks.planned - sum(by_status.values())


@dataclass(frozen=True, slots=True)
class Policy:
    """When a round of sub-tasks is decided: `all_must_succeed`, `allow_failures`, `first_success` or `at_least(n)`."""

    #: The accepted values, for messages to people.
    ACCEPTED: ClassVar[str] = "all_must_succeed, allow_failures, first_success or at_least(number)"
    text: str

    @staticmethod
    def is_one(text: object) -> bool:
        """Return whether a value is the text of a policy."""
        return isinstance(text, str) and (text in _POLICY_NAMES or _AT_LEAST.fullmatch(text) is not None)

    @classmethod
    def parse(cls, text: object) -> Self:
        """Read a policy.

        Raises:
            ValueError: if the value is not the text of a policy.
        """
        if isinstance(text, str) and cls.is_one(text):
            return cls(text)
        raise ValueError(f"must be {cls.ACCEPTED}")

    def verdict(self, planned: int, counts: Counts) -> Verdict | None:
        """The verdict of these counts; None while the result still depends on the other sub-tasks."""
        bad = counts.failed + counts.cancelled
        if self.text == ALLOW_FAILURES:
            if counts.done < planned:
                return None
            return Verdict.MET_WITH_ERRORS if bad else Verdict.MET
        needed = self.needed(planned)
        if counts.succeeded >= needed:
            return Verdict.MET
        return Verdict.NOT_MET if planned - bad < needed else None

    def needed(self, planned: int) -> int:
        """How many sub-tasks must succeed to meet the policy; with `allow_failures`, how many must have ended."""
        if (match := _AT_LEAST.fullmatch(self.text)) is not None:
            return int(match[1])
        return 1 if self.text == "first_success" else planned


#: The only policy that waits for all sub-tasks, however they end.
ALLOW_FAILURES = "allow_failures"
_POLICY_NAMES = ("all_must_succeed", ALLOW_FAILURES, "first_success")


def at_least(number: int) -> str:
    """The policy of a task that needs this many of its sub-tasks to succeed.

    Raises:
        ValueError: if `number` is not a whole number from 1 to 999,999.
    """
    if not Policy.is_one(text := f"at_least({number})"):
        raise ValueError(f"at_least takes a whole number from 1 to 999,999, not {number!r}")
    return text


def subtask_id(parent_id: str, generation: int, round: int, slot: int) -> str:
    """The id of a sub-task. Every process that inserts it derives the same id, so repeated inserts make one task."""
    return str(uuid.uuid5(_ID_NAMESPACE, f"{parent_id}/{generation}/{round}/{slot}"))


def planned_tasks(
    parent: Task,
    plan: list[dict[str, Any]],
    now: Callable[[], datetime],
    dispatch_after: timedelta,
    *,
    first_slot: int = 0,
) -> Iterator[Task]:
    """The sub-tasks of a plan, in slot order.

    Args:
        parent: the task that planned them, in its waiting state.
        plan: the groups.
        now: tells the store's time. It is called for each sub-task, because a large plan takes a while.
        dispatch_after: as in `NewTasks`.
        first_slot: the slot of the first item.
    """
    slot = first_slot
    for group in plan:
        for parameters, parameters_hash in group["items"]:
            yield subtask_of(parent, slot, group, parameters, parameters_hash, now(), dispatch_after)
            slot += 1


def subtask_of(
    parent: Task,
    slot: int,
    group: Mapping[str, Any],
    parameters: Json,
    parameters_hash: str,
    now: datetime,
    dispatch_after: timedelta,
) -> Task:
    """One sub-task of the current round, in the state in which it is first stored."""
    subtasks = parent.subtasks
    assert subtasks is not None, "only a task with sub-tasks has a round of them"
    not_before = max(now, _moment(group.get("not_before")) or now)
    start_limit = _record(StartLimit, group.get("start_limit"))
    return Task.new(
        initial_fields(not_before, now, dispatch_after, start_limit),
        task_id=subtask_id(parent.task_id, parent.generation, subtasks.round, slot),
        schema_version=FAMILY_VERSION,
        task_type=group["task_type"],
        priority=group["priority"],
        max_attempts=group["max_attempts"],
        user_id=parent.user_id,
        correlation_id=group.get("correlation_id", parent.correlation_id),
        traceparent=parent.traceparent,
        parameters=parameters,
        parameters_hash=parameters_hash,
        parent=ParentLink(
            parent.task_id, parent.generation, slot, subtasks.round, depth_below(parent), is_chunk=_has_chunks(parent)
        ),
        not_before=not_before,
        deadline=_moment(group.get("deadline")),
        created_at=now,
        updated_at=now,
        start_limit=start_limit,
        retention=_record(KeptFor, group.get("retention")),
    )


def may_grow_until(parent: Task) -> datetime | None:
    """Until when an ended parent may get further live sub-tasks, from a process that was about to store or to replay
    one when the parent ended; None if there is no such process.
    """
    subtasks = parent.subtasks
    is_growing = subtasks is not None and (subtasks.is_being_stored or subtasks.planned is None)
    if parent.status is TaskStatus.WAITING or not (is_growing or parent.retry_at is not None):
        return None
    return (parent.finished_at or parent.updated_at) + LATE_SPAWN_TIME


def _has_chunks(parent: Task) -> bool:
    return parent.batch is not None and parent.batch.chunk_size > 1


def depth_below(parent: Task) -> int:
    """How many tasks are above a sub-task of this one."""
    return parent.parent.depth + 1 if parent.parent else 1


def next_round(parent: Task) -> int:
    """The number of the round that a running task may plan."""
    return parent.subtasks.round + 1 if parent.subtasks else 1


def empty_rounds(parent: Task, planned: int) -> int:
    """How many rounds without sub-tasks come one after the other, including a new round of `planned` sub-tasks."""
    if planned:
        return 0
    return 1 + (parent.subtasks.empty_rounds if parent.subtasks and parent.stage == "resume" else 0)


def _record(kind: type[Any], document: Mapping[str, Any] | None) -> Any:
    return None if document is None else record_from_document(kind, document)


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
