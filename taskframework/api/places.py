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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from taskframework.model.query import RoundOfSubtasks
from taskframework.model.subtasks import MAX_DEPTH, MAX_SUBTASKS, subtask_id
from taskframework.model.task_fields import ParentLink

#: The most characters of a place as text, and the most bytes of its content. Real places have a tenth of that.
_MAX_TEXT_CHARACTERS = 16_000
_MAX_CONTENT_BYTES = 64_000
_MAX_NUMBER = 2**31


class PlaceInvalidError(ValueError):
    """The text is not a place that a stream gave out."""


@dataclass(slots=True, eq=False)
class KnownTask:
    """A task of which the reader has a part of the events and may get more."""

    task_id: str
    #: The round of sub-tasks that it belongs to; None for the task that is followed.
    parent_round: KnownRound | None = None
    slot: int = 0
    #: The last event that the reader has; 0 if it has none.
    sequence: int = 0
    #: The last progress that the reader has.
    progress: int = 0
    #: Whether the last event that the reader has is the end of the task.
    is_final: bool = False
    #: The rounds that are not completely shown, and always the newest round; the oldest first.
    rounds: list[KnownRound] = field(default_factory=list)

    def walk(self) -> Iterator[KnownTask]:
        """This task and the open tasks below it, each before those in later slots."""
        yield self
        for known in self.rounds:
            for slot in sorted(known.open_subtasks):
                yield from known.open_subtasks[slot].walk()

    @property
    def has_open_subtasks(self) -> bool:
        return any(known.open_subtasks for known in self.rounds)

    def enter_round(self, generation: int, number: int) -> None:
        """Note that the task is in this round now. The rounds in between are shown, too. Rounds of an older generation
        that were not shown before are left out: they no longer count.
        """
        newest = self.rounds[-1] if self.rounds else None
        first = newest.number + 1 if newest is not None and newest.generation == generation else 1
        self.rounds.extend(KnownRound(self, generation, between) for between in range(first, number + 1))

    def mark_shown_through(self, generation: int, number: int) -> None:
        """Note that this round and all before it were shown to the end, however many sub-tasks they have."""
        self.rounds.append(KnownRound(self, generation, number, shown_until=MAX_SUBTASKS))

    def forget_shown_rounds(self) -> None:
        """Forget the rounds that are completely shown; the newest round implies them."""
        self.rounds[:-1] = [known for known in self.rounds[:-1] if known.open_subtasks or not known.is_over]

    def close(self) -> None:
        """Note that this sub-task, and everything below it, was shown to the end."""
        assert self.parent_round is not None, "the task that is followed is never closed"
        del self.parent_round.open_subtasks[self.slot]


@dataclass(slots=True, eq=False)
class KnownRound:
    """A round of sub-tasks, and how far the reader is in it."""

    parent: KnownTask
    generation: int
    number: int
    #: All sub-tasks in slots below this were shown: the open ones in part, the others to their end.
    shown_until: int = 0
    open_subtasks: dict[int, KnownTask] = field(default_factory=dict)
    #: How many sub-tasks the round has, as far as it is known.
    planned: int | None = None
    #: Whether all existing sub-tasks were shown, as far as it is known.
    is_listed: bool = False
    #: Whether no more sub-tasks will be stored.
    is_past: bool = False
    #: The slots of sub-tasks that may come next, by id.
    _upcoming_slots: dict[str, int] = field(default_factory=dict)
    _upcoming_until: int = 0

    @property
    def key(self) -> RoundOfSubtasks:
        return RoundOfSubtasks(self.parent.task_id, self.generation, self.number)

    @property
    def is_plan_shown(self) -> bool:
        """Whether every planned sub-task was shown."""
        return self.planned is not None and self.shown_until >= self.planned

    @property
    def is_over(self) -> bool:
        """Whether every sub-task that there will ever be was shown."""
        return self.is_plan_shown or (self.is_past and self.is_listed)

    def contains(self, link: ParentLink) -> bool:
        """Return whether a sub-task with this link belongs to this round."""
        return (self.parent.task_id, self.generation, self.number) == (link.task_id, link.generation, link.round)

    def open_subtask(self, slot: int) -> KnownTask:
        """Begin to show the sub-task in a new slot. New sub-tasks in the slots before it are open from now on, too."""
        while self.shown_until <= slot:
            known = self.open_subtasks[self.shown_until] = KnownTask(
                self.id_of(self.shown_until), self, self.shown_until
            )
            self._upcoming_slots.pop(known.task_id, None)
            self.shown_until += 1
        return self.open_subtasks[slot]

    def reopen_subtask(self, slot: int, sequence: int) -> KnownTask:
        """Continue to show a sub-task that had ended; the reader has its events up to a sequence."""
        self.open_subtasks[slot] = KnownTask(self.id_of(slot), self, slot, sequence)
        return self.open_subtasks[slot]

    def id_of(self, slot: int) -> str:
        return subtask_id(self.parent.task_id, self.generation, self.number, slot)

    def upcoming_slot(self, task_id: str, count: int) -> int | None:
        """The slot of a sub-task that is one of the next `count` to be shown; None for any other sub-task."""
        for slot in range(max(self._upcoming_until, self.shown_until), self.shown_until + count):
            self._upcoming_slots[self.id_of(slot)] = slot
        self._upcoming_until = max(self._upcoming_until, self.shown_until + count)
        return self._upcoming_slots.get(task_id)


def write_place(followed: KnownTask) -> str:
    """A place as text for a header: letters, digits, `-` and `_`."""
    packed = zlib.compress(orjson.dumps(_pack_task(followed)))
    return base64.urlsafe_b64encode(packed).decode().rstrip("=")


def read_place(task_id: str, text: str, max_open_tasks: int) -> KnownTask:
    """Read a place.

    Args:
        task_id: the task that is followed.
        text: the text that a client sent.
        max_open_tasks: how many sub-tasks may be open in it, and how many rounds it may have: each costs reads.

    Raises:
        PlaceInvalidError: if no stream gave out this place.
    """
    if len(text) > _MAX_TEXT_CHARACTERS:
        raise PlaceInvalidError("it is too long")
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
        unpacker = zlib.decompressobj()
        content = orjson.loads(unpacker.decompress(raw, _MAX_CONTENT_BYTES))
    except (ValueError, binascii.Error, zlib.error) as error:
        raise PlaceInvalidError("it is damaged") from error
    followed = KnownTask(task_id)
    _Unpacker(max_open_tasks).unpack_task(followed, content, MAX_DEPTH)
    return followed


def _pack_task(known: KnownTask) -> Any:
    # The newest rounds of which nothing was shown are left out. A task may have thousands.
    count = len(known.rounds)
    while count and not known.rounds[count - 1].shown_until and _is_entered_anew(known.rounds, count - 1):
        count -= 1
    if not count and not known.progress:
        return known.sequence
    return [known.sequence, known.progress, *map(_pack_round, known.rounds[:count])]


def _is_entered_anew(rounds: Sequence[KnownRound], place: int) -> bool:
    """Return whether a round can be left out of the place: `KnownTask.enter_round` makes it again, and does not make a
    round before it that was shown and forgotten.
    """
    round, before = rounds[place], rounds[place - 1] if place else None
    follows = before is not None and (before.generation, before.number + 1) == (round.generation, round.number)
    return follows or round.number == 1


def _pack_round(known: KnownRound) -> list[Any]:
    packed, next_slot = [known.generation, known.number, known.shown_until], 0
    for slot in sorted(known.open_subtasks):
        packed += (slot - next_slot, _pack_task(known.open_subtasks[slot]))
        next_slot = slot + 1
    return packed


class _Unpacker:
    """Reads the text of a client, which may be anything."""

    def __init__(self, max_open_tasks: int) -> None:
        self._open_left = self._rounds_left = max_open_tasks

    def unpack_task(self, known: KnownTask, packed: Any, depth: int) -> None:
        if not isinstance(packed, list):
            known.sequence = _checked_number(packed)
            return
        if len(packed) < 2 or depth < 0:
            raise PlaceInvalidError("it is damaged")
        known.sequence, known.progress = map(_checked_number, packed[:2])
        for round in packed[2:]:
            self._rounds_left -= 1
            if self._rounds_left < 0:
                raise PlaceInvalidError("it is damaged")
            known.rounds.append(self._unpack_round(known, round, depth))
        if len({(round.generation, round.number) for round in known.rounds}) < len(known.rounds):
            raise PlaceInvalidError("it is damaged")

    def _unpack_round(self, parent: KnownTask, packed: Any, depth: int) -> KnownRound:
        if not isinstance(packed, list) or len(packed) % 2 == 0:
            raise PlaceInvalidError("it is damaged")
        generation, number, shown_until = map(_checked_number, packed[:3])
        known, slot = KnownRound(parent, generation, number, shown_until), 0
        if known.shown_until > MAX_SUBTASKS:
            raise PlaceInvalidError("it is damaged")
        for gap, sub in zip(packed[3::2], packed[4::2], strict=True):
            slot += _checked_number(gap)
            self._open_left -= 1
            if slot >= known.shown_until or self._open_left < 0:
                raise PlaceInvalidError("it is damaged")
            self.unpack_task(known.reopen_subtask(slot, 0), sub, depth - 1)
            slot += 1
        return known


def _checked_number(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _MAX_NUMBER:
        raise PlaceInvalidError("it is damaged")
    return value
