"""Turns at dispatch: a task that must wait long for a permit of its key gets a turn, and until then no message.

With a message, it would stand in the queue before the tasks of all other keys, and a worker would have to take the
message only to find out that the task may not begin. The workers decide about every permit; this only spares messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass
from datetime import timedelta

from taskframework import failpoint
from taskframework.background import Background
from taskframework.clock import Clock
from taskframework.errors import TaskframeworkError
from taskframework.limits.buckets import Buckets, MemoryBuckets
from taskframework.limits.task_limits import bucket_id
from taskframework.model.marks import MakeDue
from taskframework.model.rate_limits import Bucket, BucketLimit, TakePermits, next_turn_at, seconds_of
from taskframework.model.task import Task
from taskframework.stores.base import TaskStore
from taskframework.tasks.limits import RateLimit
from taskframework.tasks.registry import TaskRegistry

logger = logging.getLogger(__name__)

#: A task that has to wait less than this many seconds gets its message: a worker lets it wait for its permit.
_MIN_WAIT_SECONDS = 2.0
#: The most tasks that get their turns together: one write for each bucket, and one for the tasks.
_GROUP_SIZE = 500
#: The most tasks that wait for their turns; all others are left to the sweeper, so that memory stays bounded.
_MAX_WAITING = 20_000
#: Seconds in which a bucket must answer. After that the tasks get messages, and the workers wait for the bucket.
_ANSWER_TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A task for which the bucket is asked."""

    task: Task
    record_id: str
    limit: RateLimit


class DispatchTurns:
    """Takes tasks over before they are published, if too many tasks of their key were published already."""

    def __init__(
        self,
        buckets: Buckets,
        limits: Mapping[str, BucketLimit],
        registry: TaskRegistry,
        store: TaskStore,
        clock: Clock,
        on_put_off: Callable[[str], None] = lambda name: None,
    ) -> None:
        """Prepare.

        Args:
            buckets: where the buckets are.
            limits: how much the buckets of a name let through.
            registry: says which task type has which limit.
            store: where the turns are written.
            clock: of this process.
            on_put_off: called with the name of the limit for each task that got a turn.
        """
        self._buckets = buckets
        self._limits = limits
        self._registry = registry
        self._store = store
        self._on_put_off = on_put_off
        #: Buckets from which this process takes a permit for each message. While they have permits, the real bucket
        #: need not be asked: at the usual rates, dispatch costs nothing more.
        self._published = MemoryBuckets(clock)
        self._waiting: deque[_Waiting] = deque()
        self._work = Background()
        #: Publishes a task that may begin soon. Set by the producer.
        self.publish: Callable[[Task], None] = lambda task: None

    def take_over(self, task: Task) -> bool:
        """Take a task over that is to be published now, if its bucket must be asked first.

        The task then gets a turn, is published, or is left to the sweeper.

        Returns:
            False if the caller is to publish the task.
        """
        registration = self._registry.get(task.task_type)
        limit = None if registration is None else registration.rate_limit
        if limit is None or limit.key is None or _has_turn(task):
            return False
        record_id = bucket_id(limit, task.parameters)
        if self._published.change(TakePermits(record_id, self._limits[limit.name], ahead=_MIN_WAIT_SECONDS)).granted:
            return False
        if len(self._waiting) < _MAX_WAITING:
            # Without the parameters, which may be large: thousands may wait.
            self._waiting.append(_Waiting(task.evolve(parameters=None), record_id, limit))
            if not self._work.tasks:
                # In a separate context: the work runs on after the caller of its first task, whose spans end.
                self._work.start(self._run(), Context())
        return True

    async def finished(self) -> None:
        """Wait until every task until now has a turn, is published, or is left to the sweeper."""
        await self._work.finished()

    async def _run(self) -> None:
        while self._waiting:
            groups: dict[str, list[_Waiting]] = defaultdict(list)
            for _ in range(min(len(self._waiting), _GROUP_SIZE)):
                waiting = self._waiting.popleft()
                groups[waiting.record_id].append(waiting)
            try:
                turns = await asyncio.gather(*map(self._give_turns, groups.values()))
                await self._write([mark for marks in turns for mark in marks])
            except Exception:
                logger.exception("tasks under rate limits are left to the sweeper: %s", ", ".join(groups))
        self._work.leave()

    async def _give_turns(self, group: Sequence[_Waiting]) -> list[MakeDue]:
        """Return the turns of tasks of one bucket; if they need none, publish them."""
        bucket = None
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT_SECONDS):
                bucket = await self._take_turns(group)
        except (TaskframeworkError, TimeoutError) as error:
            logger.debug("tasks under %s are sent without a turn: %s", group[0].record_id, error)
        if bucket is None:
            for waiting in group:
                self.publish(waiting.task)
            return []
        name, wait = group[0].limit.name, bucket.first_at - bucket.asked_at
        for _ in group:
            self._on_put_off(name)
        return [_turn(waiting, wait + place / self._limits[name].rate) for place, waiting in enumerate(group)]

    async def _take_turns(self, group: Sequence[_Waiting]) -> Bucket | None:
        """Take a turn for each task; return None if the next turn comes soon."""
        record_id, limit = group[0].record_id, self._limits[group[0].limit.name]
        bucket = await self._buckets.read(record_id)
        now = seconds_of(self._store.now())
        if bucket is None or next_turn_at(bucket, limit, now) - now < _MIN_WAIT_SECONDS:
            return None
        bucket = await self._buckets.take(TakePermits(record_id, limit, most=len(group), in_line=True))
        await failpoint.reached("limits.after_take")
        return None if bucket.granted else bucket

    async def _write(self, turns: Sequence[MakeDue]) -> None:
        try:
            await self._store.mark(*turns)
        except TaskframeworkError as error:
            logger.debug("%d tasks are left to the sweeper: %s", len(turns), error)


def _has_turn(task: Task) -> bool:
    """Return whether the task waited for a limit already, so that it is published now because its turn has come."""
    return task.waits_for_limit is not None and task.waits_for_limit.dispatch_epoch == task.dispatch_epoch


def _turn(waiting: _Waiting, wait: float) -> MakeDue:
    task = waiting.task
    delay = timedelta(seconds=wait)
    return MakeDue(task.task_id, task.dispatch_epoch, delay, waiting.record_id, due=task.next_dispatch_at)
