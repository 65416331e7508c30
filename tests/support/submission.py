"""The way in, without the rest of a framework."""

from __future__ import annotations

from datetime import timedelta

from taskframework.bus import EventBus
from taskframework.model.options import KeptFor
from taskframework.moves import TaskMoves
from taskframework.stores.base import TaskStore
from taskframework.submission.debounce import DebouncedInserts
from taskframework.submission.idempotency import IdempotentInserts, TaskInserts
from taskframework.submission.new_tasks import NewTasks
from taskframework.submission.service import TaskSubmissionService
from taskframework.submission.types import TaskTypes
from taskframework.submission.versions import VersionedInserts
from taskframework.tasks.retention import KEEP_FOREVER


def submission_into(
    store: TaskStore,
    types: TaskTypes,
    bus: EventBus,
    *,
    max_attempts: int = 3,
    dispatch_after: timedelta = timedelta(0),
    keys_kept: timedelta = timedelta(days=1),
    kept: KeptFor = KEEP_FOREVER,
) -> TaskSubmissionService:
    """A submission service that stores tasks of these types."""
    moves = TaskMoves(store, bus)
    new_tasks = NewTasks(
        store,
        moves,
        types,
        max_attempts=max_attempts,
        dispatch_after=dispatch_after,
        keys_kept=keys_kept,
        kept=kept,
        inserts=store,
    )
    return TaskSubmissionService(
        bus, new_tasks, VersionedInserts(store, moves, keys_kept), DebouncedInserts(store, moves, keys_kept)
    )


def keyed_inserts(store: TaskStore, kept: timedelta, inserts: TaskInserts | None = None) -> IdempotentInserts:
    """Stores tasks with idempotency keys."""
    return IdempotentInserts(store, TaskMoves(store, EventBus()), kept, inserts)
