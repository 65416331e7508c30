"""Pages of tasks and of kept messages, made from the rows of a query."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from taskframework.clock import from_milliseconds, to_milliseconds
from taskframework.errors import TaskUnreadableError
from taskframework.leaving_out import leave_out
from taskframework.model.query import Cursor, DeadMessage, Page, SlotCursor, TaskFilter
from taskframework.model.task import UNREADABLE, Task
from taskframework.model.task_fields import CancelRequest
from taskframework.model.transitions import Fence
from taskframework.stores.reading import unreadable
from taskframework.stores.sqlite.connection import Row
from taskframework.stores.sqlite.rows import TaskRow, Value, read_cancel, read_row, to_json


def tasks_of(rows: Sequence[Row], left_out: list[str] | None = None) -> list[Task]:
    """The tasks that this release can read: one document that it cannot read must not make a whole list or repair fail.
    Adds the ids of the others to `left_out`.
    """
    tasks = []
    for row in map(TaskRow._make, rows):
        try:
            tasks.append(read_row(row).task)
        except TaskUnreadableError as error:
            leave_out(error)
            if left_out is not None:
                left_out.append(row.task_id)
    return tasks


def cancels_of(rows: Sequence[Row]) -> dict[Fence, CancelRequest]:
    """The requests to cancel running tasks, from the rows of `queries.CANCEL_REQUESTS`, without unreadable requests."""
    found = {}
    for task_id, token, claim_id, text in rows:
        try:
            found[Fence(task_id, token, claim_id)] = read_cancel(text)
        except UNREADABLE as error:
            leave_out(unreadable(None, task_id, error))
    return found


def task_page(rows: Sequence[Row], limit: int, filter: TaskFilter) -> Page[Task]:
    """A page of tasks, from the rows of `lists.list_tasks`."""
    width = len(TaskRow._fields)
    cursor = _cursor_at(rows[limit - 1][width:], filter) if len(rows) > limit else None
    left_out: list[str] = []
    return Page(tuple(tasks_of([row[:width] for row in rows[:limit]], left_out)), cursor, tuple(left_out))


def search_page(rows: Sequence[Row], limit: int, most: int, filter: TaskFilter) -> tuple[list[str], str | None]:
    """The ids of a page, and the cursor of the next one, from the rows of `lists.search_tasks`."""
    found, last = [row for row in rows if row[0]], rows[-1] if len(rows) == most else None
    if len(found) > limit:
        found, last = found[:limit], found[limit - 1]
    return [row[1] for row in found], None if last is None else _cursor_at(last[2:], filter)


def _cursor_at(place: Row, filter: TaskFilter) -> str:
    return (
        SlotCursor(*place).encode()
        if filter.is_in_slot_order
        else Cursor(from_milliseconds(place[0]), place[1]).encode()
    )


def message_page(rows: Sequence[Row], limit: int) -> Page[DeadMessage]:
    """A page of messages. `rows` has one row more than the limit if another page follows."""
    messages = tuple(message_of(row) for row in rows[:limit])
    more = len(rows) > limit
    return Page(messages, Cursor(messages[-1].at, messages[-1].id).encode() if more else None)


def message_row(message: DeadMessage) -> tuple[Value | bytes, ...]:
    """The columns of `queries.KEEP_MESSAGE`.

    Raises:
        ValueNotStorableError: if a header is not valid text.
    """
    return (
        message.id,
        message.body,
        to_json(message.headers),
        message.queue,
        message.reason,
        to_milliseconds(message.at),
        message.task_id,
        message.task_type,
    )


def message_of(row: Row) -> DeadMessage:
    identifier, body, headers, queue, reason, at, task_id, task_type = row
    return DeadMessage(
        identifier, body, orjson.loads(headers), queue, reason, from_milliseconds(at), task_id, task_type
    )
