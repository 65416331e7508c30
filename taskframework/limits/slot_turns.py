"""`TurnRule` of concurrency limits with a key: a task that finds no slot waits until a slot is given back."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

from taskframework import failpoint
from taskframework.clock import Clock
from taskframework.limits.buckets import MemoryBuckets
from taskframework.limits.slots import SlotKeeper
from taskframework.limits.task_limits import concurrency_limit_of, slots_id
from taskframework.model.rate_limits import AttemptLimit, TakePermits
from taskframework.model.slots import AnnounceWaiting
from taskframework.model.task import Task
from taskframework.tasks.registry import Registration

#: Seconds after which a task asks for a slot by itself, a quarter more or less. Usually it is woken much earlier, when
#: a slot is given back; this is for a wake-up that was lost with its process.
_ASKS_AGAIN_SECONDS = 60.0
#: For this many times the time above, the record says that tasks may be waiting: their queue may be long when they ask.
_LATENESS_FACTOR = 2


class SlotTurns:
    """Publishes as many tasks of a key as slots are free; the others wait in the store."""

    def __init__(
        self,
        keeper: SlotKeeper,
        numbers: Mapping[str, int],
        clock: Clock,
        on_wait: Callable[[str], None] = lambda task_type: None,
    ) -> None:
        """Prepare.

        Args:
            keeper: knows the slots, and wakes the tasks that wait.
            numbers: the limits in the settings, by task type; they replace the limits in the options.
            clock: of this process.
            on_wait: called with the task type of each task that found no slot.
        """
        self._keeper = keeper
        self._numbers = numbers
        self._on_wait = on_wait
        #: In each second, as many messages of a key are published as there are slots, without a read of the slots. So
        #: only keys with more tasks in a second cost a read.
        self._published = MemoryBuckets(clock)

    def record_to_ask(self, registration: Registration, task: Task) -> str | None:
        """As in `TurnRule`."""
        limit = concurrency_limit_of(registration, self._numbers)
        if limit is None or limit.key is None:
            return None
        record_id = slots_id(limit, registration, task.parameters)
        pace = AttemptLimit(limit.number, limit.number)
        return None if self._published.change(TakePermits(record_id, pace)).granted else record_id

    async def waits_of(self, record_id: str, registration: Registration, count: int) -> Sequence[timedelta | None]:
        """Let as many tasks through as slots are free. As in `TurnRule`."""
        limit = concurrency_limit_of(registration, self._numbers)
        assert limit is not None
        free = (await self._keeper.read(record_id, limit.number)).free
        if count > free:
            # Announced before the tasks wait: every process that gives a slot back after this looks for them.
            seconds = _ASKS_AGAIN_SECONDS * _LATENESS_FACTOR
            free = (await self._keeper.change(AnnounceWaiting(record_id, limit.number, seconds))).free
            await failpoint.reached("slots.after_announce")
        through = min(count, max(0, free))
        for _ in range(count - through):
            self._on_wait(registration.task_type)
        waits = [timedelta(seconds=_ASKS_AGAIN_SECONDS * random.uniform(0.75, 1.25)) for _ in range(count - through)]
        return [*([None] * through), *waits]

    async def after_write(self, record_id: str, published: int) -> None:
        """Wake tasks for the slots that were given back before the tasks could be found."""
        await self._keeper.wake_waiting(record_id, published)
