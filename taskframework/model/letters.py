"""Dead letters in groups, one for each cause, with their number in each hour."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from taskframework.model.query import MessageOutline, TaskFilter
from taskframework.model.values import fingerprint
from taskframework.model.view import format_time

#: How many hours a trend has; it has one number for each hour.
TREND_HOURS = 24
#: `error.type` of the groups of messages.
MESSAGE_ERROR = "MessageUnreadableError"
_HOUR = timedelta(hours=1)
#: The parts of a reason that differ between messages of one cause: numbers, and texts in quotes.
_VARIABLE_PARTS = re.compile(r"'[^']*'|\"[^\"]*\"|\d[\d,.]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterFilter:
    """Selects dead letters by their properties; None means any. (A `Scope` selects by owner.)"""

    kind: Literal["task", "message"] | None = None
    task_type: str | None = None
    fingerprint: str | None = None
    #: A part of the error's message, or of the reason why a message was kept; ASCII letters match in either case.
    text: str | None = None
    #: Tasks that ended, and messages that came, at the first time or later, and before the second time.
    finished_after: datetime | None = None
    finished_before: datetime | None = None

    def task_filter(self, ended_by: datetime | None = None) -> TaskFilter:
        """The filter for the dead letters that are tasks."""
        return TaskFilter(
            task_type=self.task_type,
            dead=True,
            fingerprint=self.fingerprint,
            error=self.text,
            ended_by=ended_by,
            finished_after=self.finished_after,
            finished_before=self.finished_before,
        )

    def matches(self, message: MessageOutline) -> bool:
        """Return whether a kept message meets the conditions."""
        return (
            self.kind != "task"
            and self.task_type in (None, message.task_type)
            and self.fingerprint in (None, message_fingerprint(message.reason))
            and (self.text is None or _with_ascii_lowered(self.text) in _with_ascii_lowered(message.reason))
            and (self.finished_after is None or self.finished_after <= message.at)
            and (self.finished_before is None or message.at < self.finished_before)
        )


def _with_ascii_lowered(text: str) -> bytes:
    """A text in which only the case of ASCII letters is folded, as the stores do it when they search in tasks."""
    return text.encode("utf-8", "surrogatepass").lower()


ANY_LETTER = LetterFilter()


@dataclass(frozen=True, slots=True)
class DeadCount:
    """Dead letters of one fingerprint and task type that ended in the same hour before now, counted by the store."""

    #: None: tasks without an error, which an earlier release may have left.
    fingerprint: str | None
    task_type: str | None
    #: Whole hours since they ended; `TREND_HOURS` for all older dead letters.
    hours_ago: int
    count: int
    first_at: datetime
    last_at: datetime
    #: The error of one of them.
    error_type: str | None
    error_message: str | None


@dataclass(frozen=True, slots=True)
class LetterGroup:
    """All dead letters of one cause."""

    fingerprint: str
    count: int
    first_at: datetime
    last_at: datetime
    task_types: tuple[str, ...]
    error_type: str | None
    error_message: str | None
    #: How many ended in each hour, the oldest hour first; the last number is for the hour before now.
    trend: tuple[int, ...]

    def view(self) -> dict[str, Any]:
        """The group as plain JSON."""
        return {
            "fingerprint": self.fingerprint,
            "count": self.count,
            "first_at": format_time(self.first_at),
            "last_at": format_time(self.last_at),
            "task_types": list(self.task_types),
            "error": {"type": self.error_type, "message": self.error_message},
            "trend": list(self.trend),
        }


def message_fingerprint(reason: str) -> str:
    """The fingerprint of a message that was kept for this reason."""
    return fingerprint("message", _VARIABLE_PARTS.sub("*", reason))


def count_messages(messages: Iterable[MessageOutline], now: datetime) -> list[DeadCount]:
    """Each kept message as a count of one."""
    return [
        DeadCount(
            message_fingerprint(message.reason),
            message.task_type,
            min(max(now - message.at, timedelta(0)) // _HOUR, TREND_HOURS),
            1,
            message.at,
            message.at,
            MESSAGE_ERROR,
            message.reason,
        )
        for message in messages
    ]


def group_by_cause(counts: Iterable[DeadCount]) -> list[LetterGroup]:
    """The counts added up by cause, the largest group first."""
    causes: dict[str, list[DeadCount]] = {}
    for count in counts:
        causes.setdefault(count.fingerprint or "", []).append(count)
    groups = [_group(cause, found) for cause, found in causes.items()]
    return sorted(groups, key=lambda group: (-group.count, group.fingerprint))


def _group(cause: str, counts: list[DeadCount]) -> LetterGroup:
    newest = max(counts, key=lambda count: count.last_at)
    hours = reversed(range(TREND_HOURS))
    return LetterGroup(
        cause,
        sum(count.count for count in counts),
        min(count.first_at for count in counts),
        newest.last_at,
        tuple(sorted({count.task_type for count in counts if count.task_type is not None})),
        newest.error_type,
        newest.error_message,
        tuple(sum(count.count for count in counts if count.hours_ago == hour) for hour in hours),
    )
