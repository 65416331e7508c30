"""Signals that came before their task waits for them: the task continues as soon as it waits."""

from __future__ import annotations

from taskframework.aggregation.parent_work import ParentWork
from taskframework.model.events import TaskEvent
from taskframework.model.signals import Wake, has_its_signal
from taskframework.model.task import Task
from taskframework.moves import TaskMoves


class EarlySignals(ParentWork):
    """Wakes tasks that have their signal already. Without this, the repair would find them at its next look."""

    description = "the signal of task"

    def __init__(self, moves: TaskMoves) -> None:
        super().__init__()
        self._moves = moves

    def on_event(self, event: TaskEvent) -> None:
        """Wake a task that has its signal, as a listener for tasks that begin to wait."""
        if has_its_signal(event.task):
            self.start(event.task)

    async def work_on(self, parent: Task) -> None:
        """Let the task continue.

        Raises:
            StoreError: if the store did not write this; the task is due for the repair.
        """
        await self._moves.repair(Wake(parent.task_id))
