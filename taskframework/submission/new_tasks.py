"""What every way in shares: finding a type, the fields with which a task of it begins, and storing it once a key."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from taskframework.errors import SubmissionError
from taskframework.model.status import lane_of
from taskframework.model.task import first_state, new_task_id
from taskframework.stores.base import TaskStore
from taskframework.submission.idempotency import IdempotentInserts
from taskframework.submission.options import accepted_name, accepted_times
from taskframework.submission.types import Submittable, TaskTypes
from taskframework.tasks.executable import AnyExecutable, type_name
from taskframework.tasks.retention import at_least
from taskframework.telemetry import current_traceparent

#: Options by which a later submission finds the task; it stays as long as they are known, whatever its type says.
_NAMING = frozenset({"idempotency_key", "unique"})


def defaults_of(kind: Submittable, max_attempts: int) -> dict[str, Any]:
    """What holds for a task where its submission does not say; `max_attempts` where its type does not say either."""
    own = {"start_limit": kind.start_limit, "retention": kind.retention}
    return {
        "priority": lane_of(kind.priority),
        "max_attempts": max_attempts if kind.max_attempts is None else kind.max_attempts,
        **{name: value for name, value in own.items() if value is not None},
    }


class NewTasks:
    """Where submitted tasks and batches begin."""

    def __init__(
        self,
        store: TaskStore,
        types: TaskTypes,
        *,
        max_attempts: int,
        dispatch_after: timedelta,
        keys_kept: timedelta,
    ) -> None:
        """Prepare.

        Args:
            store: where they are stored.
            types: the task types that are known.
            max_attempts: attempts for task types that do not say.
            dispatch_after: when the sweeper takes a task up if nobody dispatched it; zero in a process that does not
                dispatch.
            keys_kept: how long an idempotency key is kept after the end of its task.
        """
        self.store = store
        self.types = types
        self.dispatch_after = dispatch_after
        self.inserts = IdempotentInserts(store, keys_kept)
        self._max_attempts = max_attempts
        self._keys_kept = keys_kept

    async def find(self, task_type: str | AnyExecutable) -> Submittable:
        """The type of that name.

        Raises:
            SubmissionError: if it is unknown, or no name.
            StoreUnavailableError: if it is not registered here and the store cannot be asked.
        """
        name = type_name(task_type)
        kind = (await self.types.find([name]))[name]
        if isinstance(kind, SubmissionError):
            raise kind
        return kind

    def fields(self, kind: Submittable, user_id: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """What a task begins with, but for its parameters.

        Args:
            kind: its type.
            user_id: whose it is.
            options: that were given and accepted.

        Raises:
            InvalidRequestError: if the user's name is none, or the deadline lies before the beginning.
        """
        now, task_id = self.store.now(), new_task_id()
        not_before = accepted_times(options, now)
        defaults = defaults_of(kind, self._max_attempts)
        if "retention" in defaults and not _NAMING.isdisjoint(options):
            defaults["retention"] = at_least(defaults["retention"], self._keys_kept)
        return {
            **defaults,
            "correlation_id": task_id,
            **options,
            "task_id": task_id,
            "task_type": kind.task_type,
            "user_id": accepted_name(user_id, "user_id"),
            "traceparent": current_traceparent(),
            "not_before": not_before,
            "created_at": now,
            "updated_at": now,
            **first_state(not_before, now, self.dispatch_after, kind.start_limit),
        }
