"""The executable reference of the protocol: the pure rules over a dict of tasks. A store of a few calls, no server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Protocol

from taskframework.model.marks import Mark
from taskframework.model.status import CLAIMABLE, LIVE, TaskStatus
from taskframework.model.task import Task
from taskframework.model.transitions import Fence, Group, Transition
from taskframework.stores.base import DueTask, ExpiredLease, Inserted, Renewal
from tests.models.invariants import Watch, is_driven

#: A rule that stands in for the model's own: what becomes of the task, or None where it refuses.
Rule = Callable[[Any, Task, datetime], Task | None]

_NOW = datetime(2026, 1, 1, tzinfo=UTC)


class Store(Protocol):
    """What the actors need of a store: a part of the store port, and two requests at the same moment."""

    def now(self) -> datetime: ...
    async def insert(self, task: Task) -> Inserted: ...
    async def apply(self, transition: Transition) -> Task | None: ...
    async def race(self, first: Transition, second: Transition) -> tuple[Task | None, Task | None]: ...
    async def mark(self, mark: Mark) -> None: ...
    async def renew(self, worker_id: str, fences: Sequence[Fence], lease: timedelta) -> dict[str, Renewal]: ...
    async def get(self, task_id: str) -> Task | None: ...
    async def due_for_dispatch(self, limit: int) -> Sequence[DueTask]: ...
    async def expired_leases(self, grace: timedelta, limit: int) -> Sequence[ExpiredLease]: ...
    async def past_deadline(self, limit: int) -> Sequence[str]: ...
    async def unpublished(self, limit: int) -> Sequence[Task]: ...
    async def count_undriven(self) -> int: ...


@dataclass(frozen=True, slots=True)
class TimePasses:
    """Time goes on for one task: everything it waits for comes nearer.

    A transition like any other, so that many lives share a store whose clock nobody can turn.
    """

    group: ClassVar[Group] = "single"
    task_id: str
    by: timedelta

    def apply(self, task: Task, now: datetime) -> Task | None:
        lease = task.lease
        return task.evolve(
            not_before=task.not_before - self.by,
            next_dispatch_at=self._sooner(task.next_dispatch_at),
            deadline=self._sooner(task.deadline),
            publish_at=self._sooner(task.publish_at),
            lease=None if lease is None else replace(lease, expires_at=lease.expires_at - self.by),
        )

    def won(self, task: Task) -> bool:
        return False

    def _sooner(self, moment: datetime | None) -> datetime | None:
        return None if moment is None else moment - self.by


@dataclass(frozen=True, slots=True)
class Renew:
    """The rule behind `renew`: even a late renewal is safe as long as nobody has reaped."""

    fence: Fence
    worker_id: str
    lease: timedelta

    @property
    def task_id(self) -> str:
        return self.fence.task_id

    def apply(self, task: Task, now: datetime) -> Task | None:
        if task.lease is None or not self.fence.holds(task) or task.lease.worker_id != self.worker_id:
            return None
        return task.evolve(lease=replace(task.lease, expires_at=now + self.lease))


class Reference:
    """The tasks of one walk, and what the rules make of them; `watch` sees every write."""

    def __init__(
        self, watch: Watch, rules: Mapping[type, Rule] | None = None, now: Callable[[], datetime] = lambda: _NOW
    ) -> None:
        """Begin without tasks.

        Args:
            watch: holds each write to the invariants.
            rules: rules that stand in for the model's own, by the type of request; a mutant.
            now: the clock. It may stand still, since time passes for each task by itself.
        """
        self.tasks: dict[str, Task] = {}
        self.now = now
        self._watch = watch
        self._rules = rules or {}

    def put(self, task: Task) -> Inserted:
        there = self.tasks.setdefault(task.task_id, task)
        if there is task:
            self._watch.inserted(task)
        return Inserted(there, there is task)

    def write(self, request: Mark) -> Task | None:
        """Make a transition, mark or renewal: the task after it, or None where the rule refused."""
        before, now = self.tasks[request.task_id], self.now()
        rule = self._rules.get(type(request))
        after = request.apply(before, now) if rule is None else rule(request, before, now)
        if after is not None:
            self.tasks[request.task_id] = after
        self._watch.asked(request, before, after, now)
        return after

    async def insert(self, task: Task) -> Inserted:
        return self.put(task)

    async def apply(self, transition: Transition) -> Task | None:
        return self.write(transition)

    async def race(self, first: Transition, second: Transition) -> tuple[Task | None, Task | None]:
        return self.write(first), self.write(second)

    async def mark(self, mark: Mark) -> None:
        self.write(mark)

    async def renew(self, worker_id: str, fences: Sequence[Fence], lease: timedelta) -> dict[str, Renewal]:
        held = [self.write(Renew(fence, worker_id, lease)) for fence in fences]
        return {task.task_id: Renewal(task.cancel) for task in held if task is not None}

    async def get(self, task_id: str) -> Task | None:
        return self.tasks.get(task_id)

    async def due_for_dispatch(self, limit: int) -> Sequence[DueTask]:
        now = self.now()
        return [
            DueTask(task.task_id, task.task_type, task.lane, task.dispatch_epoch, task.dispatches, due, task.not_before)
            for task in self.tasks.values()
            if task.status in CLAIMABLE and has_passed(due := task.next_dispatch_at, now) and due is not None
            if has_passed(task.not_before, now)
        ]

    async def expired_leases(self, grace: timedelta, limit: int) -> Sequence[ExpiredLease]:
        before = self.now() - grace
        return [
            ExpiredLease(task.task_id, task.fencing_token, task.crashes)
            for task in self.tasks.values()
            if task.status is TaskStatus.RUNNING and task.lease and has_passed(task.lease.expires_at, before)
        ]

    async def past_deadline(self, limit: int) -> Sequence[str]:
        now = self.now()
        return [
            task.task_id
            for task in self.tasks.values()
            if task.status in LIVE and task.cancel is None and has_passed(task.deadline, now)
        ]

    async def unpublished(self, limit: int) -> Sequence[Task]:
        now = self.now()
        return [task for task in self.tasks.values() if has_passed(task.publish_at, now)]

    async def count_undriven(self) -> int:
        return sum(not is_driven(task) for task in self.tasks.values())


def has_passed(moment: datetime | None, now: datetime) -> bool:
    return moment is not None and moment <= now
