"""Random walks through the life of the slots of one limit, by the very rules of the model; whoever acts may be late."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from taskframework.clock import from_timestamp
from taskframework.model.attempts import Claim, Complete, Fail, Release, TakenSlot
from taskframework.model.interventions import Reap
from taskframework.model.limits import slot_to_give_back
from taskframework.model.slots import MAX_CLOCK_DIFFERENCE_SECONDS, SLOTS, GiveSlotBack, Slots, TakeSlot
from taskframework.model.status import CLAIMABLE, TaskStatus
from taskframework.model.task import Task
from taskframework.model.transitions import Fence, Transition
from taskframework.testing.conformance.store_suite import make_error
from taskframework.testing.factories import new_task

NUMBER, TASKS, WITHIN, LEASE = 2, 5, 15.0, timedelta(seconds=10)
LIMIT = SLOTS.id_of("resize")
_START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Without:
    """A rule of the protocol that is left out."""

    until: bool = False
    grace: bool = False
    look: bool = False
    named_time: bool = False
    surely: bool = False
    end_first: bool = False
    reconcile: bool = False


@dataclass
class World:
    """Tasks, slots, and what is under way: claims whose sender hears nothing, and slots that are to be given back."""

    chance: random.Random
    without: Without
    now: float = _START.timestamp()
    slots: Slots = field(default_factory=Slots)
    tasks: dict[str, Task] = field(default_factory=dict)
    #: Claims that are about to be made, those under way, and those whose tasks run.
    taken: list[Claim] = field(default_factory=list)
    late: list[Claim] = field(default_factory=list)
    running: list[Claim] = field(default_factory=list)
    backs: list[GiveSlotBack] = field(default_factory=list)
    claims: int = 0

    def come(self) -> None:
        """A worker takes a slot for a task that can be claimed, or finds none."""
        task = self.chance.choice([task for task in self.tasks.values() if task.status in CLAIMABLE] or [None])
        if task is not None:
            self.claims += 1
            claim = Claim(task.task_id, task.dispatch_epoch, f"claim {self.claims}", "w", LEASE)
            self._take(claim)

    def take_anew(self) -> None:
        if self.taken:
            self._take(self.taken.pop(self.chance.randrange(len(self.taken))))

    def claim(self) -> None:
        """The server that decides may have another time than the one that gave the slot."""
        if self.taken:
            claim = self.taken.pop(self.chance.randrange(len(self.taken)))
            if self._made(claim):
                self.running.append(claim)
            else:
                self._give_back(claim)

    def send_and_not_hear(self) -> None:
        if self.taken:
            claim = self.taken.pop()
            self.late.append(claim)
            if self.without.surely:
                self._give_back(claim)

    def arrive(self) -> None:
        if self.late:
            self._made(self.late.pop(self.chance.randrange(len(self.late))))

    def end(self) -> None:
        if self.running:
            claim = self.running.pop(self.chance.randrange(len(self.running)))
            fence = Fence(claim.task_id, self.tasks[claim.task_id].fencing_token, claim.claim_id)
            fail = Fail(fence, "w", make_error(), True, timedelta(0))
            if self.without.end_first:
                self._change(GiveSlotBack(LIMIT, claim.claim_id))
                self.check()
            ends: list[Transition] = [Complete(fence, "w", None), fail, Release(fence, "w")]
            self._apply(self.chance.choice(ends))

    def reap(self) -> None:
        for task in list(self.tasks.values()):
            if task.status is TaskStatus.RUNNING:
                self._apply(Reap(task.task_id, task.fencing_token, timedelta(0), 1_000, timedelta(0)))

    def give_back(self) -> None:
        """What somebody was to give back, unless it dies before."""
        if self.backs:
            back = self.backs.pop(self.chance.randrange(len(self.backs)))
            if self.chance.random() < 0.8:
                self._change(back)

    def look(self) -> None:
        """The reconciler finds who is late; it takes the slots away some time after it looked."""
        grace = 0.0 if self.without.grace else MAX_CLOCK_DIFFERENCE_SECONDS
        for holder in () if self.without.reconcile else self.slots.holders:
            task = self.tasks[holder.task_id]
            runs = task.lease is not None and task.lease.claim_id == holder.claim_id
            if holder.until + grace <= self.now and (self.without.look or not runs):
                until = None if self.without.named_time else holder.until
                self.backs.append(GiveSlotBack(LIMIT, holder.claim_id, until))

    def check(self) -> None:
        """Who runs holds a slot, so that never more run than there are."""
        running = [task for task in self.tasks.values() if task.status is TaskStatus.RUNNING]
        assert len(running) <= NUMBER
        for task in running:
            assert task.lease is not None
            assert self.slots.held_by(task.lease.claim_id) is not None

    def _take(self, claim: Claim) -> None:
        take = TakeSlot(LIMIT, NUMBER, claim.task_id, claim.claim_id, "w", 1, 1.0, WITHIN)
        held = self._change(take).held_by(claim.claim_id)
        if held is not None:
            until = datetime.max.replace(tzinfo=UTC) if self.without.until else from_timestamp(held.until)
            self.taken.append(replace(claim, slot=TakenSlot(LIMIT, until)))

    def _give_back(self, claim: Claim) -> None:
        held = self.slots.held_by(claim.claim_id)
        if held is not None:
            self.backs.append(GiveSlotBack(LIMIT, claim.claim_id, held.until))

    def _made(self, claim: Claim) -> bool:
        return self._apply(claim, behind=self.chance.uniform(0, MAX_CLOCK_DIFFERENCE_SECONDS - 0.1))

    def _apply(self, transition: Transition, behind: float = 0.0) -> bool:
        before = self.tasks[transition.task_id]
        # Only the time of the slot is judged by the clock that is behind: tasks can be claimed at any time here.
        after = transition.apply(
            before.evolve(not_before=_START - timedelta(days=1)), from_timestamp(self.now - behind)
        )
        if after is None:
            return False
        self.tasks[after.task_id] = after
        if (held := slot_to_give_back(after)) is not None and slot_to_give_back(before) is None:
            self.backs.append(GiveSlotBack(held.limit, held.claim_id))
        return True

    def _change(self, change: TakeSlot | GiveSlotBack) -> Slots:
        self.slots = change.apply(replace(self.slots, asked_at=self.now), self.now)
        return self.slots


def walk(seed: int, without: Without) -> None:
    """Two hundred steps, and then time enough for every repair.

    Raises:
        AssertionError: if more run than there are slots, or a slot is lost.
    """
    world = World(random.Random(seed), without)
    for number in range(TASKS):
        task = new_task(now=_START, task_id=f"task {number}", max_attempts=1_000)
        world.tasks[task.task_id] = task
    steps = [world.come, world.take_anew, world.claim, world.claim, world.send_and_not_hear, world.arrive]
    steps += [world.end, world.end, world.reap, world.give_back, world.give_back, world.look]
    for _ in range(200):
        world.now += world.chance.choice([0.0, 0.0, 0.1, 1.0, 7.0, 26.0])
        world.chance.choice(steps)()
        world.check()
    world.taken, world.late, world.running = [], [], []
    for _ in range(20):
        world.now += WITHIN
        for repair in (world.reap, world.look, world.give_back, world.give_back, world.give_back):
            repair()
            world.check()
    assert world.slots.holders == (), "a slot is lost"
