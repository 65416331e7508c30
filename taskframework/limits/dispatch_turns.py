"""Turns at dispatch: a task that must wait long for a limit of its key gets a turn, and until then no message.

With a message, it would stand in the queue before the tasks of all other keys, and a worker would have to take the
message only to find out that the task may not begin. The workers decide about every permit and every slot; this only
saves messages. `rate_turns` and `slot_turns` have the rules of the two kinds of limits.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain
from typing import Protocol

from taskframework.background import Background
from taskframework.errors import TaskframeworkError
from taskframework.model.limits import waiting_limit
from taskframework.model.marks import MakeDue
from taskframework.model.task import Task
from taskframework.stores.base import TaskStore
from taskframework.tasks.registry import Registration, TaskRegistry

logger = logging.getLogger(__name__)

#: The most tasks that get their turns together: one write for each record of a limit, and one for the tasks.
_GROUP_SIZE = 500
#: The most tasks that wait for their turns; all others are left to the sweeper, so that memory stays bounded.
_MAX_WAITING = 20_000
#: Seconds in which a limit must answer. After that the tasks get messages, and the workers ask the limit.
_ANSWER_TIMEOUT_SECONDS = 5.0


class TurnRule(Protocol):
    """Says which tasks of a limit with a key wait without a message."""

    def record_to_ask(self, registration: Registration, task: Task) -> str | None:
        """Return the id of the record of the task's key.

        Returns:
            None if the record need not be asked: the type has no such limit, or few tasks of this key were published.
        """
        ...

    async def waits_of(self, record_id: str, registration: Registration, count: int) -> Sequence[timedelta | None]:
        """Return for each of `count` tasks of one key how long it waits; None for one that is to be published now.

        Raises:
            TaskframeworkError: if the limit cannot be asked. Then all are published.
        """
        ...

    async def after_write(self, record_id: str, published: int) -> None:
        """Called when the turns of a key's tasks are written, and the other tasks of the key are published."""
        ...


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A task for which a limit is asked."""

    task: Task
    record_id: str
    registration: Registration
    rule: TurnRule


class DispatchTurns:
    """Takes over tasks before they are published, if too many tasks of their key have been published."""

    def __init__(self, rules: Sequence[TurnRule], registry: TaskRegistry, store: TaskStore) -> None:
        """Prepare.

        Args:
            rules: the rules; the first one that wants to ask its record decides about a task.
            registry: says which task type has which limits.
            store: where the turns are written.
        """
        self._rules = rules
        self._registry = registry
        self._store = store
        self._waiting: deque[_Waiting] = deque()
        self._work = Background()
        #: Publishes a task that may begin soon. Set by the producer.
        self.publish: Callable[[Task], None] = lambda task: None

    def take_over(self, task: Task) -> bool:
        """Take over a task that is to be published now, if a limit must be asked first.

        The task then gets a turn, is published, or is left to the sweeper.

        Returns:
            False if the caller is to publish the task.
        """
        registration = self._registry.get(task.task_type)
        # First the cheapest question, because it decides about nearly all tasks: no rule asks for other types. A task
        # that has waited for a limit already is published now because its turn has come.
        if registration is None or not registration.has_limit_by_key or waiting_limit(task) is not None:
            return False
        for rule in self._rules:
            if (record_id := rule.record_to_ask(registration, task)) is not None:
                self._add(task, record_id, registration, rule)
                return True
        return False

    async def finished(self) -> None:
        """Wait until every task until now has a turn, is published, or is left to the sweeper."""
        await self._work.finished()

    def _add(self, task: Task, record_id: str, registration: Registration, rule: TurnRule) -> None:
        if len(self._waiting) < _MAX_WAITING:
            # Without the parameters, which may be large: thousands may wait.
            self._waiting.append(_Waiting(task.evolve(parameters=None), record_id, registration, rule))
            if not self._work.tasks:
                # In a separate context: the work runs on after the caller of its first task, whose spans end.
                self._work.start(self._run(), Context())

    async def _run(self) -> None:
        while self._waiting:
            groups: dict[str, list[_Waiting]] = defaultdict(list)
            for _ in range(min(len(self._waiting), _GROUP_SIZE)):
                next_one = self._waiting.popleft()
                groups[next_one.record_id].append(next_one)
            try:
                await self._give_turns(groups)
            except Exception:
                logger.exception("tasks under limits are left to the sweeper: %s", ", ".join(groups))
        self._work.leave()

    async def _give_turns(self, groups: Mapping[str, Sequence[_Waiting]]) -> None:
        waits = await asyncio.gather(*map(self._waits_of, groups.values()))
        turns, published = [], []
        for waiting, wait in zip(chain(*groups.values()), chain(*waits), strict=True):
            if wait is None:
                published.append(waiting)
            else:
                turns.append(_turn(waiting, wait))
        if turns:
            await self._write(turns)
        left = Counter(waiting.record_id for waiting in published)
        for waiting in published:  # after the write: a task that ends soon finds the tasks that wait for its slot
            self.publish(waiting.task)
        waited_for = [group[0] for group in groups.values() if left[group[0].record_id] < len(group)]
        await asyncio.gather(*(it.rule.after_write(it.record_id, left[it.record_id]) for it in waited_for))

    async def _waits_of(self, group: Sequence[_Waiting]) -> Sequence[timedelta | None]:
        """Return how long the tasks of one key wait; None for those that are to be published."""
        first = group[0]
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT_SECONDS):
                return await first.rule.waits_of(first.record_id, first.registration, len(group))
        except (TaskframeworkError, TimeoutError) as error:
            logger.debug("tasks under %s are sent without a turn: %s", first.record_id, error)
            return [None] * len(group)

    async def _write(self, turns: Sequence[MakeDue]) -> None:
        try:
            await self._store.mark(*turns)
        except TaskframeworkError as error:
            logger.debug("%d tasks are left to the sweeper: %s", len(turns), error)


def _turn(waiting: _Waiting, wait: timedelta) -> MakeDue:
    task = waiting.task
    return MakeDue(task.task_id, task.dispatch_epoch, wait, waiting.record_id, due=task.next_dispatch_at)
