"""How far a reader of several tasks is: what its Last-Event-ID says, exactly and in few bytes.

There is no sequence over several tasks, and no order by time that another process would see in the same way. But there
is the plan: the sub-tasks of a round have slots, and each task numbers its events. So a place names, for each round, a
slot up to which the reader was told of sub-tasks, and of those the few that are still open, each with the sequence that
the reader has. All others below that slot were told of to their end. A stream keeps a place small by never having more
than a number of them open: what comes later in the plan is told of later.

For example `[7, 0, [0, 1, 4, 2, 5]]` before it is packed: of the task that is followed the reader has event 7 and no
progress since; in its generation 0 and round 1 it was told of the slots below 4, and the one that is open of these is 2
slots on, in slot 2, of which it has event 5. So it knows slots 0, 1 and 3 to their end.
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

#: Most characters of a place as text, and most bytes of what is in it. Those that we give out have a tenth of that.
_MAX_TEXT = 16_000
_MAX_BYTES = 64_000
_MAX_NUMBER = 2**31


class PlaceInvalidError(ValueError):
    """The text is no place that a stream gave out."""


@dataclass(slots=True, eq=False)
class KnownTask:
    """A task of which the reader knows something and may hear more."""

    task_id: str
    #: The round of sub-tasks that it belongs to; None for the task that is followed.
    within: KnownRound | None = None
    slot: int = 0
    #: The last event that the reader has; 0 if it has none.
    sequence: int = 0
    #: The last progress that the reader has.
    progress: int = 0
    #: The last event that the reader has is its end.
    is_final: bool = False
    #: The rounds of which something is still to be told, and always the newest one; the oldest first.
    rounds: list[KnownRound] = field(default_factory=list)

    def all(self) -> Iterator[KnownTask]:
        """This one and those below it, each before those in later slots."""
        yield self
        for known in self.rounds:
            for slot in sorted(known.open):
                yield from known.open[slot].all()

    @property
    def has_open(self) -> bool:
        return any(known.open for known in self.rounds)

    def enter(self, generation: int, number: int) -> None:
        """The task is in this round now. The reader is told of the rounds in between, too. Those of an older generation
        that it has not heard of are left out: they do not count any more.
        """
        newest = self.rounds[-1] if self.rounds else None
        first = newest.number + 1 if newest is not None and newest.generation == generation else 1
        self.rounds.extend(KnownRound(self, generation, between) for between in range(first, number + 1))

    def pass_over(self, generation: int, number: int) -> None:
        """The reader was told of this round and all before it to the end, however many sub-tasks that are."""
        self.rounds.append(KnownRound(self, generation, number, told=MAX_SUBTASKS))

    def forget_rounds(self) -> None:
        """Nothing more is to be told of these, and what is newer says so."""
        self.rounds[:-1] = [known for known in self.rounds[:-1] if known.open or not known.is_over]

    def close(self) -> None:
        """The reader was told of this sub-task, and of everything below it, to the end."""
        assert self.within is not None, "what is followed is never closed"
        del self.within.open[self.slot]


@dataclass(slots=True, eq=False)
class KnownRound:
    """A round of sub-tasks, and how far the reader is in it."""

    parent: KnownTask
    generation: int
    number: int
    #: The reader was told of all sub-tasks in slots below: of the open ones in part, of the others to their end.
    told: int = 0
    open: dict[int, KnownTask] = field(default_factory=dict)
    #: How many sub-tasks there are, as far as it is known.
    planned: int | None = None
    #: The reader was told of all that are there, as far as it is known.
    is_listed: bool = False
    #: No more sub-tasks come to be.
    is_left: bool = False
    #: The slots of sub-tasks that may be next, by id.
    _ahead: dict[str, int] = field(default_factory=dict)
    _ahead_until: int = 0

    @property
    def key(self) -> RoundOfSubtasks:
        return RoundOfSubtasks(self.parent.task_id, self.generation, self.number)

    @property
    def is_whole(self) -> bool:
        """Whether the reader was told of every sub-task that is planned."""
        return self.planned is not None and self.told >= self.planned

    @property
    def is_over(self) -> bool:
        """Whether the reader was told of every sub-task that there will ever be."""
        return self.is_whole or (self.is_left and self.is_listed)

    def is_of(self, link: ParentLink) -> bool:
        """Whether a sub-task with this link belongs to this round."""
        return (self.parent.task_id, self.generation, self.number) == (link.task_id, link.generation, link.round)

    def begin(self, slot: int) -> KnownTask:
        """Begin to tell of the sub-task in a slot that was not told of. Those that are passed over are open as well."""
        while self.told <= slot:
            known = self.open[self.told] = KnownTask(self.id_of(self.told), self, self.told)
            self._ahead.pop(known.task_id, None)
            self.told += 1
        return self.open[slot]

    def reopen(self, slot: int, sequence: int) -> KnownTask:
        """Go on telling of a sub-task that had ended; the reader has its events up to a sequence."""
        self.open[slot] = KnownTask(self.id_of(slot), self, slot, sequence)
        return self.open[slot]

    def id_of(self, slot: int) -> str:
        return subtask_id(self.parent.task_id, self.generation, self.number, slot)

    def slot_ahead(self, task_id: str, most: int) -> int | None:
        """The slot of a sub-task that is one of the next `most` to be told of; None for any other."""
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
        text: what a client sent.
        most_open: how many sub-tasks may be open in it.

    Raises:
        PlaceInvalidError: if it is none of ours.
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
    """Reads what a client sent, which may be anything."""

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
