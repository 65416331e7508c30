"""Concurrency limits: of a task type, or of one key, no more attempts run at once than there are slots.

The record of a limit names the claims that hold a slot. A slot is taken before the claim is made, and only until a
certain time: after that the store refuses the claim. If that time is over and the task does not run under that claim,
any process may take the slot away, because no attempt can begin with the slot any more. `tests/models/slots.pml` is a
model of this protocol.

The line in the record is short: the first task that waits in each worker, and the tasks that were woken because a slot
is free. A task further ahead gets a slot first. A place counts for some seconds only, and a task that does not ask for
a slot in this time loses its place.

Times are seconds since 1970 by the clock of the store's server, with fractions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from taskframework.clock import from_timestamp, to_timestamp
from taskframework.model.records import Record, RecordKind
from taskframework.model.status import LANES, Priority

#: Seconds by which the clocks of two servers of the store may differ. A slot is taken away only this long after the end
#: of its time, because then the time is also over by the clock of any other server that may decide on the claim.
MAX_CLOCK_DIFFERENCE_SECONDS = 10.0
#: How long the record of a limit is kept while all its slots are free and no task waits for one.
KEPT_AFTER_USE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Holder:
    """A claim that holds a slot, or is about to be made with it."""

    task_id: str
    claim_id: str
    worker_id: str
    #: When the slot was taken, and by when the claim must be made.
    since: float
    until: float


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the line for the next slot."""

    task_id: str
    #: The number of its lane, the high one first.
    rank: int
    #: Since when the task can be claimed. Within a lane, the task that has waited longest comes first.
    since: float
    #: The id of the worker, or of the request, that gave the place; and until when the place counts.
    by: str
    until: float


@dataclass(frozen=True, slots=True)
class Slots:
    """The slots of one limit as they are after a request."""

    #: How many slots there are, by the settings of the last process that asked for a slot.
    number: int = 0
    holders: tuple[Holder, ...] = ()
    line: tuple[Place, ...] = ()
    #: Until when a task may be waiting in the store for a slot.
    waiting_until: float = 0.0
    asked_at: float = 0.0

    def held_by(self, claim_id: str) -> Holder | None:
        """The slot of a claim."""
        return next((holder for holder in self.holders if holder.claim_id == claim_id), None)

    def ahead_of(self, task_id: str, rank: int, since: float) -> int:
        """How many other tasks stand in the line before a task."""
        return sum(
            place.until > self.asked_at and place.task_id != task_id and (place.rank, place.since) < (rank, since)
            for place in self.line
        )

    def is_free_for(self, number: int, task_id: str, rank: int, since: float) -> bool:
        """Return whether one of `number` slots is left for a task, after all tasks before it in the line."""
        return len(self.holders) + self.ahead_of(task_id, rank, since) < number

    @property
    def are_all_in_use(self) -> bool:
        """Whether no slot is left beside the holders."""
        return 0 < self.number <= len(self.holders)

    @property
    def free(self) -> int:
        """How many slots are left beside the holders and the tasks in the line."""
        return self.number - len(self.holders) - sum(place.until > self.asked_at for place in self.line)

    def place_of(self, task_id: str) -> Place | None:
        """The place of a task in the line; None if it has no place."""
        return next((place for place in self.line if place.task_id == task_id and place.until > self.asked_at), None)

    @property
    def has_waiting_tasks(self) -> bool:
        """Whether a task may be waiting in the store for a slot."""
        return self.waiting_until > self.asked_at

    @property
    def expires_at(self) -> datetime | None:
        """When the record can be deleted; None while a slot is held."""
        return None if self.holders else from_timestamp(max(self.asked_at, self.waiting_until)) + KEPT_AFTER_USE


#: The record of a limit: `slots/<task type>` or `slots/<task type>/<key>`.
SLOTS = RecordKind("slots", Slots)


def rank_of(lane: Priority) -> int:
    """The number of a lane; the lowest is served first."""
    return LANES.index(lane)


@dataclass(frozen=True, slots=True)
class _SlotsChange:
    """One guarded write on the slots of a limit: `apply` says what it means."""

    #: `slots/<task type>` or `slots/<task type>/<key>`, made by `SLOTS.id_of`.
    record_id: str

    def apply(self, slots: Slots, now: float) -> Slots:
        """The slots after this request, given those before with `asked_at` moved to now."""
        raise NotImplementedError

    def change(self, record: Record | None, now: datetime) -> Record:
        """`RecordChange.change`."""
        before = Slots() if record is None else SLOTS.content(record)
        slots = self.apply(replace(before, asked_at=to_timestamp(now)), to_timestamp(now))
        return SLOTS.with_id(self.record_id, record, slots, expires_at=slots.expires_at)


@dataclass(frozen=True, slots=True)
class TakeSlot(_SlotsChange):
    """Take a slot for a claim, if one is left beside the holders and the tasks that stand before this task in the line.

    A claim that already holds a slot keeps it, and the time of the slot begins again.
    """

    number: int
    task_id: str
    claim_id: str
    worker_id: str
    rank: int
    since: float
    #: Seconds in which the claim must be made.
    claimed_within: float
    #: Seconds within which a task that gets no slot asks again. For this time the task counts as waiting in the store.
    #: 0 for a task that waits in a worker.
    asks_again_within: float = 0.0

    def apply(self, slots: Slots, now: float) -> Slots:
        slots = replace(slots, number=self.number)
        held, until = slots.held_by(self.claim_id), now + self.claimed_within
        if held is not None:
            holders = tuple([replace(it, until=until) if it is held else it for it in slots.holders])
            return replace(slots, holders=holders)
        others = tuple([place for place in slots.line if place.until > now and place.task_id != self.task_id])
        if slots.is_free_for(self.number, self.task_id, self.rank, self.since):
            holder = Holder(self.task_id, self.claim_id, self.worker_id, now, until)
            return replace(slots, holders=(*slots.holders, holder), line=others)
        if not self.asks_again_within:
            return slots
        # The task goes back to the store, where the next free slot finds it. With its place in the line it would be
        # passed over there, and meanwhile its place would keep a slot from everybody else.
        return replace(slots, line=others, waiting_until=max(slots.waiting_until, now + self.asks_again_within))


@dataclass(frozen=True, slots=True)
class GiveSlotBack(_SlotsChange):
    """Free the slot of a claim that has ended, or that will surely not be made."""

    claim_id: str
    #: Free the slot only if its claim had to be made by exactly this time. A slot that was taken again has another
    #: time. None: free the slot in any case.
    until: float | None = None

    def apply(self, slots: Slots, now: float) -> Slots:
        left = [it for it in slots.holders if it.claim_id != self.claim_id or self.until not in (None, it.until)]
        return replace(slots, holders=tuple(left))


@dataclass(frozen=True, slots=True)
class KeepPlace(_SlotsChange):
    """Give a task a place in the line, or prolong its place. A place that another worker or request gave stays."""

    task_id: str
    rank: int
    since: float
    by: str
    #: How many seconds the place counts.
    seconds: float
    #: Whether the place is for a slot that is free now: without one, no place is given.
    for_free_slot: bool = False

    def apply(self, slots: Slots, now: float) -> Slots:
        present = slots.place_of(self.task_id)
        if present is not None and present.by != self.by:
            return slots
        if self.for_free_slot and present is None and slots.free <= 0:
            return slots
        place = Place(self.task_id, self.rank, self.since, self.by, now + self.seconds)
        others = [it for it in slots.line if it.until > now and it.task_id != self.task_id]
        return replace(slots, line=(*others, place))


@dataclass(frozen=True, slots=True)
class AnnounceWaiting(_SlotsChange):
    """Say that tasks may be waiting in the store for a slot. Their processes have not asked for a slot."""

    number: int
    #: For how many seconds.
    seconds: float

    def apply(self, slots: Slots, now: float) -> Slots:
        return replace(slots, number=self.number, waiting_until=max(slots.waiting_until, now + self.seconds))


#: One change of the slots of a limit.
SlotChange = TakeSlot | GiveSlotBack | KeepPlace | AnnounceWaiting


@dataclass(frozen=True, slots=True)
class SlotChanges(_SlotsChange):
    """Several changes of the slots of one limit as one write, one after the other."""

    changes: tuple[SlotChange, ...]

    def apply(self, slots: Slots, now: float) -> Slots:
        for change in self.changes:
            slots = change.apply(slots, now)
        return slots
