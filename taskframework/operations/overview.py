"""The installation at a glance."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from taskframework.brokers.base import Broker
from taskframework.limits.buckets import Buckets, LimiterUnavailableError
from taskframework.model.counts import TaskCounts
from taskframework.model.limits import ReachedLimit
from taskframework.model.overview import Overview
from taskframework.model.pauses import PAUSE
from taskframework.model.query import MAX_LIMIT
from taskframework.model.rate_limits import RATE
from taskframework.model.schedules import SCHEDULE
from taskframework.model.traffic import LaneTraffic
from taskframework.model.view import format_time
from taskframework.model.workers import PRESENCE
from taskframework.operations.limits import LimitOperations
from taskframework.operations.traffic import read_traffic
from taskframework.stores.base import TaskStore
from taskframework.stores.reading import read_all_contents
from taskframework.submission.types import TaskTypes
from taskframework.tasks.declarations import TaskDeclaration


def overview_view(overview: Overview) -> dict[str, Any]:
    """Return an overview as plain JSON."""
    return {
        "at": format_time(overview.at),
        "by_status": dict(overview.by_status),
        "counted_at": format_time(overview.counted_at),
        "types": [_type_view(overview, task_type) for task_type in overview.task_types],
        "is_bounded": overview.traffic.is_bounded,
        "problems": [
            {"code": problem.code, "text": problem.text, "task_type": problem.task_type}
            for problem in overview.problems()
        ],
        "workers": overview.worker_count,
        "dead_letters": overview.dead_letters,
    }


def lane_view(lane: LaneTraffic) -> dict[str, Any]:
    """Return one lane of a queue as plain JSON."""
    return {
        "waiting": lane.waiting,
        "oldest_at": format_time(lane.oldest_waiting_at),
        "running": lane.running,
        "retrying": lane.retrying,
        "is_bounded": lane.is_bounded,
        "in_per_second": round(lane.submitted_per_second, 3),
        "out_per_second": round(lane.finished_per_second, 3),
    }


class OverviewOperations:
    """Shows the installation. The cost does not depend on how many tasks there are."""

    def __init__(
        self,
        store: TaskStore,
        types: TaskTypes,
        count: Callable[[], Awaitable[TaskCounts | None]],
        buckets: Buckets | None = None,
        limits: LimitOperations | None = None,
        *,
        is_embedded: bool = False,
    ) -> None:
        """Prepare to look.

        Args:
            store: where the tasks are.
            types: the task types that were declared.
            count: returns how many tasks there are, as counted lately.
            buckets: the buckets of rate limits, if they are not in the store.
            limits: tells which limits are reached.
            is_embedded: whether one process executes all tasks.
        """
        self._store = store
        self._types = types
        self._count = count
        self._buckets = buckets
        self._limits = limits
        self._is_embedded = is_embedded

    async def read(self, broker: Broker | None = None) -> Overview:
        """Return the installation as it is now; `broker` is the broker of this process, if it has one.

        Raises:
            StoreUnavailableError: if the store does not answer.
        """
        declared = {known.task_type: known for known in await self._types.list_known()}
        traffic = await read_traffic(self._store, declared)
        found = await self._store.list_records(PRESENCE.name, limit=MAX_LIMIT)
        overview = Overview(
            traffic,
            await self._count(),
            tuple(sorted(declared.keys() | traffic.task_types)),
            {pause.task_type: pause for pause in await read_all_contents(self._store, PAUSE)},
            tuple(PRESENCE.contents(found).values()),
            None if broker is None else broker.is_connected,
            tuple(await read_all_contents(self._store, SCHEDULE)),
            broker is not None and broker.is_blocked,
            await self._is_limiter_away(),
            is_embedded=self._is_embedded,
        )
        behind = [known for name, known in declared.items() if overview.is_behind(name)]
        return replace(overview, reached_limits=await self._reached_limits(behind)) if behind else overview

    async def _reached_limits(self, behind: Sequence[TaskDeclaration]) -> Mapping[str, Sequence[ReachedLimit]]:
        try:
            return {} if self._limits is None else await self._limits.reached(behind)
        except LimiterUnavailableError:  # the overview reports this as a separate problem
            return {}

    async def _is_limiter_away(self) -> bool:
        try:
            if self._buckets is not None:
                await self._buckets.read(RATE.id_of("overview"))  # any bucket shows whether the server answers
        except LimiterUnavailableError:
            return True
        return False


def _type_view(overview: Overview, task_type: str) -> dict[str, Any]:
    seen = overview.traffic.of_type(task_type)
    return {
        "task_type": task_type,
        "is_paused": task_type in overview.pauses,
        "waiting": seen.waiting,
        "running": seen.running,
        "retrying": seen.retrying,
        "is_bounded": seen.is_bounded,
        "is_running_bounded": overview.traffic.is_running_bounded,
        "oldest_waiting_at": format_time(seen.oldest_waiting_at),
        "submitted_per_second": round(seen.submitted_per_second, 3),
        "finished_per_second": round(seen.finished_per_second, 3),
        "failed_per_second": round(seen.failed_per_second, 3),
    }
