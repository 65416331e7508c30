"""The intake: how many messages of each task type a worker takes, and when it takes none.

The prefetch is a credit: with every acknowledgement the broker sends another message. When a message is acknowledged
early, its task still has a slot, so the prefetch must shrink with the free slots. But RabbitMQ fixes the prefetch when
a consumer registers. So this module alone compares, for each type, the present prefetch with the prefetch that it
should have, and registers new consumers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from taskframework.background import surviving
from taskframework.brokers.base import Broker, ConsumeRequest, Consumption
from taskframework.clock import Clock, happens_within
from taskframework.model.status import LANES
from taskframework.model.wording import pluralize
from taskframework.worker.consumer import TaskConsumer
from taskframework.worker.store_breaker import StoreBreaker

logger = logging.getLogger(__name__)

#: At most so many task types are named in a health check.
_MAX_NAMED_TYPES = 5
#: Seconds between two looks at the slots: so a hundred early acknowledgements cost one new registration.
_LOOK_INTERVAL_SECONDS = 1.0
#: Deliveries beyond the free slots (the headroom), as a share of the free slots, so that a slot has its next delivery
#: while the acknowledgement of the last delivery is still on its way. With no-op tasks, slots were empty for 28 % of
#: the time without headroom, for 7 % with a quarter, and for 2 % with a half; more did not help.
_HEADROOM_SHARE = 1 / 2
#: With fewer slots than this there is no headroom. People set few slots for long tasks: compared with such tasks, the
#: time of an acknowledgement does not matter, and a delivery in the headroom would wait long beside free workers.
_FEW_SLOTS = 10
#: While lanes compete the headroom is this share of the free slots, also with few slots: otherwise the slot of a high
#: task goes to a low task, because the next high task has not arrived. With a half, tasks of a tenth of a second gave
#: the low lane 0.17 to 0.24 of the starts in place of 0.11; more than this did not help.
_HEADROOM_SHARE_OF_COMPETING_LANES = 1
#: For this many seconds after the competition the headroom stays, because new consumers cost something.
_HEADROOM_AFTER_COMPETITION_SECONDS = 60.0
#: The least headroom, if there is any: while one delivery begins, the next one is on its way.
_MIN_HEADROOM = 2
#: The most deliveries of all queues in one worker, about 30 MB, unless the slots need more.
_MAX_DELIVERIES = 10_000
#: A change by less than this share of the slots is not worth new consumers, unless it is from zero, to zero, or to all.
_MIN_CHANGE_SHARE = 1 / 8


def prefetch(free: int, types: int, limit: int | Literal["auto"], *, lanes_compete: bool = False) -> int:
    """Return the prefetch of each queue. One busy queue alone can fill all free slots, and has the headroom as well.

    If there are too many types for this, all queues together at least fill the slots.

    Args:
        free: the slots that are not taken by attempts whose delivery was acknowledged early.
        types: how many task types are consumed, each with a queue for every lane.
        limit: the most that the settings allow.
        lanes_compete: whether lanes compete, so that the next delivery of each must be here when a slot becomes free.
    """
    queues = max(types, 1) * len(LANES)
    share = max(min(free, 2), -(-free // max(types, 1)))
    count = max(share, min(free + _headroom(free, lanes_compete=lanes_compete), _MAX_DELIVERIES // queues))
    return count if limit == "auto" else min(count, limit)


def _headroom(free: int, *, lanes_compete: bool) -> int:
    if not lanes_compete and free < _FEW_SLOTS:
        return 0
    return max(_MIN_HEADROOM, int(free * (_HEADROOM_SHARE_OF_COMPETING_LANES if lanes_compete else _HEADROOM_SHARE)))


def is_worth_registering(present: int, wanted: int, max_slots: int) -> bool:
    """Return whether a change from `present` to `wanted` slots is worth new consumers; a type has up to `max_slots`."""
    if present == wanted:
        return False
    is_boundary = 0 in (present, wanted) or wanted == max_slots
    return is_boundary or abs(wanted - present) >= max(1, max_slots * _MIN_CHANGE_SHARE)


@dataclass(frozen=True, slots=True)
class ConsumedType:
    """How one task type is consumed at present."""

    consumption: Consumption
    #: The slots, and whether lanes competed, when the prefetch was computed.
    slots: int
    lanes_compete: bool


#: Returns the most slots that a task type may have at present; None means as many as the worker has.
Ceiling = Callable[[str], int | None]


class Intake:
    """Keeps the consumers of one worker as they should be, for each task type separately."""

    def __init__(
        self,
        broker: Broker,
        consumer: TaskConsumer,
        breaker: StoreBreaker,
        clock: Clock,
        limit: int | Literal["auto"],
        ceilings: Sequence[Ceiling] = (),
    ) -> None:
        """Prepare without consuming.

        Args:
            broker: where the messages are.
            consumer: takes the deliveries, and knows how many slots are taken.
            breaker: while it is open, nothing is consumed.
            clock: for the pauses.
            limit: the setting `worker.prefetch`.
            ceilings: limit single types. They are asked at each look, so they must answer at once.
        """
        self._broker = broker
        self._consumer = consumer
        self._breaker = breaker
        self._clock = clock
        self._limit = limit
        self._ceilings = ceilings
        self._types: Sequence[str] = ()
        self._consumed: dict[str, ConsumedType] = {}
        #: When lanes competed last, by the clock of this process; None means never.
        self._competed_at: float | None = None
        self._is_stopping = False
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self, task_types: Sequence[str]) -> None:
        """Begin to consume the queues of these types, whenever they should be consumed."""
        self._types = task_types
        self._breaker.on_change = self.wake
        if task_types:
            self._task = asyncio.create_task(self._run())

    def takes_freely(self, task_type: str) -> bool:
        """Return whether a task of this type may begin now in any free slot, without a look at pauses and limits.

        Not with few slots: a task without a message takes a slot for which the broker has sent a delivery already. With
        few slots that delivery would wait here for long, perhaps beside free workers.
        """
        return (
            task_type in self._consumed
            and not self._is_stopping
            and not self._breaker.is_open
            and self._consumer.slots >= _FEW_SLOTS
            and self._max_slots(task_type) == self._consumer.slots
        )

    def wake(self) -> None:
        """Look now, because the consumers that there should be may have changed."""
        self._wake.set()

    async def stop(self) -> None:
        """Consume no more. Nothing is taken in after this returns."""
        self._is_stopping = True
        self.wake()
        if self._task is not None:
            # Not cancelled, not even together with the caller: at this moment it may be replacing consumers.
            await asyncio.wait([self._task])
            self._task.result()

    @property
    def is_live(self) -> bool:
        """Whether every queue is being consumed, except those of types with a ceiling of zero."""
        return not self._unserved

    @property
    def problem(self) -> str | None:
        """Why not every queue is being consumed."""
        unserved = self._unserved
        if not unserved:
            return None
        if self._breaker.is_open:
            return "paused: the store is away"
        if not self._free:
            return "paused: long tasks hold all slots"
        if len(unserved) == sum(1 for name in self._types if self._max_slots(name)):
            return "not consuming"
        named = ", ".join(unserved[:_MAX_NAMED_TYPES]) + (", …" if len(unserved) > _MAX_NAMED_TYPES else "")
        return f"not consuming {pluralize(len(unserved), 'task type')}: {named}"

    @property
    def _unserved(self) -> Sequence[str]:
        """The types that should be consumed and are not."""
        wanted = [name for name in self._types if self._max_slots(name)]
        return [name for name in wanted if name not in self._consumed or not self._consumed[name].consumption.is_live]

    @property
    def _free(self) -> int:
        return max(0, self._consumer.slots - self._consumer.deliveries.acked_early)

    def _max_slots(self, task_type: str) -> int:
        bounds = [bound for ceiling in self._ceilings if (bound := ceiling(task_type)) is not None]
        return min([self._consumer.slots, *bounds])

    def _note_competition(self) -> None:
        if self._consumer.lanes.are_competing:
            self._competed_at = self._clock.monotonic()

    @property
    def _lanes_compete(self) -> bool:
        """Whether lanes compete, or did so a short time ago."""
        if self._competed_at is None:
            return False
        return self._clock.monotonic() - self._competed_at < _HEADROOM_AFTER_COMPETITION_SECONDS

    def _wanted_slots(self) -> Mapping[str, int]:
        """Return for how many slots each type should be consumed."""
        if self._is_stopping or self._breaker.is_open:
            return dict.fromkeys(self._types, 0)
        # A type waits until the deliveries of its former consumers are claimed. Otherwise, while a store answers pings
        # but fails at claims, each new try would fill this worker with one more prefetch of deliveries.
        waits = self._consumer.deliveries.types_left_over - self._consumed.keys()
        free = self._free
        return {name: 0 if name in waits else min(free, self._max_slots(name)) for name in self._types}

    async def _run(self) -> None:
        while not self._is_stopping:
            with surviving(logger, "the change of this worker's consumers"):
                await self._adjust()
            await self._pause()
        await self._stop_consuming(self._types)

    async def _adjust(self) -> None:
        self._note_competition()
        changing = [name for name, wanted in self._wanted_slots().items() if self._is_worth_changing(name, wanted)]
        if changing:
            await self._stop_consuming(changing)
            # Compute this again, because it may have changed meanwhile; from here on nothing is awaited.
            wanted = self._wanted_slots()
            for name in changing:
                self._consume(name, wanted[name])
        if not self._free and not self._is_stopping:
            # Here the deliveries would wait until the long tasks end, although other workers may be idle.
            self._consumer.hand_over_waiting()

    def _is_worth_changing(self, task_type: str, wanted: int) -> bool:
        consumed = self._consumed.get(task_type)
        present = consumed.slots if consumed is not None else 0
        if consumed is not None and wanted and consumed.lanes_compete != self._lanes_compete:
            return True
        return is_worth_registering(present, wanted, self._max_slots(task_type))

    def _consume(self, task_type: str, slots: int) -> None:
        if slots:
            lanes_compete = self._lanes_compete
            count = prefetch(slots, len(self._types), self._limit, lanes_compete=lanes_compete)
            logger.debug("consuming %s for %d slots, %d deliveries of each queue", task_type, slots, count)
            take_delivery = partial(self._consumer.take_delivery, task_type)
            consumption = self._broker.consume(ConsumeRequest([task_type], count), take_delivery)
            self._consumed[task_type] = ConsumedType(consumption, slots, lanes_compete)

    async def _stop_consuming(self, task_types: Sequence[str]) -> None:
        # Stop all together, because each stop waits for the broker's answer.
        await asyncio.gather(*(self._stop_one(name) for name in task_types if name in self._consumed))
        await self._consumer.acknowledge_early()

    async def _stop_one(self, task_type: str) -> None:
        await self._consumed[task_type].consumption.stop()
        del self._consumed[task_type]
        self._consumer.deliveries.mark_consumers_stopped(task_type)

    async def _pause(self) -> None:
        if not self._is_stopping:
            await happens_within(self._wake, _LOOK_INTERVAL_SECONDS, self._clock)
            self._wake.clear()
