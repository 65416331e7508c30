"""Where a walk takes place: the store, the broker's bag of messages, who holds what, and chance."""

from __future__ import annotations

import random
from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

from taskframework.model.marks import MarkDispatched
from taskframework.model.status import CLAIMABLE, FINAL
from taskframework.model.streams import PassTurn, Stream, Turn
from taskframework.model.task import Task
from taskframework.model.task_fields import HistoryEntry
from taskframework.model.transitions import Fence
from taskframework.model.waiting import CountSubtasks
from taskframework.stores.replies import DueTask
from tests.models.invariants import Watch
from tests.models.reference import Store, TimePasses

Value = TypeVar("Value")

# Time passes by whole hours, and no sum of what tasks wait for is one: whatever is due in a walk is due by ten minutes,
# however long the walk takes.
HOUR = timedelta(hours=1)
LEASE = timedelta(minutes=80)
GRACE = timedelta(minutes=10)
DELAY = timedelta(minutes=70)
REDISPATCH = timedelta(minutes=20)
REDISPATCH_MAX = timedelta(minutes=80)

MAX_CRASHES = 2
MAX_POSTPONED = 1
ALL = 10_000


class Chance:
    """What decides. Seeded anew for each step, so that a schedule without one of its steps is the same otherwise."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.next = self._random.random
        self.seed = self._random.seed

    def yes(self, probability: float) -> bool:
        return self.next() < probability

    def pick(self, values: Sequence[Value]) -> Value:
        return values[int(self.next() * len(values))]

    def take(self, values: MutableSequence[Value]) -> Value:
        """Pick one and remove it; the order of the others may change."""
        at = int(self.next() * len(values))
        values[at], values[-1] = values[-1], values[at]
        return values.pop()


@dataclass(frozen=True, slots=True)
class Message:
    """The doorbell, and the type it rings for."""

    task_id: str
    task_type: str
    dispatch_epoch: int


@dataclass(slots=True)
class Attempt:
    """A worker that believes that it runs a task. Its message is still to be acknowledged, unless it is None."""

    fence: Fence
    worker_id: str
    message: Message | None
    #: Whether it may plan sub-tasks: a walk has to end.
    may_plan: bool = False


def may_plan(task: Task) -> bool:
    """Whether the next attempt of a task may plan sub-tasks: two levels of them, and two rounds."""
    if task.batch is not None:
        return False
    return (task.parent is None or task.parent.depth < 2) and (task.subtasks is None or task.subtasks.round < 2)


@dataclass(slots=True)
class Publication:
    """A relay with the events of a task in hand, published one after the other."""

    task_id: str
    entries: list[HistoryEntry]
    sequence: int


@dataclass(slots=True)
class Spawning:
    """A process that stores the sub-tasks of a parent, one after the other."""

    parent: Task
    tasks: list[Task]


@dataclass(slots=True)
class Report:
    """A reporter that knows of ends of sub-tasks, by id with the sequence of the end."""

    parent_id: str
    ended: dict[str, int]
    #: The parent and the counts that were made after it was read, not written yet.
    counted: CountSubtasks | None = None
    is_written: bool = False


@dataclass(slots=True)
class Uploading:
    """An upload of so many items into a batch."""

    batch_id: str
    items: int
    #: How many are stored, and whether the next one is announced.
    sent: int = 0
    is_announced: bool = False


@dataclass(frozen=True, slots=True)
class Without:
    """What a mutant leaves out of the actors; by default nothing."""

    sweeper: bool = False
    reaper: bool = False
    #: The relay writes its mark before the broker has confirmed.
    confirms: bool = False
    #: The relay publishes the newest event alone.
    backlog: bool = False
    #: The reporter clears the markers before it counts.
    count_first: bool = False
    #: The reporter clears whatever is marked by then.
    knowledge: bool = False
    spawner: bool = False
    cascade: bool = False
    #: An upload announces its items when it seals, not before it stores them.
    announcements: bool = False
    abandon: bool = False
    retrier: bool = False
    #: Nobody passes on the turn of a stream.
    turns: bool = False
    #: A turn is passed on whoever has it by then.
    turn_guard: bool = False


@dataclass
class World:
    """Everything of one walk."""

    seed: int
    store: Store
    watch: Watch
    without: Without = Without()
    task_ids: list[str] = field(default_factory=list)
    #: The broker: a bag, since messages overtake each other.
    messages: list[Message] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    #: What the repairs have read and not acted upon yet.
    due: list[DueTask] = field(default_factory=list)
    expired: list[DueTask] = field(default_factory=list)
    overdue: list[str] = field(default_factory=list)
    unsealed: list[str] = field(default_factory=list)
    unstarted: list[str] = field(default_factory=list)
    #: Two relays, each with what it has in hand.
    relays: list[Publication | None] = field(default_factory=lambda: [None, None])
    #: The subscriber's queue on the events exchange.
    events: list[tuple[str, int]] = field(default_factory=list)
    claims: int = 0
    spawning: list[Spawning] = field(default_factory=list)
    #: Two reporters.
    reports: list[Report | None] = field(default_factory=lambda: [None, None])
    #: Sub-tasks whose end is known to be counted, each with the sequence of that end.
    reported: dict[str, int] = field(default_factory=dict)
    #: Parents that were reopened: these alone are counted although nobody reported anything.
    reopened: set[str] = field(default_factory=set)
    #: The batch, if this walk has one, and two uploads of it.
    batch_id: str | None = None
    uploads: list[Uploading | None] = field(default_factory=lambda: [None, None])
    #: The record of the serial stream, and what was concluded from it and is not done yet.
    stream: Stream = field(default_factory=Stream)
    passing: list[PassTurn] = field(default_factory=list)
    unblocking: list[Turn] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = Chance(self.seed)
        self.name = f"walk-{self.seed}"
        #: How many tasks live at a time.
        self.has_batch = self.seed % 3 == 0
        self.has_stream = self.seed % 6 == 1
        self.group = 3 if self.has_stream else 1 + self.seed % 2

    async def task(self, task_id: str) -> Task:
        task = await self.store.get(task_id)
        assert task is not None
        return task

    async def any_task(self) -> Task:
        """Some task, rather one that lives."""
        task = await self.task(self.chance.pick(self.task_ids))
        if task.status in FINAL and self.chance.yes(0.7):
            return await self.task(self.chance.pick(self.task_ids))
        return task

    async def living(self) -> int:
        return sum([(await self.task(task_id)).status not in FINAL for task_id in self.task_ids])

    def new_claim_id(self) -> str:
        self.claims += 1
        return f"{self.name}-claim-{self.claims}"

    def send(self, task_id: str, task_type: str, dispatch_epoch: int) -> None:
        self.messages.append(Message(task_id, task_type, dispatch_epoch))

    def redeliver(self, attempt: Attempt) -> None:
        """What was not acknowledged comes again."""
        if attempt.message is not None:
            self.messages.append(attempt.message)
            attempt.message = None

    async def ring(self, task: Task | None) -> None:
        """The producer hears of a task, if it lives: publishes at once, early if the broker holds delays, and marks."""
        if task is None or task.status not in CLAIMABLE or not self.chance.yes(0.7):
            return
        self.send(task.task_id, task.task_type, task.dispatch_epoch)
        if self.chance.yes(0.7):
            await self.store.mark(MarkDispatched(task.task_id, task.dispatch_epoch, REDISPATCH, REDISPATCH_MAX))

    async def let_time_pass(self, task_id: str, by: timedelta) -> None:
        await self.store.apply(TimePasses(task_id, by))
