"""The open tasks of a place, and the room for more of them."""

from __future__ import annotations

from collections.abc import Iterator

from taskframework.api.places import KnownRound, KnownTask


class OpenTasks:
    """The task that is followed, and the open sub-tasks below it: the reader has only a part of their events so far.

    There is room for a limited number of them. If parents filled the room and none had an open sub-task, nothing would
    ever end. So beyond that number the first task in the plan without an open sub-task may open one.
    """

    def __init__(self, top: KnownTask, most: int) -> None:
        """Begin with the place of the reader.

        Args:
            top: the task that is followed.
            most: how many sub-tasks there is room for.
        """
        self._top = top
        self._most = most
        self._by_id = {known.task_id: known for known in top.all()}
        #: Rounds that wait for room, each with the slot of the sub-task that comes next.
        self._held: dict[KnownRound, int] = {}

    def __iter__(self) -> Iterator[KnownTask]:
        return iter(self._by_id.values())

    def __getitem__(self, task_id: str) -> KnownTask:
        return self._by_id[task_id]

    def get(self, task_id: str) -> KnownTask | None:
        return self._by_id.get(task_id)

    def begin(self, round: KnownRound, slot: int) -> KnownTask:
        """Open the sub-task in a slot, and the sub-tasks in the slots before it that were not opened yet."""
        first = round.told
        begun = round.begin(slot)
        self._by_id |= {round.open[one].task_id: round.open[one] for one in range(first, slot + 1)}
        return begun

    def reopen(self, round: KnownRound, slot: int, sequence: int) -> KnownTask:
        """Open a closed sub-task again; the reader has its events up to a sequence."""
        known = round.reopen(slot, sequence)
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
            for round, slot in self._held.items()
            if (self.is_roomy or round.parent is self._first()) and self.fits(round, slot)
        ]

    def hold(self, round: KnownRound, slot: int) -> None:
        """Note that a round waits for room, and the slot of its next sub-task."""
        self._held[round] = slot

    def let_in(self, round: KnownRound) -> None:
        self._held.pop(round, None)

    def holds(self, round: KnownRound) -> bool:
        return round in self._held

    @property
    def is_roomy(self) -> bool:
        """Whether a quarter of the room is free. It is waited for, so that the store is not asked after each close."""
        return len(self._by_id) <= self._most * 3 // 4

    def fits(self, round: KnownRound, slot: int) -> bool:
        """Return whether there is room for the sub-task in a slot, and for those before it that were not opened yet."""
        more = slot - round.told + 1
        if len(self._by_id) + more <= self._most + 1:
            return True
        return more == 1 and not round.parent.has_open and round.parent is self._first()

    def _first(self) -> KnownTask:
        """The first task in the plan that has no open sub-task."""
        known = self._top
        while (begun := next((round for round in known.rounds if round.open), None)) is not None:
            known = begun.open[min(begun.open)]
        return known
