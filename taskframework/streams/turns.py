"""Whose turn it is in a serial stream. The first process that sees that a task may run unblocks it.

A process looks after it has stored a task, seen one end, or queued one anew. If it dies before it has looked, that
event of the task is not marked as published, so a relay brings the task here again; and a BLOCKED task has a driver by
which somebody looks. `model/streams.py` says what is promised.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from taskframework import failpoint
from taskframework.background import Background
from taskframework.errors import StoreError, StoreUnavailableError, TaskUnreadableError
from taskframework.grouping import Grouping
from taskframework.model.events import TaskEvent
from taskframework.model.scope import EVERYONE
from taskframework.model.sequences import Sequences
from taskframework.model.status import TaskStatus
from taskframework.model.stream_moves import Unblock
from taskframework.model.streams import (
    STREAMS,
    PassTurn,
    Stream,
    StreamKey,
    Turn,
    TurnState,
    is_serial,
    stream_of,
    turn_state,
)
from taskframework.model.task import Task
from taskframework.moves import TaskMoves
from taskframework.stores.base import TaskStore
from taskframework.stores.reading import read_record

logger = logging.getLogger(__name__)

#: Most rounds of looking and writing. In each lost round another process passed the turn on.
_ROUNDS = 50
#: How many streams this process looks at at the same time: enough for groups of a hundred while others are under way.
_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class _Pass:
    """A turn that is to be passed on."""

    stream: StreamKey
    #: The turn as it is now; None: there was none yet.
    turn: Turn | None
    #: Whether no task gets it, because the stream halts.
    halts: bool
    #: Whoever had it halted the stream and was given up: it halts no more, also if nobody waits.
    frees: bool


@dataclass(frozen=True, slots=True)
class _Passed:
    """The result of passing a turn on."""

    #: The next turn; None: no task waits.
    chosen: Turn | None
    #: Whether the stream has that turn now.
    is_made: bool = False


@dataclass(slots=True)
class _Look:
    """The look at a stream that goes on, and what was heard of the stream since it began."""

    #: A task that has ended, if the end of one was heard.
    ended: Task | None = None
    #: Whether another look is needed after the present one.
    is_wanted: bool = True
    #: To be called after the next look.
    told: list[Callable[[], None]] = field(default_factory=list)
    #: The tasks that need no further look after the next one, each with its sequence.
    seen_to: dict[str, int] = field(default_factory=dict)
    #: Both for the present look. The bridge may ask for a task of which the bus told just before.
    now_told: list[Callable[[], None]] = field(default_factory=list)
    now_seen_to: dict[str, int] = field(default_factory=dict)

    def begin(self) -> Task | None:
        """Begin a look that covers all that was heard; returns the task that ended, if one did."""
        ended, self.ended = self.ended, None
        self.now_told, self.now_seen_to = self.told, self.seen_to
        self.told, self.seen_to, self.is_wanted = [], {}, False
        return ended


class StreamTurns:
    """Passes on the turns of serial streams."""

    def __init__(self, store: TaskStore, moves: TaskMoves, dispatch_after: timedelta, kept: timedelta) -> None:
        """Prepare.

        Args:
            store: where the tasks and the records of their streams are.
            moves: unblocks tasks.
            dispatch_after: as in `NewTasks`.
            kept: how long the record of a stream is kept at the least.
        """
        self._store = store
        self._moves = moves
        self._dispatch_after = dispatch_after
        self._kept = kept
        self._looks: dict[StreamKey, _Look] = {}
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._looking = Background()
        #: Ends of tasks in many streams that come together share the calls of the store.
        self._passing: Grouping[_Pass, _Passed] = Grouping(self._pass_all, key=lambda wanted: wanted.stream)
        self._holders: Grouping[str, Task | None] = Grouping(self._read_holders)
        #: Tasks after which somebody has looked, each with its sequence: the bridge asks after it has published a task.
        self._done = Sequences()

    def hear(self, event: TaskEvent) -> None:
        """Listener for the ends of tasks and for what is queued anew."""
        if event.task.stream is not None:
            self.take(event.task)

    def take(self, task: Task, then: Callable[[], None] | None = None) -> None:
        """Look soon whose turn it is in the stream of a task.

        Args:
            task: one that ended, or that waits for its turn; any other task needs no look.
            then: called when somebody has looked; not called if that fails.
        """
        stream = stream_of(task)
        if stream is None or not _matters(task) or self._done.of(task.task_id) >= task.sequence:
            if then is not None:
                then()
            return
        look = self._looks.get(stream)
        if look is not None and look.now_seen_to.get(task.task_id, 0) >= task.sequence:
            if then is not None:
                look.now_told.append(then)
            return
        look = self._look_at(stream)
        if task.status.is_final:
            look.ended = task
        look.seen_to[task.task_id] = task.sequence
        if then is not None:
            look.told.append(then)

    def look(self, stream: StreamKey) -> None:
        """Look soon whose turn it is in a stream, even if somebody has looked already."""
        self._look_at(stream)

    async def finished(self) -> None:
        """Wait until everything heard of is looked at, or left to the repair."""
        await self._looking.finished()

    async def advance(self, stream: StreamKey, *, known: Stream | None = None, ended: Task | None = None) -> None:
        """Unblock the task whose turn it is, if one waits.

        Args:
            stream: which one.
            known: the content of its record, if it was just read; the task that has the turn is read in any case.
            ended: a task of it that has ended, and so probably has the turn.

        Raises:
            StoreError: if the store failed; a relay or a repair looks later.
        """
        state = known
        if ended is not None and ended.stream is not None:
            turn = Turn(ended.task_id, ended.generation, ended.stream.position)
            if await self._pass_on(stream, turn, ended):
                return
            state = None
        for _ in range(_ROUNDS):
            state = await self._read(stream) if state is None else state
            turn_now = state.turn
            holder = None if turn_now is None else await self._holders(turn_now.task_id)
            match turn_state(turn_now, holder):
                case TurnState.LIVE:
                    return
                case TurnState.WAITS if turn_now is not None:
                    if await self._let_go(turn_now):
                        return
                    state = None
                case TurnState.FAILED if state.is_halted:
                    return
                case _:
                    if await self._pass_on(stream, turn_now, holder):
                        return
                    state = None
        raise StoreUnavailableError(f"The turn of stream {stream.key!r} is passed on by too many at once.")

    async def go_on(self, stream: StreamKey, state: Stream) -> bool:
        """Let a halted stream go on with the next task.

        Returns:
            Whether it was halted and this call let it go on.

        Raises:
            StoreError: if the store failed; the stream may go on all the same.
        """
        if not state.is_halted:
            return False
        record = await self._store.change_record(PassTurn(stream, self._kept, state.turn, None))
        if STREAMS.content(record).turn is not None:
            return False
        await self.advance(stream)
        return True

    async def _pass_on(self, stream: StreamKey, turn: Turn | None, holder: Task | None) -> bool:
        """Give the turn of an ended task to the next one; or halt the stream, if the task says so.

        Returns:
            Whether it is done. Not if another task had the turn, or the chosen task is not BLOCKED any more.
        """
        halts = turn_state(turn, holder) is TurnState.FAILED
        frees = holder is not None and holder.discarded is not None
        passed = await self._passing(_Pass(stream, turn, halts, frees))
        if passed.chosen is None or (passed.is_made and halts):
            return True
        if not passed.is_made:
            return False
        await failpoint.reached("stream.after_turn")
        return await self._let_go(passed.chosen)

    async def _pass_all(self, wanted: Sequence[_Pass]) -> Sequence[_Passed]:
        waiting = await self._store.next_blocked([each.stream for each in wanted if not each.halts])
        chosen = [each.turn if each.halts else waiting.get(each.stream) for each in wanted]
        passes = [
            PassTurn(each.stream, self._kept, each.turn, turn, each.halts)
            for each, turn in zip(wanted, chosen, strict=True)
            if turn is not None or each.frees
        ]
        await failpoint.reached("stream.before_turn")
        # If a turn was passed on before, this write finds another turn, and is refused.
        made = iter(await self._store.pass_turns(passes) if passes else ())
        return [
            _Passed(None) if turn is None and not each.frees else _Passed(turn, next(made))
            for each, turn in zip(wanted, chosen, strict=True)
        ]

    async def _read_holders(self, task_ids: Sequence[str]) -> Sequence[Task | Exception | None]:
        try:
            found = await self._store.get_many(task_ids, EVERYONE)
        except TaskUnreadableError:  # only one of them, so the others are read by themselves
            return [await self._read_holder(task_id) for task_id in task_ids]
        return [found.get(task_id) for task_id in task_ids]

    async def _read_holder(self, task_id: str) -> Task | Exception | None:
        try:
            return await self._store.get(task_id, EVERYONE)
        except StoreError as error:
            return error

    async def _let_go(self, turn: Turn) -> bool:
        return await self._moves.repair(Unblock(turn.task_id, turn.generation, self._dispatch_after)) is not None

    async def _read(self, stream: StreamKey) -> Stream:
        record = await read_record(self._store, stream.record_id)
        return Stream() if record is None else STREAMS.content(record)

    def _look_at(self, stream: StreamKey) -> _Look:
        look = self._looks.get(stream)
        if look is None:
            look = self._looks[stream] = _Look()
            self._looking.start(self._look_all(stream, look), contextvars.Context())
        look.is_wanted = True
        return look

    async def _look_all(self, stream: StreamKey, look: _Look) -> None:
        try:
            async with self._places:
                while look.is_wanted:
                    await self.advance(stream, ended=look.begin())
                    self.remember(look.now_seen_to)
                    for then in look.now_told:
                        then()
        except StoreError as error:
            logger.info("the turn of stream %r is left to the repair: %s", stream.key, error.message)
        except Exception:
            logger.exception("the turn of stream %r is left to the repair", stream.key)
        finally:
            del self._looks[stream]

    def remember(self, seen_to: Mapping[str, int]) -> None:
        """Remember that somebody has looked after these tasks, by id, had reached these sequences."""
        self._done.raise_all(seen_to)


def _matters(task: Task) -> bool:
    """Whether a task may have to pass its turn on, or waits for its turn."""
    return is_serial(task) and (task.status.is_final or task.status is TaskStatus.BLOCKED)
