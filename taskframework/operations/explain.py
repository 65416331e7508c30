"""Explains why a task is not running, or not finished: collects the facts for the rule by a few bounded reads."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from taskframework.brokers.base import Broker
from taskframework.errors import BrokerError, TaskNotFoundError
from taskframework.limits.buckets import Buckets, LimiterUnavailableError
from taskframework.model.explain import explain
from taskframework.model.facts import Cause, Facts
from taskframework.model.interventions import is_suspect
from taskframework.model.limits import kind_of, waiting_limit
from taskframework.model.pauses import PAUSE
from taskframework.model.query import MAX_LIMIT, RoundOfSubtasks, TaskFilter
from taskframework.model.rate_limits import RATE, BucketLimit
from taskframework.model.records import Record, RecordKind
from taskframework.model.scope import EVERYONE, Scope
from taskframework.model.slots import SLOTS, Slots
from taskframework.model.status import CLAIMABLE, LIVE, TaskStatus
from taskframework.model.streams import STREAMS, stream_of
from taskframework.model.task import Task
from taskframework.model.task_fields import Lease
from taskframework.model.traffic import CountedTasks
from taskframework.model.versions import VERSIONS, record_id
from taskframework.model.view import format_time
from taskframework.model.workers import PRESENCE, Presence
from taskframework.operations.limits import state_of
from taskframework.operations.traffic import MAX_WAITING
from taskframework.settings import WorkerSettings
from taskframework.stores.base import TaskStore
from taskframework.stores.reading import read_record
from taskframework.tasks.declarations import DECLARATION, TaskDeclaration

#: The most sub-tasks, and the most holders of slots, that are named.
_MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a task was not running, or not finished, at one moment."""

    task: Task
    cause: Cause
    at: datetime

    def view(self) -> dict[str, Any]:
        """Return the explanation as plain JSON."""
        return {
            "task_id": self.task.task_id,
            "status": str(self.task.status),
            "code": self.cause.code,
            "because": self.cause.because,
            "change": self.cause.change,
            "details": dict(self.cause.details),
            "at": format_time(self.at),
        }


class ExplainOperations:
    """Explains tasks. It does not read all facts at one moment, so the next call may give another cause."""

    def __init__(
        self,
        store: TaskStore,
        buckets: Buckets,
        limits: Mapping[str, BucketLimit],
        worker: WorkerSettings,
        *,
        is_embedded: bool = False,
    ) -> None:
        """Prepare.

        Args:
            store: where everything else is.
            buckets: the buckets of the rate limits; if they are in memory, only those of this process are seen.
            limits: how much each bucket lets through, by its name.
            worker: how many crashes make a task a dead letter, and when a task is taken from a lost worker.
            is_embedded: whether one process executes all tasks.
        """
        self._store = store
        self._buckets = buckets
        self._limits = limits
        self._max_crashes, self._lease_grace = worker.max_crashes, worker.lease_grace
        self._is_embedded = is_embedded

    async def explain(
        self, task_id: str, scope: Scope, broker: Broker | None = None, refusal: str | None = None
    ) -> Explanation:
        """Explain why a task is not running, or not finished.

        Args:
            task_id: the task.
            scope: whose tasks may be explained; tasks of other users are counted but not named.
            broker: the broker of this process, if it has one.
            refusal: why the broker refused the last message of this process, if it did.

        Raises:
            TaskNotFoundError: if there is no such task.
            StoreUnavailableError: if the store does not answer.
        """
        task = await self._store.get(task_id, scope)
        if task is None:
            raise TaskNotFoundError(task_id)
        now = self._store.now()
        facts = Facts(
            task=task, now=now, max_crashes=self._max_crashes, is_embedded=self._is_embedded, broker_refusal=refusal
        )
        if task.lease is not None:
            facts = await self._with_lease(facts, task.lease)
        elif task.status is TaskStatus.WAITING:
            facts = replace(facts, open_subtasks=await self._open_subtasks(task))
        elif task.status is TaskStatus.BLOCKED:
            facts = await self._with_stream(facts)
        elif task.status in CLAIMABLE:
            facts = await self._with_limits(facts, scope)
            facts = await self._with_workers(facts, scope, broker)
        return Explanation(task, explain(facts), facts.now)

    async def _with_lease(self, facts: Facts, lease: Lease) -> Facts:
        record = await read_record(self._store, PRESENCE.id_of(lease.worker_id))
        worker = None if record is None else PRESENCE.content(record)
        return replace(facts, worker=worker, lease_grace=self._lease_grace)

    async def _open_subtasks(self, task: Task) -> tuple[Task, ...]:
        if task.subtasks is None:
            return ()
        round = RoundOfSubtasks(task.task_id, task.generation, task.subtasks.round)
        return tuple(await self._store.list_subtasks(round, limit=_MAX_NAMED, statuses=sorted(LIVE)))

    async def _with_stream(self, facts: Facts) -> Facts:
        stream = stream_of(facts.task)
        record = None if stream is None else await read_record(self._store, stream.record_id)
        if record is None:
            return facts
        state = STREAMS.content(record)
        holder = None if state.turn is None else await self._store.get(state.turn.task_id, EVERYONE)
        return replace(facts, stream=state, turn_holder=holder)

    async def _with_limits(self, facts: Facts, scope: Scope) -> Facts:
        """Add the facts from records: the newest version, the pause, the bucket and the slots."""
        task = facts.task
        limit = waiting_limit(task)
        slots_id = limit if limit is not None and kind_of(limit) == SLOTS.name else SLOTS.id_of(task.task_type)
        version = None if task.unique is None else record_id(task.user_id, task.unique.key)
        pause_id, declaration_id = PAUSE.id_of(task.task_type), DECLARATION.id_of(task.task_type)
        wanted = (pause_id, declaration_id, slots_id, version)
        records = await self._store.read_records([name for name in wanted if name is not None])
        declared = _content(DECLARATION, records, declaration_id)
        slots = _content(SLOTS, records, slots_id)
        facts = replace(
            facts,
            newest=None if version is None else _content(VERSIONS, records, version),
            pause=_content(PAUSE, records, pause_id),
            slots=slots,
            slots_id=slots_id,
            visible_holders=await self._visible_holders(slots, scope),
            declared_at=None if declared is None else declared.declared_at,
        )
        return await self._with_bucket(facts, declared)

    async def _visible_holders(self, slots: Slots | None, scope: Scope) -> frozenset[str]:
        """Return the tasks, of the first holders, that are in the scope."""
        holders = [] if slots is None else [holder.task_id for holder in slots.holders[:_MAX_NAMED]]
        if scope == EVERYONE:
            return frozenset(holders)
        return frozenset([task_id for task_id in holders if await self._store.get(task_id, scope) is not None])

    async def _with_bucket(self, facts: Facts, declared: TaskDeclaration | None) -> Facts:
        name = None if declared is None else declared.rate_limit or declared.bucket
        if declared is None or name is None or name not in self._limits:
            return facts
        try:
            bucket = await self._buckets.read(RATE.id_of(name))
        except LimiterUnavailableError:
            return replace(facts, bucket=name, is_limiter_away=True)
        if bucket is None or declared.bucket is None:  # with a key, the task itself says for which bucket it waits
            return facts
        free_at = state_of(name, None, self._limits[name], bucket, facts.now).next_at
        return replace(facts, bucket=name, bucket_free_at=free_at)

    async def _with_workers(self, facts: Facts, scope: Scope, broker: Broker | None) -> Facts:
        task = facts.task
        found = await self._store.list_records(PRESENCE.name, limit=MAX_LIMIT)
        knowing = [it for it in PRESENCE.contents(found).values() if task.task_type in it.task_types]
        workers = tuple([it for it in knowing if not it.is_lost(facts.now)])
        last = max(knowing, key=lambda it: it.seen_at, default=None)
        facts = replace(facts, workers=workers, last_worker=last)
        if broker is not None:
            is_connected, is_blocked = broker.is_connected, broker.is_blocked
            facts = replace(facts, is_broker_connected=is_connected, is_broker_blocked=is_blocked)
        if is_suspect(task, self._max_crashes):
            return replace(facts, running_suspects=await self._running_suspects(scope))
        if task.not_before > facts.now:
            return facts
        facts = await self._with_lane(facts, broker)
        return replace(facts, running_by_type=await self._running_by_type(workers)) if task.dispatches else facts

    async def _running_suspects(self, scope: Scope) -> tuple[str, ...]:
        running = TaskFilter(status=TaskStatus.RUNNING)
        page = await self._store.list_tasks(scope, running, limit=MAX_LIMIT)
        suspects: Sequence[str] = [it.task_id for it in page.items if is_suspect(it, self._max_crashes)]
        return tuple(suspects[:_MAX_NAMED])

    async def _running_by_type(self, workers: Sequence[Presence]) -> Mapping[str, int]:
        """Return how many tasks of each type of these workers run, if all their slots are in use; else nothing."""
        if not workers or any(worker.has_free_slot for worker in workers):
            return {}
        types = {task_type for worker in workers for task_type in worker.task_types}
        running = await self._store.count_lanes(CountedTasks.RUNNING, MAX_WAITING, due_before=self._store.now())
        found = Counter[str]()
        for it in running.counted:
            found[it.task_type] += it.count
        return {} if running.is_bounded else {name: found[name] for name in found.keys() & types}

    async def _with_lane(self, facts: Facts, broker: Broker | None) -> Facts:
        task, messages = facts.task, None
        waiting = await self._store.count_lanes(
            CountedTasks.WAITING, MAX_WAITING, due_before=task.not_before, queue=(task.task_type, task.lane)
        )
        if broker is not None:
            with contextlib.suppress(BrokerError):
                messages = await broker.queue_depth(task.task_type, task.lane)
        return replace(facts, ahead=waiting.due, is_ahead_bounded=waiting.is_due_bounded, messages=messages)


def _content(kind: RecordKind[Any], records: Mapping[str, Record], record_id: str) -> Any:
    """Return the content of one of the records, if it exists."""
    record = records.get(record_id)
    return None if record is None else kind.content(record)
