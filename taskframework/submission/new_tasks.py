"""The common parts of every submission: finding a type, the fields of a new task, and storing one task for each key."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from taskframework.model.idempotency import GRACE
from taskframework.model.options import KeptFor
from taskframework.model.status import TaskStatus, lane_of
from taskframework.model.stream_moves import UNBLOCK_CHECK_INTERVAL
from taskframework.model.task import initial_fields, new_task_id
from taskframework.moves import TaskMoves
from taskframework.stores.base import TaskStore
from taskframework.submission.acceptance import accept_name, accept_times
from taskframework.submission.idempotency import IdempotentInserts, TaskInserts
from taskframework.submission.types import Submittable, TaskTypes
from taskframework.tasks.kinds import AnyTaskType, type_name
from taskframework.tasks.retention import with_minimum
from taskframework.telemetry import current_traceparent

#: Options by which a later submission finds the task. The task stays as long as their records, whatever its type says.
_REPEATABLE_OPTIONS = frozenset({"idempotency_key", "unique"})


def defaults_of(kind: Submittable, max_attempts: int) -> dict[str, Any]:
    """Return the options of a task that its submission does not give; `max_attempts` is used if its type has none."""
    defaults = {
        "priority": lane_of(kind.priority),
        "max_attempts": max_attempts if kind.max_attempts is None else kind.max_attempts,
    }
    if (start_limit := kind.start_limit) is not None:
        defaults["start_limit"] = start_limit
    if (retention := kind.retention) is not None:
        defaults["retention"] = retention
    return defaults


class NewTasks:
    """Makes and stores new tasks and batches."""

    def __init__(
        self,
        store: TaskStore,
        moves: TaskMoves,
        types: TaskTypes,
        *,
        max_attempts: int,
        dispatch_after: timedelta,
        keys_kept: timedelta,
        kept: KeptFor,
        inserts: TaskInserts,
    ) -> None:
        """Prepare.

        Args:
            store: where the tasks are stored.
            moves: cancels a task whose idempotency key another request took at the same time.
            types: the task types that are known.
            max_attempts: for task types without this option.
            dispatch_after: how long after its submission the sweeper dispatches a task that no other process has
                dispatched; zero in a process that does not dispatch.
            keys_kept: how long an idempotency key is kept after the end of its task.
            kept: how long tasks of types without a retention stay after their end.
            inserts: stores tasks, and gives those of streams their positions.
        """
        self.store = store
        self.types = types
        self.dispatch_after = dispatch_after
        self.inserts = IdempotentInserts(store, moves, keys_kept, inserts)
        self._max_attempts = max_attempts
        self._keys_kept = keys_kept
        self._kept = kept

    async def find(self, task_type: AnyTaskType) -> Submittable:
        """Find a task type.

        Raises:
            SubmissionError: if the type is unknown, or `task_type` is not a name.
            StoreUnavailableError: if the type is not registered here and the store does not answer.
        """
        return await self.types.require(type_name(task_type))

    def fields(
        self, kind: Submittable, user_id: str, options: Mapping[str, Any], throttle: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the fields of a new task, except its parameters.

        Args:
            kind: its type.
            user_id: its owner.
            options: the options that were given and accepted.
            throttle: the option `throttle`.

        Raises:
            InvalidRequestError: if the user's name is not valid, or the deadline is before the earliest start.
        """
        now, task_id = self.store.now(), new_task_id()
        not_before = accept_times(options, now)
        defaults = defaults_of(kind, self._max_attempts)
        if throttle is not None:
            defaults["retention"] = self._kept_at_least(kind, throttle["every"])
        elif "debounce" in options:
            defaults["retention"] = self._kept_at_least(kind, GRACE)
        elif not _REPEATABLE_OPTIONS.isdisjoint(options):
            kept = self._kept_at_least(kind, timedelta(0))
            if kept != KeptFor():
                defaults["retention"] = kept
        return {
            **defaults,
            "correlation_id": task_id,
            **options,
            "task_id": task_id,
            "task_type": kind.task_type,
            "user_id": accept_name(user_id, "user_id"),
            "traceparent": current_traceparent(),
            "not_before": not_before,
            "created_at": now,
            "updated_at": now,
            **initial_fields(not_before, now, self.dispatch_after, kind.start_limit),
            **self._stream_fields(options, now),
        }

    def _kept_at_least(self, kind: Submittable, time: timedelta) -> KeptFor:
        """Return how long a task with a name stays: at least `time`, and as long as the record of its name.

        While a task whose id is made from a key is stored, no other task gets the id.
        """
        return with_minimum(kind.retention or KeptFor(), max(time, self._keys_kept), self._kept)

    def _stream_fields(self, options: Mapping[str, Any], now: datetime) -> dict[str, Any]:
        """Return other fields of a new task in a serial stream, which is BLOCKED until it has the turn."""
        place = options.get("stream")
        if place is None or place.mode != "serial":
            return {}
        return {"status": TaskStatus.BLOCKED, "next_dispatch_at": None, "unblock_at": now + UNBLOCK_CHECK_INTERVAL}
