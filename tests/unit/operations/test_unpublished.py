"""Which tasks `doctor` names because the broker does not take their events."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from taskframework.model.marks import PostponeRelay
from taskframework.model.status import TaskStatus
from taskframework.model.task import Task
from taskframework.model.task_fields import HistoryEntry
from taskframework.operations.unpublished import find_unpublished
from taskframework.stores.sqlite import SqliteStore
from taskframework.testing.clock import FakeClock
from taskframework.testing.factories import new_task

MINUTE = timedelta(minutes=1)


def with_event(store: SqliteStore, name: str, age: timedelta, **fields: Any) -> Task:
    at = store.now() - age
    history = (HistoryEntry(1, "submitted", at, 0, None, None),)
    return new_task(task_id=name, now=at, sequence=1, history=history, **({"publish_at": at} | fields))


async def test_tasks_whose_events_have_waited_for_more_than_a_minute_are_found(
    store: SqliteStore, clock: FakeClock
) -> None:
    ended: dict[str, Any] = {"status": TaskStatus.COMPLETED, "next_dispatch_at": None}
    await store.insert(
        [
            with_event(store, "new", MINUTE / 2),
            with_event(store, "old", 2 * MINUTE),
            with_event(store, "older and ended", 3 * MINUTE, **ended),
            with_event(store, "published", 4 * MINUTE, published_sequence=1, publish_at=None),
        ]
    )
    assert await find_unpublished(store, clock, 5) == ["older and ended", "old"]
    assert await find_unpublished(store, clock, 1) == ["older and ended"]


async def test_a_task_that_a_relay_just_tried_in_vain_is_found(store: SqliteStore, clock: FakeClock) -> None:
    await store.insert([with_event(store, "refused", 2 * MINUTE)])
    assert await store.apply(PostponeRelay("refused", MINUTE / 4)) is not None
    assert await find_unpublished(store, clock, 5) == ["refused"]
