"""The executable reference of the protocol: the pure rules over a dict of tasks. A store of a few calls, no server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Protocol

from taskframework.model.drivers import Driver
from taskframework.model.marks import Mark, RenewLease
from taskframework.model.query import RoundOfSubtasks
from taskframework.model.status import TaskStatus
from taskframework.model.task import Task
from taskframework.model.task_fields import CancelRequest
from taskframework.model.transitions import Fence, Group, Transition
from taskframework.stores.replies import DueTask, Inserted
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
    async def renew(self, fences: Sequence[Fence], lease: timedelta) -> dict[Fence, CancelRequest | None]: ...
    async def get(self, task_id: str) -> Task | None: ...
    async def count_subtasks(self, round: RoundOfSubtasks) -> Mapping[TaskStatus, int]: ...
    async def due(self, driver: Driver, limit: int, grace: timedelta = timedelta(0)) -> Sequence[DueTask]: ...
    async def undriven(self, limit: int) -> Sequence[str]: ...


#: The times of a task that may be null.
SOONER = (
    *("next_dispatch_at", "deadline", "start_by", "publish_at", "spawn_at", "check_at", "cascade_at", "seal_by"),
    *("retry_at", "unblock_at"),
)


@dataclass(frozen=True, slots=True)
class TimePasses:
    """Time goes on for one task: everything it waits for comes nearer.

    A transition like any other, so that many lives share a store whose clock nobody can turn.
    """

    group: ClassVar[Group] = "single"
    reply_failpoint: ClassVar[str] = "mark.reply"
    task_id: str
    by: timedelta

    def apply(self, task: Task, now: datetime) -> Task | None:
        lease, wait = task.lease, task.waits_for
        return task.evolve(
            revision=task.revision + 1,
            not_before=task.not_before - self.by,
            created_at=task.created_at - self.by,
            **{name: self._sooner(getattr(task, name)) for name in SOONER},
            lease=None if lease is None else replace(lease, expires_at=lease.expires_at - self.by),
            waits_for=None if wait is None else replace(wait, until=self._sooner(wait.until)),
        )

    def was_applied(self, task: Task) -> bool:
        return False

    def _sooner(self, moment: datetime | None) -> datetime | None:
        return None if moment is None else moment - self.by


def is_of(task: Task, round: RoundOfSubtasks) -> bool:
    """Whether a task is a sub-task of this round."""
    link = task.parent
    return link is not None and RoundOfSubtasks(link.task_id, link.generation, link.round) == round


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

    async def renew(self, fences: Sequence[Fence], lease: timedelta) -> dict[Fence, CancelRequest | None]:
        held = [(fence, self.write(RenewLease(fence, lease))) for fence in fences]
        return {fence: task.cancel for fence, task in held if task is not None}

    async def get(self, task_id: str) -> Task | None:
        return self.tasks.get(task_id)

    async def count_subtasks(self, round: RoundOfSubtasks) -> Mapping[TaskStatus, int]:
        return Counter(task.status for task in self.tasks.values() if is_of(task, round))

    async def due(self, driver: Driver, limit: int, grace: timedelta = timedelta(0)) -> Sequence[DueTask]:
        now = self.now()
        return [
            DueTask(
                task.task_id,
                task.task_type,
                task.lane,
                task.status,
                task.dispatch_epoch,
                task.dispatches,
                task.fencing_token,
                task.crashes,
                task.not_before,
                due,
            )
            for task in self.tasks.values()
            if driver.is_due(task, now, grace) and (due := driver.time_of(task)) is not None
        ]

    async def undriven(self, limit: int) -> Sequence[str]:
        return [task.task_id for task in self.tasks.values() if not is_driven(task)]
