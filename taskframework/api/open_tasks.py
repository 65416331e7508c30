"""The tasks of a place that are open, and the room for more of them."""

from __future__ import annotations

from collections.abc import Iterator

from taskframework.api.places import KnownRound, KnownTask


class OpenTasks:
    """The task that is followed, and those below it of which the reader was told something and may hear more.

    There is room for a number of them. If parents filled it and none had an open sub-task, nothing would ever end. So
    beyond that number the first task in the plan that has no open sub-task may open one.
    """

    def __init__(self, top: KnownTask, most: int) -> None:
        """Begin with what the reader knows.

        Args:
            top: the task that is followed.
            most: for how many below it there is room.
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
        """Open the sub-task in a slot, and those that are passed over."""
        first = round.told
        begun = round.begin(slot)
        self._by_id |= {round.open[one].task_id: round.open[one] for one in range(first, slot + 1)}
        return begun

    def reopen(self, round: KnownRound, slot: int, sequence: int) -> KnownTask:
        """Open a sub-task that was closed, of which the reader has the events up to a sequence."""
        known = round.reopen(slot, sequence)
        self._by_id[known.task_id] = known
        return known

    def close(self, known: KnownTask) -> list[KnownTask]:
        """Close a sub-task of which the reader was told to the end.

        Returns:
            The tasks for whose next sub-tasks there is room now.
        """
        known.close()
        del self._by_id[known.task_id]
        return [
            round.parent
            for round, slot in self._held.items()
            if (self.is_roomy or round.parent is self._first()) and self.fits(round, slot)
        ]

    def hold(self, round: KnownRound, slot: int) -> None:
        """Note that a round waits for room, and which sub-task comes next in it."""
        self._held[round] = slot

    def let_in(self, round: KnownRound) -> None:
        self._held.pop(round, None)

    def holds(self, round: KnownRound) -> bool:
        return round in self._held

    @property
    def is_roomy(self) -> bool:
        """Whether a quarter of the room is free. Waiting for that, the store is not asked for each one that closes."""
        return len(self._by_id) <= self._most * 3 // 4

    def fits(self, round: KnownRound, slot: int) -> bool:
        """Whether there is room for the sub-task in a slot, and for those that are passed over."""
        more = slot - round.told + 1
        if len(self._by_id) + more <= self._most + 1:
            return True
        return more == 1 and not round.parent.has_open and round.parent is self._first()

    def _first(self) -> KnownTask:
        """The first task in the plan among those that have no open sub-task."""
        known = self._top
        while (begun := next((round for round in known.rounds if round.open), None)) is not None:
            known = begun.open[min(begun.open)]
        return known
