"""A family of tasks in memory that lives by the rules of the model, and can be asked like a store."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

from taskframework.clock import SystemClock
from taskframework.errors import StoreUnavailableError
from taskframework.events.external import ExternalEvent, lifecycle_events, progress_event
from taskframework.model.attempts import Claim, Complete, Fail, ReportProgress
from taskframework.model.batches import Seal, is_sealed, subtasks_for
from taskframework.model.interventions import Cancel
from taskframework.model.query import RoundOfSubtasks
from taskframework.model.scope import EVERYONE, Scope
from taskframework.model.status import LIVE, TaskStatus
from taskframework.model.subtasks import Counts, next_round, subtask_id, subtask_of
from taskframework.model.task import Task
from taskframework.model.task_fields import Batch, Subtasks
from taskframework.model.transitions import Fence, Transition, framework_error
from taskframework.model.waiting import CountSubtasks, Wait
from taskframework.testing.factories import new_task

GROUP = {"task_type": "test-task", "priority": "normal", "max_attempts": 2}
POLICIES = ("all_must_succeed", "allow_failures", "first_success")
MINUTE = timedelta(minutes=1)
MOST_SUBTASKS, DEPTH, ROUNDS = 6, 2, 2


class Family:
    """The store and the life of a family."""

    top = "top"

    def __init__(self, seed: int, *, policies: Sequence[str] = POLICIES, fails_one_in: int = 0) -> None:
        """Begin a family.

        Args:
            seed: of all that happens.
            policies: those of its rounds.
            fails_one_in: how often the store fails, one call of so many; 0 never.
        """
        self.random = random.Random(seed)
        self.policies = policies
        self.fails_one_in = fails_one_in
        self.now = SystemClock().now()
        self.tasks = {self.top: new_task(task_id=self.top, now=self.now)}
        #: Slots that have yet to be inserted, by parent.
        self.planned: dict[str, list[int]] = {}
        self.news: list[ExternalEvent] = []

    @property
    def is_over(self) -> bool:
        return all(task.status.is_final for task in self.tasks.values())

    def step(self) -> None:
        """Something happens to some task that is not over."""
        active = [task for task in self.tasks.values() if task.status in LIVE or task.cascade_at]
        if not active:
            return
        task = self.random.choice(active)
        if task.cascade_at is not None and (task.status is not TaskStatus.WAITING or self.random.random() < 0.5):
            self._cascade(task)
        elif task.status is TaskStatus.RUNNING:
            self._go_on(task)
        elif task.status is not TaskStatus.WAITING:
            self.claim(task.task_id)
        elif task.batch is not None and not is_sealed(task) and task.task_id not in self.planned:
            self.apply(Seal(task.task_id, task.batch.items))
        elif slots := self.planned.get(task.task_id):
            together = slots[: self.random.randint(1, 4)]  # most of them in order
            self.random.shuffle(together)
            self.spawn(task.task_id, *together[: self.random.randint(1, len(together))])
        else:
            self.count(task.task_id)

    def claim(self, task_id: str) -> None:
        self.apply(Claim(task_id, self.tasks[task_id].dispatch_epoch, f"c{self._tick()}", "w", MINUTE))

    def report(self, task_id: str) -> None:
        self.apply(ReportProgress(self._fence(task_id), str(self.now)))

    def complete(self, task_id: str) -> None:
        given = self.tasks[task_id].parameters
        result = [f"done {item}" for item in given] if isinstance(given, list) else f"done {given}"
        self.apply(Complete(self._fence(task_id), "w", result))

    def fail(self, task_id: str, *, retryable: bool = False) -> None:
        error = framework_error("no", "no", retryable=retryable)
        self.apply(Fail(self._fence(task_id), "w", error, retryable, timedelta(0)))

    def plan(self, task_id: str, subtasks: int, policy: str = "allow_failures", *, resumes: bool = False) -> list[str]:
        """The task waits for a round of so many; their ids."""
        round = Subtasks(subtasks, [], policy=policy, resumes=resumes)
        self.apply(Wait(self._fence(task_id), "w", round, None, None, None))
        task = self.tasks[task_id]
        if task.status is not TaskStatus.WAITING or task.subtasks is None:
            return []
        self.planned[task_id] = list(range(subtasks))
        return [subtask_id(task_id, task.generation, task.subtasks.round, slot) for slot in range(subtasks)]

    def upload(self, items: int, chunk_size: int, policy: str = "allow_failures") -> None:
        """The top is a batch whose upload goes on."""
        self.tasks[self.top] = self.tasks[self.top].evolve(
            status=TaskStatus.WAITING,
            next_dispatch_at=None,
            check_at=self.now,
            subtasks=Subtasks(None, None, policy=policy),
            batch=Batch(chunk_size, items),
        )
        self.planned[self.top] = list(range(subtasks_for(items, chunk_size)))

    def spawn(self, task_id: str, *slots: int) -> None:
        """Sub-tasks in these slots are stored; all that are planned if none is named."""
        for slot in slots or tuple(self.planned[task_id]):
            self.planned[task_id].remove(slot)
            parent = self.tasks[task_id]
            subtask = subtask_of(parent, slot, GROUP, _parameters(parent, slot), "hash", self._tick(), MINUTE)
            self.tasks[subtask.task_id] = subtask
            self.news += lifecycle_events(subtask, 0, "here")
        if not self.planned[task_id]:
            del self.planned[task_id]

    def count(self, task_id: str) -> None:
        """Sub-tasks are counted if some have ended since the last count."""
        task = self.tasks[task_id]
        assert task.subtasks is not None
        found = self._round(RoundOfSubtasks(task_id, task.generation, task.subtasks.round))
        counts = Counts.of(Counter(one.status for one in found))
        if counts.done != task.subtasks.done:
            self.apply(CountSubtasks.of(task, counts))

    def apply(self, *moves: Transition) -> None:
        """Make moves, and tell of them."""
        for move in moves:
            before = self.tasks[move.task_id]
            after = move.apply(before, self._tick())
            if after is not None:
                self.tasks[after.task_id] = after
                events = lifecycle_events(after, before.sequence, "here")
                if not events and after.progress_revision > before.progress_revision:
                    events = [progress_event(after, "here")]
                self.news += events

    def _tick(self) -> datetime:
        self.now += timedelta(milliseconds=1)
        return self.now

    def _fence(self, task_id: str) -> Fence:
        task = self.tasks[task_id]
        assert task.lease is not None, "it runs"
        return Fence(task_id, task.fencing_token, task.lease.claim_id)

    def _go_on(self, task: Task) -> None:
        may_plan = (
            self.tasks[self.top].batch is None
            and (task.parent.depth if task.parent else 0) < DEPTH
            and next_round(task) <= ROUNDS
        )
        match self.random.choice(["progress", "complete", "complete", "fail", *["plan"] * 3 * may_plan]):
            case "progress":
                self.report(task.task_id)
            case "complete":
                self.complete(task.task_id)
            case "fail":
                self.fail(task.task_id, retryable=self.random.random() < 0.7)
            case "plan":
                subtasks, policy = self.random.randint(1, MOST_SUBTASKS), self.random.choice(self.policies)
                self.plan(task.task_id, subtasks, policy, resumes=self.random.random() < 0.6)

    def _cascade(self, task: Task) -> None:
        if task.status is not TaskStatus.WAITING:
            self.planned.pop(task.task_id, None)  # what was not stored never will be
        assert task.subtasks is not None
        newest = task.subtasks.round - (task.status is TaskStatus.WAITING)
        left = [
            one
            for number in range(1, newest + 1)
            for one in self._round(RoundOfSubtasks(task.task_id, task.generation, number))
            if one.status in LIVE and one.cancel is None
        ]
        if left:
            self.apply(Cancel(self.random.choice(left).task_id, EVERYONE, "parent", None))
        else:
            self.tasks[task.task_id] = self.tasks[task.task_id].evolve(cascade_at=None)

    def _round(self, round: RoundOfSubtasks) -> list[Task]:
        key = (round.parent_id, round.generation, round.round)
        found = {
            task.parent.slot: task
            for task in self.tasks.values()
            if task.parent and (task.parent.task_id, task.parent.generation, task.parent.round) == key
        }
        return [found[slot] for slot in sorted(found)]

    # The store

    def _answer(self) -> None:
        if self.fails_one_in and self.random.randrange(self.fails_one_in) == 0:
            raise StoreUnavailableError("away")

    async def get(self, task_id: str, scope: Scope) -> Task | None:
        self._answer()
        return self.tasks.get(task_id)

    async def finished_at(self, task_ids: Collection[str]) -> dict[str, datetime | None]:
        self._answer()
        return {task_id: self.tasks[task_id].finished_at for task_id in task_ids if task_id in self.tasks}

    async def list_subtasks(
        self,
        round: RoundOfSubtasks,
        *,
        limit: int,
        after_slot: int = -1,
        statuses: Collection[TaskStatus] | None = None,
    ) -> Sequence[Task]:
        self._answer()
        return [
            task
            for task in self._round(round)
            if task.parent and task.parent.slot > after_slot and (statuses is None or task.status in statuses)
        ][:limit]


def _parameters(parent: Task, slot: int) -> Any:
    """One item, or those of a chunk; the item is its index."""
    if parent.batch is None or parent.batch.chunk_size == 1:
        return slot
    return list(range(parent.batch.items))[slot * parent.batch.chunk_size :][: parent.batch.chunk_size]
