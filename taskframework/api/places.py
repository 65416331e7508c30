"""The place of a reader of several tasks: the content of its Last-Event-ID, exact and in few bytes.

There is no sequence over several tasks, and no order by time that another process would see in the same way. But the
sub-tasks of a round have slots in the plan, and each task numbers its events. So a place names, for each round, a slot
up to which sub-tasks were shown to the reader; and the few of these that are still open, each with the sequence that
the reader has. All others below that slot were shown to their end. A stream keeps a place small by a limit on open
tasks: tasks later in the plan are shown later.

For example `[7, 0, [0, 1, 4, 2, 5]]` before it is packed: of the task that is followed the reader has event 7 and no
progress since. In its generation 0 and round 1 the slots below 4 were shown. One of these is open: 2 slots on, in
slot 2, with event 5. So the reader knows slots 0, 1 and 3 to their end.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from taskframework.model.query import RoundOfSubtasks
from taskframework.model.subtasks import MAX_DEPTH, MAX_SUBTASKS, subtask_id
from taskframework.model.task import ParentLink

#: The most characters of a place as text, and the most bytes of its content. Real places have a tenth of that.
_MAX_TEXT = 16_000
_MAX_BYTES = 64_000
_MAX_NUMBER = 2**31


class PlaceInvalidError(ValueError):
    """The text is not a place that a stream gave out."""


@dataclass(slots=True, eq=False)
class KnownTask:
    """A task of which the reader has a part of the events and may get more."""

    task_id: str
    #: The round of sub-tasks that it belongs to; None for the task that is followed.
    within: KnownRound | None = None
    slot: int = 0
    #: The last event that the reader has; 0 if it has none.
    sequence: int = 0
    #: The last progress that the reader has.
    progress: int = 0
    #: Whether the last event that the reader has is the end of the task.
    is_final: bool = False
    #: The rounds that are not completely shown, and always the newest round; the oldest first.
    rounds: list[KnownRound] = field(default_factory=list)

    def all(self) -> Iterator[KnownTask]:
        """This task and the open tasks below it, each before those in later slots."""
        yield self
        for known in self.rounds:
            for slot in sorted(known.open):
                yield from known.open[slot].all()

    @property
    def has_open(self) -> bool:
        return any(known.open for known in self.rounds)

    def enter(self, generation: int, number: int) -> None:
        """Note that the task is in this round now. The rounds in between are shown, too. Rounds of an older generation
        that were not shown before are left out: they no longer count.
        """
        newest = self.rounds[-1] if self.rounds else None
        first = newest.number + 1 if newest is not None and newest.generation == generation else 1
        self.rounds.extend(KnownRound(self, generation, between) for between in range(first, number + 1))

    def pass_over(self, generation: int, number: int) -> None:
        """Note that this round and all before it were shown to the end, however many sub-tasks they have."""
        self.rounds.append(KnownRound(self, generation, number, told=MAX_SUBTASKS))

    def forget_rounds(self) -> None:
        """Forget the rounds that are completely shown; the newest round implies them."""
        self.rounds[:-1] = [known for known in self.rounds[:-1] if known.open or not known.is_over]

    def close(self) -> None:
        """Note that this sub-task, and everything below it, was shown to the end."""
        assert self.within is not None, "what is followed is never closed"
        del self.within.open[self.slot]


@dataclass(slots=True, eq=False)
class KnownRound:
    """A round of sub-tasks, and how far the reader is in it."""

    parent: KnownTask
    generation: int
    number: int
    #: All sub-tasks in slots below this were shown: the open ones in part, the others to their end.
    told: int = 0
    open: dict[int, KnownTask] = field(default_factory=dict)
    #: How many sub-tasks the round has, as far as it is known.
    planned: int | None = None
    #: Whether all existing sub-tasks were shown, as far as it is known.
    is_listed: bool = False
    #: Whether no more sub-tasks will be stored.
    is_left: bool = False
    #: The slots of sub-tasks that may come next, by id.
    _ahead: dict[str, int] = field(default_factory=dict)
    _ahead_until: int = 0

    @property
    def key(self) -> RoundOfSubtasks:
        return RoundOfSubtasks(self.parent.task_id, self.generation, self.number)

    @property
    def is_whole(self) -> bool:
        """Whether every planned sub-task was shown."""
        return self.planned is not None and self.told >= self.planned

    @property
    def is_over(self) -> bool:
        """Whether every sub-task that there will ever be was shown."""
        return self.is_whole or (self.is_left and self.is_listed)

    def is_of(self, link: ParentLink) -> bool:
        """Return whether a sub-task with this link belongs to this round."""
        return (self.parent.task_id, self.generation, self.number) == (link.task_id, link.generation, link.round)

    def begin(self, slot: int) -> KnownTask:
        """Begin to show the sub-task in a new slot. New sub-tasks in the slots before it are open from now on, too."""
        while self.told <= slot:
            known = self.open[self.told] = KnownTask(self.id_of(self.told), self, self.told)
            self._ahead.pop(known.task_id, None)
            self.told += 1
        return self.open[slot]

    def reopen(self, slot: int, sequence: int) -> KnownTask:
        """Continue to show a sub-task that had ended; the reader has its events up to a sequence."""
        self.open[slot] = KnownTask(self.id_of(slot), self, slot, sequence)
        return self.open[slot]

    def id_of(self, slot: int) -> str:
        return subtask_id(self.parent.task_id, self.generation, self.number, slot)

    def slot_ahead(self, task_id: str, most: int) -> int | None:
        """The slot of a sub-task that is one of the next `most` to be shown; None for any other sub-task."""
        for slot in range(max(self._ahead_until, self.told), self.told + most):
            self._ahead[self.id_of(slot)] = slot
        self._ahead_until = max(self._ahead_until, self.told + most)
        return self._ahead.get(task_id)


def place_text(followed: KnownTask) -> str:
    """A place as text for a header: letters, digits, `-` and `_`."""
    packed = zlib.compress(orjson.dumps(_packed(followed)))
    return base64.urlsafe_b64encode(packed).decode().rstrip("=")


def read_place(task_id: str, text: str, most_open: int) -> KnownTask:
    """Read a place.

    Args:
        task_id: the task that is followed.
        text: the text that a client sent.
        most_open: how many sub-tasks may be open in it.

    Raises:
        PlaceInvalidError: if no stream gave out this place.
    """
    if len(text) > _MAX_TEXT:
        raise PlaceInvalidError("it is too long")
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
        unpacker = zlib.decompressobj()
        content = orjson.loads(unpacker.decompress(raw, _MAX_BYTES))
    except (ValueError, binascii.Error, zlib.error) as error:
        raise PlaceInvalidError("it is damaged") from error
    followed = KnownTask(task_id)
    _Unpacking(most_open).fill(followed, content, MAX_DEPTH)
    return followed


def _packed(known: KnownTask) -> Any:
    if not known.rounds and not known.progress:
        return known.sequence
    return [known.sequence, known.progress, *map(_packed_round, known.rounds)]


def _packed_round(known: KnownRound) -> list[Any]:
    packed, next_slot = [known.generation, known.number, known.told], 0
    for slot in sorted(known.open):
        packed += (slot - next_slot, _packed(known.open[slot]))
        next_slot = slot + 1
    return packed


class _Unpacking:
    """Reads the text of a client, which may be anything."""

    def __init__(self, most_open: int) -> None:
        self._left = most_open

    def fill(self, known: KnownTask, packed: Any, depth: int) -> None:
        if not isinstance(packed, list):
            known.sequence = _number(packed)
            return
        if len(packed) < 2 or depth < 0:
            raise PlaceInvalidError("it is damaged")
        known.sequence, known.progress = map(_number, packed[:2])
        for round in packed[2:]:
            known.rounds.append(self._round(known, round, depth))

    def _round(self, parent: KnownTask, packed: Any, depth: int) -> KnownRound:
        if not isinstance(packed, list) or len(packed) % 2 == 0:
            raise PlaceInvalidError("it is damaged")
        generation, number, told = map(_number, packed[:3])
        known, slot = KnownRound(parent, generation, number, told), 0
        if known.told > MAX_SUBTASKS:
            raise PlaceInvalidError("it is damaged")
        for gap, sub in zip(packed[3::2], packed[4::2], strict=True):
            slot += _number(gap)
            self._left -= 1
            if slot >= known.told or self._left < 0:
                raise PlaceInvalidError("it is damaged")
            self.fill(known.reopen(slot, 0), sub, depth - 1)
            slot += 1
        return known


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _MAX_NUMBER:
        raise PlaceInvalidError("it is damaged")
    return value
