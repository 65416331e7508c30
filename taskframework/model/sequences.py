"""How far this process has come with each task, as sequences of the task's history."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping

from taskframework.model.task import Task

#: Most tasks that are remembered: the tasks of some minutes under load. The store has the same facts within seconds.
MAX_REMEMBERED_TASKS = 50_000


def identity_of(task: Task) -> Hashable:
    """The key under which a task is remembered. After the retention has deleted a task, another task may be stored with
    the same id: a version of a key that is submitted again, or a sub-task of it. Its sequences begin at 1 again.
    """
    return task.task_id, task.created_at


class Sequences:
    """For each task, by its `identity_of`, the highest sequence up to which its events were handled. The oldest tasks
    are forgotten.
    """

    def __init__(self, most: int = MAX_REMEMBERED_TASKS) -> None:
        self._max_tasks = most
        self._by_task: OrderedDict[Hashable, int] = OrderedDict()

    def of(self, task: Hashable) -> int:
        """The sequence up to which a task's events were handled; 0: none, or the task is forgotten."""
        return self._by_task.get(task, 0)

    def raise_to(self, task: Hashable, sequence: int) -> int:
        """Note that events up to this sequence were handled. A lower sequence, from an older state, changes nothing.

        Returns:
            The highest sequence up to which events were handled.
        """
        known = self._by_task
        highest = known[task] = max(sequence, known.pop(task, 0))
        if len(known) > self._max_tasks:
            known.popitem(last=False)
        return highest

    def raise_all(self, sequences: Mapping[Hashable, int]) -> None:
        """`raise_to` for each task."""
        for task, sequence in sequences.items():
            self.raise_to(task, sequence)
