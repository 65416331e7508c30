"""How far this process got with each task, as sequences of its history."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

#: Most tasks that are remembered: those of some minutes under load. What they did is written down within seconds.
REMEMBERED = 50_000


class Sequences:
    """The highest sequence of each task up to which something was done. The tasks of long ago are forgotten."""

    def __init__(self, most: int = REMEMBERED) -> None:
        self._most = most
        self._by_task: OrderedDict[str, int] = OrderedDict()

    def of(self, task_id: str) -> int:
        """Up to which sequence it was done; 0: not at all, or nobody knows any more."""
        return self._by_task.get(task_id, 0)

    def raise_to(self, task_id: str, sequence: int) -> int:
        """Note that it was done up to this sequence. It never falls: an older state may come after a newer one.

        Returns:
            The highest sequence up to which it was done.
        """
        known = self._by_task
        highest = known[task_id] = max(sequence, known.pop(task_id, 0))
        if len(known) > self._most:
            known.popitem(last=False)
        return highest

    def raise_all(self, sequences: Mapping[str, int]) -> None:
        """`raise_to` for each task."""
        for task_id, sequence in sequences.items():
            self.raise_to(task_id, sequence)
