"""How far this process has come with each task, as sequences of the task's history."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

#: Most tasks that are remembered: the tasks of some minutes under load. The store has the same facts within seconds.
MAX_REMEMBERED_TASKS = 50_000


class Sequences:
    """For each task the highest sequence up to which its events were handled. The oldest tasks are forgotten."""

    def __init__(self, most: int = MAX_REMEMBERED_TASKS) -> None:
        self._max_tasks = most
        self._by_task: OrderedDict[str, int] = OrderedDict()

    def of(self, task_id: str) -> int:
        """The sequence up to which a task's events were handled; 0: none, or the task is forgotten."""
        return self._by_task.get(task_id, 0)

    def raise_to(self, task_id: str, sequence: int) -> int:
        """Note that events up to this sequence were handled. A lower sequence, from an older state, changes nothing.

        Returns:
            The highest sequence up to which events were handled.
        """
        known = self._by_task
        highest = known[task_id] = max(sequence, known.pop(task_id, 0))
        if len(known) > self._max_tasks:
            known.popitem(last=False)
        return highest

    def raise_all(self, sequences: Mapping[str, int]) -> None:
        """`raise_to` for each task."""
        for task_id, sequence in sequences.items():
            self.raise_to(task_id, sequence)
