"""Concurrency limits: an attempt begins with a slot of its type, or of its key.

Without a key, a delivery waits here while other deliveries use its slot in the worker. All further messages stay in the
queue.
With a key, the tasks of all keys stand in one line in the queue. So a task that gets no slot is put off in the store
and gets another message when a slot is given back. A wait counts no attempt.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextvars import Context
from datetime import timedelta

from taskframework import failpoint
from taskframework.background import Background
from taskframework.clock import Clock, from_timestamp, to_timestamp
from taskframework.limits.slots import SlotKeeper
from taskframework.limits.task_limits import concurrency_limit_of, slots_id
from taskframework.model.attempts import TakenSlot
from taskframework.model.message import claimable_since
from taskframework.model.slots import Slots, TakeSlot, rank_of
from taskframework.model.task import Task
from taskframework.stores.base import TaskStore
from taskframework.stores.reading import JointReads
from taskframework.tasks.registry import TaskRegistry
from taskframework.worker.admission import WAITED_TOO_LONG, Candidate, PutOff
from taskframework.worker.slot_line import SlotLine

#: A task that waits in the store and is not woken asks again after as many seconds as it has waited until now, within
#: these bounds. So a task that waits long rarely asks, because very many tasks may wait.
_MIN_DELAY_SECONDS, _MAX_DELAY_SECONDS = 1.0, 300.0
#: A task still counts as waiting until it is this many times as late as planned, because its queue may be long.
_LATENESS_FACTOR = 2
#: The answer for a task that lost its slot of the limit while it waited for another check.
_SLOT_LOST = PutOff(timedelta(seconds=_MIN_DELAY_SECONDS))


class ConcurrencyLimits:
    """`AdmissionCheck` for the task types of one worker that have a concurrency limit, and `Ceiling` of its intake.

    The chain has this check twice: other checks between the two may wait long, and then the task takes a new slot.
    """

    def __init__(
        self,
        keeper: SlotKeeper,
        store: TaskStore,
        registry: TaskRegistry,
        clock: Clock,
        worker_id: str,
        numbers: Mapping[str, int],
        claimed_within: timedelta,
        on_held: Callable[[str, int], None] = lambda task_type, change: None,
        on_wait: Callable[[str], None] = lambda task_type: None,
    ) -> None:
        """Hold no slots.

        Args:
            keeper: changes the slots.
            store: has the parameters of a task, which are not in its message.
            registry: says which task type has which limit.
            clock: of this process, for the waiting.
            worker_id: written into the record, to show which worker holds a slot.
            numbers: the limits in the settings, by task type; they replace the limits in the options.
            claimed_within: how long a slot is held for a claim that is still to be made.
            on_held: called for each slot that this worker takes (1) or gives back (-1), with the task type.
            on_wait: called with the task type of each task that found no slot.
        """
        self._keeper = keeper
        self._store = store
        self._tasks = JointReads(store)
        self._registry = registry
        self._clock = clock
        self._worker_id = worker_id
        self._numbers = numbers
        self._claimed_within = claimed_within.total_seconds()
        self._on_held = on_held
        self._on_wait = on_wait
        self._slot_lines: dict[str, SlotLine] = {}
        self._giving_back = Background()
        keeper.on_given_back = self._wake_line

    async def admit(self, candidate: Candidate) -> PutOff | None:
        """Take a slot for the task, if its type has a limit; wait here for a slot, or put the task off."""
        registration = candidate.registration
        limit = concurrency_limit_of(registration, self._numbers)
        if registration is None or limit is None or self._has_time_to_claim(candidate):
            return None
        if limit.key is None:
            take = self._request_without_key(candidate, slots_id(limit, registration), limit.number)
            return await self._wait_for_slot(candidate, take)
        task = await candidate.claimable(self._tasks)
        if task is None:
            return None  # the claim will refuse the task, so it needs no slot
        return await self._take_or_put_off(
            candidate, slots_id(limit, registration, task.parameters), limit.number, task
        )

    def has_limit(self, task_type: str) -> bool:
        """Return whether tasks of this type need a slot."""
        return concurrency_limit_of(self._registry.get(task_type), self._numbers) is not None

    def ceiling(self, task_type: str) -> int | None:
        """Return, as `Ceiling`, the number of the limit for a type whose deliveries wait here."""
        limit = concurrency_limit_of(self._registry.get(task_type), self._numbers)
        return None if limit is None or limit.key is not None else limit.number

    async def close(self) -> None:
        """Ask for no more slots, and finish giving slots back."""
        for line in self._slot_lines.values():
            await line.close()
        await self._giving_back.finished()

    def _has_time_to_claim(self, candidate: Candidate) -> bool:
        """Return whether the candidate has a slot, with more than half of the time left in which it must be claimed."""
        if candidate.slot is None:
            return False
        return candidate.slot.until - self._store.now() > timedelta(seconds=self._claimed_within / 2)

    def _request_without_key(self, candidate: Candidate, record_id: str, number: int) -> TakeSlot:
        since = claimable_since(candidate.headers) or self._store.now()
        return self._take_request(candidate, record_id, number, rank_of(candidate.lane), to_timestamp(since))

    def _take_request(
        self, candidate: Candidate, record_id: str, number: int, rank: int, since: float, asks_again_within: float = 0.0
    ) -> TakeSlot:
        ids = (candidate.message.task_id, candidate.claim_id, self._worker_id)
        return TakeSlot(record_id, number, *ids, rank, since, self._claimed_within, asks_again_within)

    async def _wait_for_slot(self, candidate: Candidate, take: TakeSlot) -> PutOff | None:
        line = self._slot_lines.get(take.record_id)
        if line is None:
            line = self._slot_lines[take.record_id] = SlotLine(self._keeper.change, self._worker_id, self._clock)
        had_slot = candidate.slot is not None
        if await self._try_to_take(candidate, take):
            return None
        if had_slot:
            return _SLOT_LOST  # during a second long wait here, the permits from other checks would expire
        self._on_wait(candidate.message.task_type)
        while await candidate.without_slot(line.wait_for_free_slot(take)):
            if await self._try_to_take(candidate, take):
                return None
        return WAITED_TOO_LONG

    async def _take_or_put_off(self, candidate: Candidate, record_id: str, number: int, task: Task) -> PutOff | None:
        """Take a slot if one is free for this task; otherwise put the task off, the longer the longer it has waited."""
        waited = (self._store.now() - task.not_before).total_seconds()
        delay = min(max(waited, _MIN_DELAY_SECONDS), _MAX_DELAY_SECONDS) * random.uniform(0.75, 1.25)
        since = to_timestamp(task.not_before)
        take = self._take_request(candidate, record_id, number, rank_of(task.lane), since, _LATENESS_FACTOR * delay)
        if await self._try_to_take(candidate, take):
            return None
        self._on_wait(task.task_type)
        return PutOff(timedelta(seconds=delay), record_id)

    async def _try_to_take(self, candidate: Candidate, take: TakeSlot) -> bool:
        slots = await self._keeper.change(take)
        await failpoint.reached("slots.after_take")
        had_none, held = candidate.slot is None, slots.held_by(take.claim_id)
        if held is None:
            candidate.slot = None
            return False
        candidate.slot = TakenSlot(take.record_id, from_timestamp(held.until))
        candidate.unless_claimed.callback(self._give_back, candidate, take, held.until)
        if had_none:
            task_type = candidate.message.task_type
            self._on_held(task_type, 1)
            candidate.holding.callback(self._on_held, task_type, -1)
        return True

    def _give_back(self, candidate: Candidate, take: TakeSlot, until: float) -> None:
        candidate.slot = None
        # In a separate context: this write may end after the delivery and its spans.
        self._giving_back.start(self._keeper.give_back(take.record_id, take.claim_id, until), Context())

    def _wake_line(self, record_id: str, slots: Slots) -> None:
        if (line := self._slot_lines.get(record_id)) is not None:
            line.note(slots)
