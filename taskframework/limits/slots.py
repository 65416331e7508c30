"""The slots of concurrency limits: taken for a claim, given back by the process that ends the attempt, and repaired."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from taskframework import failpoint
from taskframework.clock import to_timestamp
from taskframework.errors import StoreError, StoreUnavailableError, TaskUnreadableError
from taskframework.grouping import Grouping
from taskframework.model.events import TaskEvent
from taskframework.model.limits import slot_to_give_back
from taskframework.model.marks import MakeDue
from taskframework.model.slots import (
    MAX_CLOCK_DIFFERENCE_SECONDS,
    SLOTS,
    GiveSlotBack,
    Holder,
    KeepPlace,
    SlotChange,
    SlotChanges,
    Slots,
    rank_of,
)
from taskframework.model.task import new_claim_id
from taskframework.model.task_fields import HeldSlot
from taskframework.stores.base import TaskStore
from taskframework.stores.reading import read_all_records, read_record
from taskframework.stores.replies import DueTask

logger = logging.getLogger(__name__)

#: Seconds for which a free slot is kept for the task that was woken for it; after that any task may take it.
_KEPT_FOR_WOKEN_SECONDS = 2.0
#: To find a task to wake, this many more tasks are read than stand in the line, because other processes wake some too.
_EXTRA_TASKS_READ = 10


class SlotKeeper:
    """Changes the slots in the store, and wakes a waiting task for each slot that becomes free."""

    def __init__(self, store: TaskStore, dispatch: Callable[[DueTask], Awaitable[None]]) -> None:
        """Prepare; `dispatch` sends the message of a task that is due."""
        self._store = store
        self._dispatch = dispatch
        self._changes: Grouping[SlotChange, Slots] = Grouping(self._change_all)
        #: Called with the id of a limit, and its slots, when one of the slots was given back in this process.
        self.on_given_back: Callable[[str, Slots], None] = lambda limit, slots: None

    async def read(self, limit: str, number: int) -> Slots:
        """Return the slots of a limit as they are now; `number` free slots if the limit has no record yet.

        Raises:
            StoreError: if the store is away, or a newer release wrote them.
        """
        record = await read_record(self._store, limit)
        slots = Slots(number) if record is None else SLOTS.content(record)
        return replace(slots, asked_at=to_timestamp(self._store.now()))

    async def change(self, change: SlotChange) -> Slots:
        """Make one change of the slots of a limit. Changes that come while others are under way are written together.

        Returns:
            The slots after this change, and after those that were written with it.

        Raises:
            StoreUnavailableError: if the store is away; the change may have been made.
        """
        return await self._changes(change)

    def on_event(self, event: TaskEvent) -> Awaitable[None] | None:
        """Give back the slot of an ended attempt, as a listener for every event that ends an attempt."""
        held = slot_to_give_back(event.task)
        return None if held is None else self._give_back_held(held)

    async def give_back(self, limit: str, claim_id: str, until: float | None = None) -> None:
        """Give back the slot of a claim that does not run, and wake a task that waits for a slot.

        If this fails, `reconcile` finds the slot when its time is over.

        Args:
            limit: the id of the record.
            claim_id: a claim that has ended, or cannot be made any more.
            until: as in `GiveSlotBack`.
        """
        try:
            slots = await self.change(GiveSlotBack(limit, claim_id, until))
            await failpoint.reached("slots.after_release")
            self.on_given_back(limit, slots)
            if slots.has_waiting_tasks and slots.free > 0:
                await self._wake_next(limit, slots, claim_id)
        except StoreUnavailableError as error:
            logger.info("a slot of %s is given back later: %s", limit, error.message)

    async def wake_waiting(self, limit: str, spared: int) -> None:
        """Wake a waiting task for each free slot except `spared` of them, which are for tasks that were just published.

        If this fails, `reconcile` does it.
        """
        try:
            await self._wake_for_free_slots(limit, await self.read(limit, 0), spared)
        except StoreError as error:
            logger.info("tasks are woken later for the slots of %s: %s", limit, error.message)

    async def reconcile(self) -> None:
        """Free slots that were not given back because a process died or the store was away. Wake tasks for free slots
        if a process died before it woke them.
        """
        now = to_timestamp(self._store.now())
        late: list[tuple[str, Holder]] = []
        for limit, found in SLOTS.contents(await read_all_records(self._store, SLOTS)).items():
            slots = replace(found, asked_at=now)
            late += [(limit, holder) for holder in slots.holders if holder.until + MAX_CLOCK_DIFFERENCE_SECONDS <= now]
            await self._wake_for_free_slots(limit, slots)
        claims = await self._store.claims_of({holder.task_id for _, holder in late}) if late else {}
        for limit, holder in late:
            if claims.get(holder.task_id) != holder.claim_id:
                logger.info("a slot of %s is taken back from task %s, which does not run", limit, holder.task_id)
                await self.give_back(limit, holder.claim_id, holder.until)

    async def _wake_for_free_slots(self, limit: str, slots: Slots, spared: int = 0) -> None:
        for _ in range(slots.free - spared if slots.has_waiting_tasks else 0):
            # With the places that were just given: otherwise the next read would end at the tasks that have them.
            before, slots = slots, await self._wake_next(limit, slots, new_claim_id())
            if slots is before or slots.free <= 0:
                return  # there was no task to wake, or no slot is left: each further search would find the same

    async def _change_all(self, changes: Sequence[SlotChange]) -> Sequence[Slots | Exception]:
        # All processes write to the record of a limit, one write after the other. So there should be few writes.
        by_limit: dict[str, list[SlotChange]] = defaultdict(list)
        for change in changes:
            by_limit[change.record_id].append(change)
        written = await asyncio.gather(*map(self._change_limit, by_limit, by_limit.values()))
        slots = dict(zip(by_limit, written, strict=True))
        return [slots[change.record_id] for change in changes]

    async def _change_limit(self, limit: str, changes: Sequence[SlotChange]) -> Slots | Exception:
        try:
            return SLOTS.content(await self._store.change_record(SlotChanges(limit, tuple(changes))))
        except Exception as error:
            return error

    async def _give_back_held(self, held: HeldSlot) -> None:
        await failpoint.reached("slots.before_release")
        await self.give_back(held.limit, held.claim_id)

    async def _wake_next(self, limit: str, slots: Slots, claim_id: str) -> Slots:
        """Wake the first task that waits in the store and that nobody has woken yet, if a slot is free for it.

        Returns:
            The slots as they were last seen.
        """
        for task in await self._store.waiting_for(limit, len(slots.line) + _EXTRA_TASKS_READ):
            if slots.place_of(task.task_id) is not None:
                continue
            since = to_timestamp(task.not_before)
            keep = KeepPlace(limit, task.task_id, rank_of(task.lane), since, claim_id, _KEPT_FOR_WOKEN_SECONDS, True)
            slots = await self.change(keep)
            place = slots.place_of(task.task_id)
            if place is None:
                return slots  # other claims have taken the free slots; when they end, the next task is woken
            if place.by == claim_id:
                await failpoint.reached("slots.after_promise")
                try:
                    await self._store.mark(MakeDue(task.task_id, task.dispatch_epoch))
                    await self._dispatch(task)
                    return slots
                except TaskUnreadableError as error:  # the processes of the newer release that wrote it wake it
                    logger.info("another task is woken for a slot of %s: %s", limit, error.message)
                    slots = await self.change(replace(keep, seconds=0.0))  # its place goes to the next task
        return slots
