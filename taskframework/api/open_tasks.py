"""The open tasks of a place, and the room for more of them."""

from __future__ import annotations

from collections.abc import Iterator

from taskframework.api.places import KnownRound, KnownTask


class OpenTasks:
    """The task that is followed, and the open sub-tasks below it: the reader has only a part of their events so far.

    There is room for a limited number of open tasks. If parents filled the room and none had an open sub-task, no task
    would ever be closed. So beyond that number the first task in the plan without an open sub-task may open one.
    """

    def __init__(self, top: KnownTask, max_open_tasks: int) -> None:
        """Begin with the place of the reader.

        Args:
            top: the task that is followed.
            max_open_tasks: how many sub-tasks there is room for.
        """
        self._top = top
        self._max_open_tasks = max_open_tasks
        self._by_id = {known.task_id: known for known in top.walk()}
        #: Rounds that wait for room, each with the slot of the sub-task that comes next.
        self._waiting_rounds: dict[KnownRound, int] = {}

    def __iter__(self) -> Iterator[KnownTask]:
        return iter(self._by_id.values())

    def __getitem__(self, task_id: str) -> KnownTask:
        return self._by_id[task_id]

    def get(self, task_id: str) -> KnownTask | None:
        return self._by_id.get(task_id)

    def open_subtask(self, round: KnownRound, slot: int) -> KnownTask:
        """Open the sub-task in a slot, and the sub-tasks in the slots before it that were not opened yet."""
        first = round.shown_until
        subtask = round.open_subtask(slot)
        self._by_id |= {
            round.open_subtasks[new_slot].task_id: round.open_subtasks[new_slot] for new_slot in range(first, slot + 1)
        }
        return subtask

    def reopen_subtask(self, round: KnownRound, slot: int, sequence: int) -> KnownTask:
        """Open a closed sub-task again; the reader has its events up to a sequence."""
        known = round.reopen_subtask(slot, sequence)
        self._by_id[known.task_id] = known
        return known

    def close(self, known: KnownTask) -> list[KnownTask]:
        """Close a sub-task whose events the reader has to the end.

        Returns:
            The tasks whose next sub-tasks now have room.
        """
        known.close()
        del self._by_id[known.task_id]
        return [
            round.parent
            for round, slot in self._waiting_rounds.items()
            if (self.has_ample_room or round.parent is self._first_leaf()) and self.has_room_for(round, slot)
        ]

    def mark_waiting(self, round: KnownRound, slot: int) -> None:
        """Note that a round waits for room, and the slot of its next sub-task."""
        self._waiting_rounds[round] = slot

    def clear_waiting(self, round: KnownRound) -> None:
        self._waiting_rounds.pop(round, None)

    def is_waiting(self, round: KnownRound) -> bool:
        return round in self._waiting_rounds

    @property
    def has_ample_room(self) -> bool:
        """Whether a quarter of the room is free. Rounds wait for that, so that not every close causes a read."""
        return len(self._by_id) <= self._max_open_tasks * 3 // 4

    def has_room_for(self, round: KnownRound, slot: int) -> bool:
        """Return whether there is room for the sub-task in a slot, and for those before it that were not opened yet."""
        new_count = slot - round.shown_until + 1
        if len(self._by_id) + new_count <= self._max_open_tasks + 1:
            return True
        return new_count == 1 and not round.parent.has_open_subtasks and round.parent is self._first_leaf()

    def _first_leaf(self) -> KnownTask:
        """The first task in the plan that has no open sub-task."""
        known = self._top
        while (round := next((round for round in known.rounds if round.open_subtasks), None)) is not None:
            known = round.open_subtasks[min(round.open_subtasks)]
        return known
