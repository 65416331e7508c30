"""Filters and pages of lists, and the entries of the dead-letter list."""

from __future__ import annotations

import base64
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Generic, Literal, TypeVar

from taskframework.clock import from_milliseconds, to_milliseconds
from taskframework.errors import SubmissionError
from taskframework.model.status import TaskStatus

Item = TypeVar("Item")

MAX_LIMIT = 500


class CursorInvalidError(SubmissionError):
    """The cursor is not one this list gave out."""

    code = "invalid_cursor"
    hint = "Leave it out to start at the first page."


@dataclass(frozen=True, slots=True)
class Cursor:
    """The place after one entry of a list that is sorted from the newest to the oldest."""

    at: datetime
    id: str

    def encode(self) -> str:
        return _encode_cursor(f"{to_milliseconds(self.at)}|{self.id}")

    @classmethod
    def decode(cls, text: str) -> Cursor:
        """Read a cursor.

        Raises:
            CursorInvalidError: if no list gave this text out.
        """
        try:
            milliseconds, separator, identifier = _decode_cursor(text).partition("|")
            if not separator or not identifier or "\0" in identifier:
                raise CursorInvalidError
            return cls(from_milliseconds(int(milliseconds)), identifier)
        except (ValueError, OverflowError) as error:
            raise CursorInvalidError from error


@dataclass(frozen=True, slots=True)
class SlotCursor:
    """The place after one sub-task of a list that runs backwards from the last slot of a parent's newest round."""

    generation: int
    round: int
    slot: int

    def encode(self) -> str:
        return _encode_cursor(f"{_SLOT_CURSOR_KIND}|{self.generation}|{self.round}|{self.slot}")

    @classmethod
    def decode(cls, text: str) -> SlotCursor:
        """Read a cursor.

        Raises:
            CursorInvalidError: if no list gave this text out.
        """
        try:
            kind, *place = _decode_cursor(text).split("|")
            generation, round, slot = (int(number) for number in place)
        except ValueError as error:
            raise CursorInvalidError from error
        if kind != _SLOT_CURSOR_KIND or not all(
            0 <= number <= _MAX_CURSOR_NUMBER for number in (generation, round, slot)
        ):
            raise CursorInvalidError
        return cls(generation, round, slot)


#: The first part of a cursor of slots, so that no other list accepts such a cursor.
_SLOT_CURSOR_KIND = "slot"
#: The highest number in a cursor of slots; every database can compare it.
_MAX_CURSOR_NUMBER = 2**31


def _encode_cursor(raw: str) -> str:
    return base64.urlsafe_b64encode(raw.encode()).decode().rstrip("=")


def _decode_cursor(text: str) -> str:
    """The text that was given to `_encode_cursor`. For a text that it did not make, every error is a ValueError."""
    return base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True).decode()


#: Conditions of a `TaskFilter` without an index. For conditions on the end of a task, only lists of dead tasks have an
#: index.
_UNINDEXED_CONDITIONS = ("fingerprint", "error", "correlation_id", "idempotency_key", "waits_for_limit")
_END_TIME_CONDITIONS = ("ended_by", "finished_after", "finished_before")


@dataclass(frozen=True, slots=True)
class TaskFilter:
    """Selects the tasks of a list by their properties; None means any. (A `Scope` selects by owner.)"""

    status: TaskStatus | None = None
    task_type: str | None = None
    parent_task_id: str | None = None
    #: The key of an ordered stream.
    stream: str | None = None
    #: True: only batches. False: all tasks that are not batches.
    batches: bool = False
    #: Only tasks that are FAILED or DEAD_LETTER and not discarded, listed by the time of their end.
    dead: bool = False
    #: Only tasks whose error has this fingerprint, or this text in its message; ASCII letters match in either case.
    fingerprint: str | None = None
    error: str | None = None
    correlation_id: str | None = None
    idempotency_key: str | None = None
    #: Only tasks that wait in the store because this limit did not let them begin, named as for `limit_ids`.
    waits_for_limit: str | None = None
    #: Only tasks that had ended by this time; for lists of dead tasks.
    ended_by: datetime | None = None
    #: Only tasks that were submitted at the first time or later, and before the second time.
    created_after: datetime | None = None
    created_before: datetime | None = None
    #: Only tasks that ended at the first time or later, and before the second time.
    finished_after: datetime | None = None
    finished_before: datetime | None = None

    @property
    def has_unindexed_condition(self) -> bool:
        """Whether it has a condition without an index. Such an index would be seldom used and slow down every write."""
        return self.indexed is not self

    @property
    def indexed(self) -> TaskFilter:
        """The same filter without the conditions that have no index."""
        names = (*_UNINDEXED_CONDITIONS, *(() if self.dead else _END_TIME_CONDITIONS))
        if all(getattr(self, name) is None for name in names):
            return self
        without: dict[str, Any] = dict.fromkeys(names)
        return replace(self, **without)

    @property
    def is_in_slot_order(self) -> bool:
        """Whether it lists the sub-tasks of one task. Such a list runs from the last sub-task of the plan to the first.
        This is also from the newest to the oldest, and an index has the sub-tasks of each status in this order.
        """
        return self.parent_task_id is not None and not self.batches and not self.dead

    @property
    def order(self) -> Literal["created_at", "finished_at"]:
        """The time by which every other list is ordered, the newest first."""
        return "finished_at" if self.dead else "created_at"


@dataclass(frozen=True, slots=True)
class RoundOfSubtasks:
    """One round of the sub-tasks of a task."""

    parent_id: str
    generation: int
    round: int


@dataclass(frozen=True, slots=True)
class StreamTimes:
    """When a task of an ordered stream was stored, and when it ended; None: the task is live."""

    position: int
    created_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """Some entries of a list, and the cursor of the next page; `next_cursor` None: this is the last page."""

    items: tuple[Item, ...]
    next_cursor: str | None
    #: The ids of the tasks that would be on the page if they could be read.
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DeadMessage:
    """A message that cannot be read, or that has no task, kept in full."""

    id: str
    body: bytes
    headers: dict[str, str]
    queue: str
    reason: str
    at: datetime
    task_id: str | None = None
    task_type: str | None = None


@dataclass(frozen=True, slots=True)
class MessageOutline:
    """The fields of a kept message by which lists select. Its content, which may be large, is left out."""

    id: str
    reason: str
    task_type: str | None
    at: datetime
