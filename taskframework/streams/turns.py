"""Whose turn it is in a serial stream: the task that may go is let go, whoever sees first that it may.

Everybody looks who stored a task, saw one end or queued it anew. A process that dies before it has looked leaves a task
whose end is not marked as published, so that a relay brings it here again, or one whose own time to be looked at comes.
`model/streams.py` says what is promised.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from taskframework import failpoint
from taskframework.background import Background
from taskframework.errors import StoreError, StoreUnavailableError
from taskframework.model.events import TaskEvent
from taskframework.model.scope import EVERYONE
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

#: Rounds of looking and writing: each lost one means that somebody else passed the turn on.
_ROUNDS = 50
#: Streams that this process looks at at once.
_AT_ONCE = 64
#: As many as the bridge has in hand.
_REMEMBERED = 50_000


@dataclass(slots=True)
class _Look:
    """What was heard of a stream since the last look at it."""

    #: The task of which it was heard, if that was its end.
    ended: Task | None = None
    is_wanted: bool = True
    #: Who is to be told when somebody has looked.
    told: list[Callable[[], None]] = field(default_factory=list)
    #: The ends that are seen to then, each with its sequence.
    ends: dict[str, int] = field(default_factory=dict)


class StreamTurns:
    """Passes the turns of serial streams on."""

    def __init__(self, store: TaskStore, moves: TaskMoves, dispatch_after: timedelta, kept: timedelta) -> None:
        """Prepare.

        Args:
            store: where the tasks and the records of their streams are.
            moves: lets tasks go.
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
        #: Whose end was seen to, each with its sequence: the bridge asks for it after it has published it.
        self._done: OrderedDict[str, int] = OrderedDict()

    def hear(self, event: TaskEvent) -> None:
        """Listener for the ends of tasks and for what is queued anew."""
        if event.task.stream is not None:
            self.take(event.task)

    def take(self, task: Task, then: Callable[[], None] | None = None) -> None:
        """Look soon whose turn it is in the stream of a task.

        Args:
            task: what ended, or waits for its turn; one that is in no serial stream needs nothing.
            then: called when somebody has looked; never, if nobody could.
        """
        stream = stream_of(task)
        if stream is None or not is_serial(task) or self._done.get(task.task_id, 0) >= task.sequence:
            if then is not None:
                then()
            return
        look = self._look_at(stream)
        if task.status.is_final:
            look.ended = task
            look.ends[task.task_id] = task.sequence
        if then is not None:
            look.told.append(then)

    async def finished(self) -> None:
        """Wait until everything heard of is looked at, or left to the repair."""
        await self._looking.finished()

    async def advance(self, stream: StreamKey, *, known: Stream | None = None, ended: Task | None = None) -> None:
        """Let the task go whose turn it is, if there is one that waits.

        Args:
            stream: which one.
            known: its record, if it was read lately; the task that has the turn is read after it in any case.
            ended: a task of it that is over, which probably has the turn.

        Raises:
            StoreError: if nobody could look; a relay or a repair has it done later.
        """
        state = known
        if ended is not None and ended.stream is not None:
            turn = Turn(ended.task_id, ended.generation, ended.stream.position)
            state = await self._pass_on(stream, turn, ended)
            if state is None:
                return
        for _ in range(_ROUNDS):
            state = await self._read(stream) if state is None else state
            turn_now = state.turn
            holder = None if turn_now is None else await self._store.get(turn_now.task_id, EVERYONE)
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
                    state = await self._pass_on(stream, turn_now, holder)
                    if state is None:
                        return
        raise StoreUnavailableError(f"The turn of stream {stream.key!r} is passed on by too many at once.")

    async def go_on(self, stream: StreamKey, state: Stream) -> bool:
        """Let a halted stream go on with the next task.

        Returns:
            Whether it was halted, and nobody was faster.

        Raises:
            StoreError: if the store cannot be asked; it may go on all the same.
        """
        if not state.is_halted:
            return False
        record = await self._store.change_record(PassTurn(stream, self._kept, state.turn, None))
        if STREAMS.content(record).turn is not None:
            return False
        await self.advance(stream)
        return True

    async def _pass_on(self, stream: StreamKey, turn: Turn | None, holder: Task | None) -> Stream | None:
        """Give the turn of a task that is over to the next one; or halt the stream, if the task says so.

        Returns:
            The stream as it is, if another task had the turn or the chosen one is over already; None: it is done.
        """
        halts = turn_state(turn, holder) is TurnState.FAILED
        after = turn if halts else await self._store.next_blocked(stream)
        if after is None:
            return None
        await failpoint.reached("stream.before_turn")
        record = await self._store.change_record(PassTurn(stream, self._kept, turn, after, halts))
        state = STREAMS.content(record)
        if state.turn != after:
            return state
        if halts:
            return None
        await failpoint.reached("stream.after_turn")
        return None if await self._let_go(after) else state

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
                    ended, told, ends = look.ended, look.told, look.ends
                    look.ended, look.told, look.ends, look.is_wanted = None, [], {}, False
                    await self.advance(stream, ended=ended)
                    self._remember(ends)
                    for then in told:
                        then()
        except StoreError as error:
            logger.info("the turn of stream %r is left to the repair: %s", stream.key, error.message)
        except Exception:
            logger.exception("the turn of stream %r is left to the repair", stream.key)
        finally:
            del self._looks[stream]

    def _remember(self, ends: dict[str, int]) -> None:
        self._done.update(ends)
        while len(self._done) > _REMEMBERED:
            self._done.popitem(last=False)
