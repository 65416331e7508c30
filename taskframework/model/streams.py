"""Ordered streams: the tasks of one key run one after the other, or run at once and give their results in order.

The record of a stream gives each task its position, and in a serial stream it says which task has the turn. Only that
task is unblocked, so at most one task of a key is between QUEUED and its end. One guarded write passes the turn on, and
does so only if the turn is still the turn that was read. When a submission begins after an earlier submission has
ended, the earlier task has the lower position and is stored already, so no later task overtakes it.
`tests/models/stream_turns.pml` is a model of this protocol.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import Literal

from taskframework.model.idempotency import GRACE
from taskframework.model.options import StreamMode
from taskframework.model.records import Record, RecordKind, new_revision, parts_of
from taskframework.model.scope import ANONYMOUS
from taskframework.model.status import DEAD, FINAL, TaskStatus
from taskframework.model.task import Task
from taskframework.model.transitions import BY_DEADLINE
from taskframework.model.values import shell_quoted

#: What happens to a stream when a task fails: the next task gets the turn, or the stream halts.
OnFailure = Literal["continue", "halt"]
#: A position without a task is given up when a task at a higher position has been stored for this long: the process
#: that took the position has almost certainly died, or is far too late.
GIVEN_UP_AFTER = timedelta(seconds=30)
#: How many submissions the record of a stream remembers with the positions they took. A process makes one submission at
#: a time in a stream, so this is how many processes may submit to one stream at the same moment. If more submissions
#: overtake a submission before it has read its reply, it takes other positions and leaves a gap.
MAX_KEPT_REQUESTS = 4


def go_on_command(user_id: str | None, key: str, position: int) -> str:
    """The command that lets a stream continue that has halted at this position."""
    owner = "" if user_id in (None, ANONYMOUS) else f" --user {shlex.quote(user_id or '')}"
    return f"taskframework streams go-on{owner} --position {position} {shell_quoted(key)}"


@dataclass(frozen=True, slots=True)
class StreamKey:
    """Which stream: a key of a user."""

    user_id: str
    key: str

    @property
    def record_id(self) -> str:
        return STREAMS.id_of(self.user_id, self.key)


@dataclass(frozen=True, slots=True)
class Turn:
    """The task that may run, and in which generation. After a replay the task needs a new turn."""

    task_id: str
    generation: int
    position: int


@dataclass(frozen=True, slots=True)
class Gap:
    """Positions that were given up because they have no task; a task that is stored there too late must move."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Taken:
    """The positions that one submission took. The submission finds them here if the reply to its write was lost."""

    by: str
    first: int


@dataclass(frozen=True, slots=True)
class Stream:
    """The content of a stream's record."""

    mode: StreamMode = "serial"
    #: How many positions were given.
    next_position: int = 0
    #: The task that has the turn, or had it last.
    turn: Turn | None = None
    #: Whether the task that has the turn failed and the stream now waits until an operator replays this task, or lets
    #: the stream continue without it.
    is_halted: bool = False
    #: The gap to which a position was added last comes last.
    skipped: tuple[Gap, ...] = ()
    taken: tuple[Taken, ...] = ()

    def has_skipped(self, position: int) -> bool:
        """Return whether a position is given up."""
        return any(gap.first <= position <= gap.last for gap in self.skipped)

    def skip(self, first: int, last: int) -> Stream:
        """The stream with these positions given up. The gaps next to them become one with them; it is the last one."""
        near = [gap for gap in self.skipped if gap.first <= last + 1 and first <= gap.last + 1]
        others = [gap for gap in self.skipped if gap not in near]
        whole = Gap(min([first, *(gap.first for gap in near)]), max([last, *(gap.last for gap in near)]))
        return replace(self, skipped=(*others, whole))


STREAMS = RecordKind("stream", Stream)


def record_kept_for(finished: timedelta | None) -> timedelta:
    """How long the record of a stream is kept before it is looked at again: as long as tasks are kept after their end,
    or a day if this is None, which means for ever.
    """
    return finished or timedelta(days=1)


def stream_key_of(record_id: str) -> StreamKey:
    """The stream of a record, by its id."""
    user_id, key = parts_of(record_id)
    return StreamKey(user_id, key)


def stream_of(task: Task) -> StreamKey | None:
    """The stream of a task; None if the task is in no stream."""
    return None if task.stream is None else StreamKey(task.user_id, task.stream.key)


def position_of(task: Task) -> int:
    """The position of a task in its stream; -1 if the task is in no stream."""
    return -1 if task.stream is None else task.stream.position


def is_serial(task: Task) -> bool:
    """Return whether the task is in a serial stream, in which it runs only when it has the turn."""
    return task.stream is not None and task.stream.mode == "serial"


class TurnState(Enum):
    """What the state of the task that has the turn means for the other tasks."""

    WAITS = "it may run and is still BLOCKED"
    LIVE = "the others wait for it"
    FAILED = "it failed in a way that halts the stream"
    OVER = "the next one has its turn"


def turn_state(turn: Turn | None, holder: Task | None, *, is_halted: bool = False) -> TurnState:
    """What a turn means for the other tasks.

    Args:
        turn: the turn in the record of the stream.
        holder: the task that has the turn; None if it was deleted.
        is_halted: what the record says. A stream that halts goes on halting after its failed task was deleted.
    """
    if holder is None and is_halted:
        return TurnState.FAILED
    if turn is None or holder is None or holder.generation != turn.generation:
        return TurnState.OVER
    if holder.status is TaskStatus.BLOCKED:
        return TurnState.WAITS
    if holder.status not in FINAL:
        return TurnState.LIVE
    return TurnState.FAILED if _halts_stream(holder) else TurnState.OVER


def _halts_stream(task: Task) -> bool:
    if task.stream is None or not task.stream.halts or task.status not in DEAD:
        return False
    # A deadline lets the stream continue. The error does not show the deadline: while the task was being stopped, its
    # worker may have died, or its code may have failed in its own way.
    was_stopped_by_deadline = task.cancel is not None and task.cancel.by == BY_DEADLINE
    return not was_stopped_by_deadline and task.discarded is None


@dataclass(frozen=True, slots=True)
class _StreamChange:
    """One guarded write on the record of a stream."""

    stream: StreamKey
    #: The shortest time for which the record is kept.
    kept: timedelta

    @property
    def record_id(self) -> str:
        return self.stream.record_id

    def apply(self, stream: Stream) -> Stream:
        """The stream after the write."""
        raise NotImplementedError

    def change(self, record: Record | None, now: datetime) -> Record:
        """`RecordChange.change`."""
        stream = self.apply(self._new if record is None else STREAMS.content(record))
        until = now + self.kept_for
        if record is not None and record.expires_at is not None:
            until = max(until, record.expires_at)
        return STREAMS.with_id(self.record_id, record, stream, expires_at=until)

    @property
    def kept_for(self) -> timedelta:
        """How long the retention leaves the record alone: also until the task of the newest position is stored."""
        return self.kept + GRACE

    @property
    def _new(self) -> Stream:
        return Stream()


@dataclass(frozen=True, slots=True)
class TakePositions(_StreamChange):
    """Take the next `count` positions of a stream; take none if the stream has another mode."""

    mode: StreamMode
    count: int
    #: A random id of this request. If the request is made a second time, it takes no further positions.
    by: str = field(default_factory=new_revision)

    @property
    def _new(self) -> Stream:
        return Stream(self.mode)

    def apply(self, stream: Stream) -> Stream:
        if stream.mode != self.mode or self.first_in(stream) is not None:
            return stream
        taken = (*stream.taken, Taken(self.by, stream.next_position))[-MAX_KEPT_REQUESTS:]
        return replace(stream, next_position=stream.next_position + self.count, taken=taken)

    def first_in(self, stream: Stream) -> int | None:
        """The first of the positions; None if the stream has another mode, or they were taken long ago."""
        return next((taken.first for taken in stream.taken if taken.by == self.by), None)


@dataclass(frozen=True, slots=True)
class PassTurn(_StreamChange):
    """Give the turn to another task, or halt the stream, if the turn is still the turn that was read."""

    before: Turn | None
    after: Turn | None
    is_halted: bool = False

    def was_applied(self, record: Record) -> bool:
        """Return whether the record, read after the write, has the new turn, by this write or by another write."""
        return STREAMS.content(record).turn == self.after

    def apply(self, stream: Stream) -> Stream:
        if stream.turn != self.before:
            return stream
        # The record may have been deleted and created again: no task may get a position that another task has.
        min_next_position = 0 if self.after is None else self.after.position + 1
        return replace(
            stream,
            next_position=max(stream.next_position, min_next_position),
            turn=self.after,
            is_halted=self.is_halted,
        )
