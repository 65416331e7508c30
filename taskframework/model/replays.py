"""Actions on many tasks at once: a record for each action, and the pure rules by which it continues.

A process that sees that an action is due takes the next few tasks of its list, writes them into the record by compare
and set, does the action with each of them, and writes the results. If it dies in between, the record still names the
tasks in hand. The process that takes over checks for each of them whether the action was done already.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from taskframework.model.action_filters import Action, ActionFilter, includes_messages, is_wanted, lists_of
from taskframework.model.query import TaskFilter
from taskframework.model.records import RecordKind
from taskframework.model.status import DEAD, LIVE
from taskframework.model.task import Task
from taskframework.model.task_fields import CancelRequest, Discarded
from taskframework.model.view import format_time

#: How long other processes leave an action alone after one process has taken tasks of it in hand.
TAKEOVER_DELAY = timedelta(seconds=10)
#: Most tasks in hand at once. An action with a rate takes the tasks of one second, if these are fewer.
MAX_IN_HAND = 100
#: How many refusals a record keeps: the newest.
_MAX_REFUSALS = 20
#: After a time in which no process carried on an action with a rate, at most the tasks of this time are done at once.
_MAX_BURST_TIME = timedelta(seconds=1)
#: The longest pause between two handfuls, however low the rate is: longer times cannot be computed with.
_MAX_PAUSE_SECONDS = 10 * 365 * 86_400.0

#: The conditions that are times.
TIMES = ("created_after", "created_before", "finished_after", "finished_before")


class BulkActionStatus(StrEnum):
    """How far an action on many tasks is."""

    RUNNING = "RUNNING"
    DONE = "DONE"
    STOPPED = "STOPPED"


@dataclass(frozen=True, slots=True)
class Refused:
    """A task or message with which the action was not done, and why."""

    id: str
    problem: str
    #: Whether an error occurred; if not, a rule refused the action.
    is_failure: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkAction:
    """One action on many. Times are the store's, in UTC and whole milliseconds."""

    replay_id: str
    action: Action
    where: ActionFilter
    by: str
    #: When the action began. It leaves tasks alone that ended later: they were replayed since then, and failed again.
    at: datetime
    reason: str | None = None
    reopen: bool = False
    #: Tasks a second; None: as fast as possible.
    rate: float | None = None
    status: BulkActionStatus = BulkActionStatus.RUNNING
    total: int
    #: Whether there may be more than `total`, because counting stopped there.
    is_total_bounded: bool = False
    done: int = 0
    refused: int = 0
    failed: int = 0
    refusals: tuple[Refused, ...] = ()
    #: Which of its `lists` it goes through now, and the cursor in that list.
    part: int = 0
    cursor: str | None = None
    #: The ids in hand, and a number that grows with each handful, so that a slow process notices that another process
    #: has taken its handful over.
    batch: tuple[str, ...] = ()
    batch_number: int = 0
    #: When the next handful is due; while a handful is in hand, when another process takes it over.
    due_at: datetime
    #: The time up to which the rate is used up.
    paced_until: datetime
    finished_at: datetime | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do for the action."""
        return self.status is not BulkActionStatus.RUNNING and not self.batch

    @property
    def lists(self) -> tuple[TaskFilter, ...]:
        """The lists of tasks that it goes through, one after the other."""
        return lists_of(self.action, self.where, self.at)

    @property
    def has_messages(self) -> bool:
        """Whether kept messages follow after the tasks."""
        return includes_messages(self.action, self.where)

    @property
    def skipped(self) -> int:
        """How many of the tasks that were counted at the beginning had changed before the action came to them; 0 until
        it is done.
        """
        return (
            max(0, self.total - self.done - self.refused - self.failed) if self.status is BulkActionStatus.DONE else 0
        )

    @property
    def remaining(self) -> int:
        """How many tasks are still to be done, or were not done because the action was stopped. After a stop, tasks
        that another caller did first are counted too, because the action did not look at them any more.
        """
        is_done = self.status is BulkActionStatus.DONE
        return 0 if is_done else max(0, self.total - self.done - self.refused - self.failed - len(self.batch))

    @property
    def size(self) -> int:
        """How many tasks to take in hand at once."""
        return MAX_IN_HAND if self.rate is None else max(1, min(MAX_IN_HAND, int(self.rate)))


REPLAY = RecordKind("replay", BulkAction)


@dataclass(frozen=True, slots=True)
class RunningAction:
    """Says that an action is not over. These records are read every second, and not the records of ended actions."""

    at: datetime


RUNNING_ACTION = RecordKind("replay-under-way", RunningAction)


def was_done_before(replay: BulkAction, task: Task) -> bool:
    """Return whether this action was done with a task already, by a process that died before it recorded that."""
    match replay.action:
        case Action.CANCEL:
            return _is_of(replay, task.cancel)
        case Action.DISCARD:
            return _is_of(replay, task.discarded)
    return was_replayed(task, replay.replay_id)


def _is_of(replay: BulkAction, mark: CancelRequest | Discarded | None) -> bool:
    """Return whether this action cancelled or discarded a task, by the operator, reason and time in the mark."""
    return mark is not None and (mark.by, mark.reason) == (replay.by, replay.reason) and mark.at >= replay.at


def was_replayed(task: Task, replay_id: str) -> bool:
    """Return whether this action has queued a task again, or has made its next attempt due."""
    asked = (entry.data for entry in task.history if entry.type in ("replayed", "retry_requested"))
    return any(isinstance(data, dict) and data.get("replay_id") == replay_id for data in asked)


def can_be_done(replay: BulkAction, task: Task) -> bool:
    """Return whether a task is still in the state that was chosen: no other caller has moved it, and it has not ended
    again since the action began.
    """
    match replay.action:
        case Action.CANCEL:
            return task.status in LIVE and task.cancel is None
        case Action.RETRY:
            statuses = {replay.where.status} if replay.where.status is not None else DEAD
            is_chosen = task.status in statuses and is_wanted(Action.RETRY, task)
        case _:
            is_chosen = task.status in DEAD and task.discarded is None
    return is_chosen and (task.finished_at is None or task.finished_at <= replay.at)


def take_in_hand(replay: BulkAction, ids: Collection[str], part: int, cursor: str | None, now: datetime) -> BulkAction:
    """The action with these ids in hand, which were found in list `part` up to the cursor."""
    paced_until = now
    if replay.rate is not None:
        pause = timedelta(seconds=min(len(ids) / replay.rate, _MAX_PAUSE_SECONDS))
        paced_until = max(replay.paced_until, now - _MAX_BURST_TIME) + pause
    return replace(
        replay,
        batch=tuple(ids),
        batch_number=replay.batch_number + 1,
        part=part,
        cursor=cursor,
        due_at=now + TAKEOVER_DELAY,
        paced_until=paced_until,
    )


def take_over(replay: BulkAction, now: datetime) -> BulkAction:
    """The action with the same ids in hand, taken over from a process that stopped."""
    return replace(replay, batch_number=replay.batch_number + 1, due_at=now + TAKEOVER_DELAY)


def settle_handful(
    replay: BulkAction, batch_number: int, outcomes: Mapping[str, Refused | None], now: datetime
) -> BulkAction:
    """The action after a handful was done; unchanged if another process has taken this handful over. What is in the
    handful and has no outcome is not counted: it is skipped, or was left after a stop.
    """
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
        refusals=(*replay.refusals, *refused)[-_MAX_REFUSALS:],
        due_at=max(now, replay.paced_until),
    )


def end_action(replay: BulkAction, status: BulkActionStatus, now: datetime) -> BulkAction:
    """The action as ended; only for an action that has nothing in hand."""
    return replace(replay, status=status, finished_at=now)


def replay_view(replay: BulkAction) -> dict[str, Any]:
    """The action as plain JSON."""
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
        "skipped": replay.skipped,
        "remaining": replay.remaining,
        "in_hand": len(replay.batch),
        "refusals": [{"id": each.id, "problem": each.problem} for each in replay.refusals],
        "rate": replay.rate,
        "by": replay.by,
        "at": format_time(replay.at),
        "reason": replay.reason,
        "finished_at": format_time(replay.finished_at),
    }
