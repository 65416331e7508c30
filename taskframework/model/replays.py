"""Actions on many tasks at once: a record for each, and the pure rules of how it goes on.

Whoever sees one that is due takes the next few tasks of its list, writes them into the record by compare and set, does
what is to be done with each of them, and writes what became of them. A process that dies in between leaves a record
that names the tasks in hand: whoever takes it over asks each of them whether it was done already.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from taskframework.model.letters import LetterFilter
from taskframework.model.query import TaskFilter
from taskframework.model.records import RecordKind
from taskframework.model.status import DEAD, TaskStatus
from taskframework.model.task import Task
from taskframework.model.view import moment

#: How long other processes leave an action alone that one has in hand.
IN_HAND = timedelta(seconds=10)
#: Tasks in hand at once; at a rate those of a second, if they are fewer.
MOST_IN_HAND = 100
#: Refusals that a record tells, the newest.
_REFUSALS_TOLD = 20
#: A pause of the carriers is made up for by no more than so much of the rate.
_CATCH_UP = timedelta(seconds=1)


class Action(StrEnum):
    """What is done with each."""

    REPLAY = "replay"
    DISCARD = "discard"
    RETRY = "retry"
    CANCEL = "cancel"


class ReplayStatus(StrEnum):
    """How far it is."""

    RUNNING = "RUNNING"
    DONE = "DONE"
    STOPPED = "STOPPED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """What is chosen; None means any. A text is looked for in the message of the error, or in a message's reason."""

    task_type: str | None = None
    user_id: str | None = None
    fingerprint: str | None = None
    text: str | None = None
    #: Of dead letters alone.
    kind: str | None = None
    #: Of tasks alone.
    status: TaskStatus | None = None
    parent_task_id: str | None = None
    stream: str | None = None

    @property
    def conditions(self) -> dict[str, str]:
        """What is chosen by, without what may be anything."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: str(value) for name, value in values.items() if value is not None}

    @property
    def letters(self) -> LetterFilter:
        """The same of dead letters."""
        kind: Any = self.kind
        return LetterFilter(kind=kind, task_type=self.task_type, fingerprint=self.fingerprint, text=self.text)


@dataclass(frozen=True, slots=True)
class Refused:
    """One that was not done, and why."""

    id: str
    problem: str
    #: It went wrong, where others were refused by a rule.
    is_failure: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ManyReplay:
    """One action on many. Times are the store's, in UTC and whole milliseconds."""

    replay_id: str
    action: Action
    where: Where
    by: str
    #: What ended after this time is left alone: it was replayed meanwhile, and failed again.
    at: datetime
    reason: str | None = None
    reopen: bool = False
    #: So many a second; None: as fast as it goes.
    rate: float | None = None
    status: ReplayStatus = ReplayStatus.RUNNING
    total: int
    #: There are more than `total`, which was not counted further.
    is_total_bounded: bool = False
    done: int = 0
    refused: int = 0
    failed: int = 0
    refusals: tuple[Refused, ...] = ()
    #: Which of its lists it is at, and where in that.
    part: int = 0
    cursor: str | None = None
    #: Those in hand, and a number that tells one handful from the next.
    batch: tuple[str, ...] = ()
    batch_number: int = 0
    #: When the next handful is due; while some are in hand, when another process takes them over.
    due_at: datetime
    #: Up to when the rate is used up.
    paced_until: datetime
    finished_at: datetime | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to be done for it."""
        return self.status is not ReplayStatus.RUNNING and not self.batch

    @property
    def lists(self) -> tuple[TaskFilter, ...]:
        """The lists of tasks that it goes through, one after the other."""
        return lists_of(self.action, self.where, self.at)

    @property
    def has_messages(self) -> bool:
        """Whether kept messages are done after the tasks."""
        return goes_through_messages(self.action, self.where)

    @property
    def size(self) -> int:
        """How many to take in hand."""
        return MOST_IN_HAND if self.rate is None else max(1, min(MOST_IN_HAND, int(self.rate)))


REPLAY = RecordKind("replay", ManyReplay)


@dataclass(frozen=True, slots=True)
class UnderWay:
    """That an action is not over: those that are looked at each second."""

    at: datetime


UNDER_WAY = RecordKind("replay-under-way", UnderWay)

#: Tasks of a status that comes later here may come from those before, so a second round finds what moved on meanwhile.
_CANCELLED_IN_ORDER = (
    TaskStatus.BLOCKED,
    TaskStatus.WAITING,
    TaskStatus.QUEUED,
    TaskStatus.RETRYING,
    TaskStatus.RUNNING,
) * 2


def lists_of(action: Action, where: Where, at: datetime) -> tuple[TaskFilter, ...]:
    """The lists of tasks that an action which began at a time goes through, one after the other."""
    if action in (Action.REPLAY, Action.DISCARD):
        return () if where.kind == "message" else (where.letters.of_tasks(at),)
    statuses = _CANCELLED_IN_ORDER if action is Action.CANCEL else tuple(sorted(DEAD))
    return tuple(
        TaskFilter(
            status,
            where.task_type,
            where.parent_task_id,
            where.stream,
            fingerprint=where.fingerprint,
            error=where.text,
        )
        for status in ([where.status] if where.status is not None else statuses)
    )


def goes_through_messages(action: Action, where: Where) -> bool:
    """Whether kept messages are done after the tasks."""
    return action is Action.DISCARD and where.kind != "task" and where.user_id is None


def is_done_before(replay: ManyReplay, task: Task) -> bool:
    """Whether this very action was done with a task: by a process that died before it could say so."""
    match replay.action:
        case Action.CANCEL:
            return task.cancel is not None
        case Action.DISCARD:
            return task.discarded is not None
    return any(
        entry.type == "replayed" and isinstance(entry.data, dict) and entry.data.get("replay_id") == replay.replay_id
        for entry in task.history
    )


def may_be_done(replay: ManyReplay, task: Task) -> bool:
    """Whether a task is still what was chosen: nobody has replayed it since the action began."""
    return replay.action is Action.CANCEL or task.finished_at is None or task.finished_at <= replay.at


def taken(replay: ManyReplay, ids: Collection[str], part: int, cursor: str | None, now: datetime) -> ManyReplay:
    """It with some in hand, found in a list up to a place."""
    paced_until = now
    if replay.rate is not None:
        paced_until = max(replay.paced_until, now - _CATCH_UP) + timedelta(seconds=len(ids) / replay.rate)
    return replace(
        replay,
        batch=tuple(ids),
        batch_number=replay.batch_number + 1,
        part=part,
        cursor=cursor,
        due_at=now + IN_HAND,
        paced_until=paced_until,
    )


def taken_over(replay: ManyReplay, now: datetime) -> ManyReplay:
    """It with what a process left in hand that stopped."""
    return replace(replay, batch_number=replay.batch_number + 1, due_at=now + IN_HAND)


def settled(replay: ManyReplay, batch_number: int, outcomes: Mapping[str, Refused | None], now: datetime) -> ManyReplay:
    """It after what was in hand; as it is, if somebody else has taken that over."""
    if replay.batch_number != batch_number or not replay.batch:
        return replay
    refused = [outcome for outcome in outcomes.values() if outcome is not None]
    failures = sum(outcome.is_failure for outcome in refused)
    return replace(
        replay,
        batch=(),
        done=replay.done + len(outcomes) - len(refused),
        refused=replay.refused + len(refused) - failures,
        failed=replay.failed + failures,
        refusals=(*replay.refusals, *refused)[-_REFUSALS_TOLD:],
        due_at=max(now, replay.paced_until),
    )


def ended(replay: ManyReplay, status: ReplayStatus, now: datetime) -> ManyReplay:
    """It as over, once nothing is in hand."""
    return replace(replay, status=status, finished_at=now)


def replay_view(replay: ManyReplay) -> dict[str, Any]:
    """It as plain JSON."""
    return {
        "replay_id": replay.replay_id,
        "action": replay.action.value,
        "filter": replay.where.conditions,
        "status": replay.status.value,
        "total": replay.total,
        "is_total_bounded": replay.is_total_bounded,
        "done": replay.done,
        "refused": replay.refused,
        "failed": replay.failed,
        "in_hand": len(replay.batch),
        "refusals": [{"id": each.id, "problem": each.problem} for each in replay.refusals],
        "rate": replay.rate,
        "by": replay.by,
        "at": moment(replay.at),
        "reason": replay.reason,
        "finished_at": moment(replay.finished_at),
    }
