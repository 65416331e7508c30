"""Whose turn it is in a serial stream: when a task has ended, the next task gets the turn and is unblocked.

Any process may pass a turn on. If several try, one of them makes the write; the others find a turn that they did not
expect, and look again. `model/streams.py` says what is promised, `looks.py` says when a process looks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from taskframework import failpoint
from taskframework.errors import StoreUnavailableError
from taskframework.grouping import BULK_LIMIT, Grouping, together_or_alone
from taskframework.model.drivers import UNBLOCK
from taskframework.model.marks import MoveDriver
from taskframework.model.scope import EVERYONE
from taskframework.model.stream_moves import Unblock
from taskframework.model.streams import (
    STREAMS,
    PassTurn,
    Stream,
    StreamKey,
    Turn,
    TurnState,
    turn_state,
)
from taskframework.model.task import Task
from taskframework.moves import TaskMoves
from taskframework.stores.base import TaskStore
from taskframework.stores.reading import JointReads, read_record

#: How long after an operator let a stream continue a repair looks whether it does: longer than the writes take.
_RESUME_CHECK_DELAY = timedelta(seconds=10)
#: The most rounds of looking and writing. In each lost round another process passed the turn on.
_MAX_ROUNDS = 50


@dataclass(frozen=True, slots=True)
class _PassRequest:
    """A turn that is to be passed on."""

    stream: StreamKey
    #: The turn as it is now; None if there was no turn yet.
    turn: Turn | None
    #: Whether no task gets the turn, because the stream halts.
    is_halting: bool
    #: Whether the task that had the turn was discarded: then the stream is halted no more, even if no task waits.
    is_freeing: bool


@dataclass(frozen=True, slots=True)
class _PassResult:
    """The result of passing a turn on."""

    #: The next turn; None if no task waits.
    chosen: Turn | None
    #: Whether the stream has that turn now.
    has_turn: bool = False


class StreamTurns:
    """Passes on the turns of serial streams."""

    def __init__(self, store: TaskStore, moves: TaskMoves, dispatch_after: timedelta, kept: timedelta) -> None:
        """Prepare.

        Args:
            store: where the tasks and the records of their streams are.
            moves: unblocks tasks.
            dispatch_after: as in `NewTasks`.
            kept: how long the record of a stream is kept at least.
        """
        self._store = store
        self._moves = moves
        self._dispatch_after = dispatch_after
        self._kept = kept
        #: Turns of many streams that are passed on at the same time share the calls to the store.
        self._passes: Grouping[_PassRequest, _PassResult] = Grouping(
            partial(together_or_alone, self._pass_all), key=lambda request: request.stream, limit=BULK_LIMIT
        )
        self._tasks = JointReads(store)
        #: Starts the task of a turn in the worker of this process, if there is one. Gets the turn, which is already
        #: written in the stream, and the task that had the turn before; returns whether the task runs.
        self.try_start: Callable[[Turn, Task], Awaitable[bool]] | None = None

    async def advance(self, stream: StreamKey, *, known: Stream | None = None, ended: Task | None = None) -> None:
        """Unblock the task whose turn it is, if a task waits.

        Args:
            stream: the stream.
            known: the content of its record, if it was just read; the task that has the turn is read in any case.
            ended: a task of the stream that has ended, and so probably has the turn.

        Raises:
            StoreError: if the store failed; a relay or a repair looks later.
        """
        state = known
        if ended is not None and ended.stream is not None:
            turn = Turn(ended.task_id, ended.generation, ended.stream.position)
            if await self._pass_on(stream, turn, ended):
                return
            state = None
        for _ in range(_MAX_ROUNDS):
            is_new = state is None
            state = await self._read(stream) if state is None else state
            present_turn = state.turn
            holder = None if present_turn is None else await self._tasks.get(present_turn.task_id)
            match turn_state(present_turn, holder, is_halted=state.is_halted):
                case TurnState.LIVE:
                    return
                case TurnState.WAITS if present_turn is not None:
                    if await self._unblock(present_turn):
                        return
                    state = None
                case TurnState.FAILED if state.is_halted and is_new:
                    return
                case TurnState.FAILED if state.is_halted:
                    state = None  # the caller may have read it before an operator let the stream continue
                case _:
                    if await self._pass_on(stream, present_turn, holder):
                        return
                    state = None
        raise StoreUnavailableError(
            f"The turn of stream {stream.key!r} is being passed on by too many processes at once."
        )

    async def resume_halted(self, stream: StreamKey, state: Stream) -> bool:
        """Let a halted stream continue with the next task; or finish this for a call whose process died halfway.

        Returns:
            Whether this call let the stream continue: it was halted, or no task had the turn although tasks wait.

        Raises:
            StoreError: if the store failed; the stream may still continue.
        """
        if not state.is_halted:
            return await self._resume_standing(stream, state.turn)
        await self._repair_soon(stream)
        record = await self._store.change_record(PassTurn(stream, self._kept, state.turn, None))
        if STREAMS.content(record).turn is not None:
            return False
        await self.advance(stream)
        return True

    async def _resume_standing(self, stream: StreamKey, turn: Turn | None) -> bool:
        holder = None if turn is None else await self._tasks.get(turn.task_id)
        if turn_state(turn, holder) not in (TurnState.WAITS, TurnState.OVER):
            return False
        if stream not in await self._store.next_blocked([stream]):
            return False
        await self.advance(stream)
        return True

    async def _repair_soon(self, stream: StreamKey) -> None:
        """Let a repair look at a halted stream soon. If this process dies after it has let the stream continue and
        before the next task has the turn, no event makes another process look.
        """
        waiting = (await self._store.next_blocked([stream])).get(stream)
        task = None if waiting is None else await self._store.get(waiting.task_id, EVERYONE)
        if task is not None and task.unblock_at is not None:
            await self._store.apply(MoveDriver(task.task_id, UNBLOCK, task.unblock_at, _RESUME_CHECK_DELAY))

    async def _pass_on(self, stream: StreamKey, turn: Turn | None, holder: Task | None) -> bool:
        """Give the turn of an ended task to the next task; or halt the stream, if the outcome of the task requires it.

        Returns:
            Whether this is done. It is not if another task had the turn, or the chosen task is not BLOCKED any more.
        """
        is_halting = turn_state(turn, holder) is TurnState.FAILED
        is_freeing = holder is not None and holder.discarded is not None
        result = await self._passes(_PassRequest(stream, turn, is_halting, is_freeing))
        if result.chosen is None or (result.has_turn and is_halting):
            return True
        if not result.has_turn:
            return False
        await failpoint.reached("stream.after_turn")
        if holder is not None and self.try_start is not None and await self.try_start(result.chosen, holder):
            return True
        return await self._unblock(result.chosen)

    async def _pass_all(self, requests: Sequence[_PassRequest]) -> Sequence[_PassResult]:
        waiting = await self._store.next_blocked([request.stream for request in requests if not request.is_halting])
        chosen = [request.turn if request.is_halting else waiting.get(request.stream) for request in requests]
        passes = [
            PassTurn(request.stream, self._kept, request.turn, turn, request.is_halting)
            for request, turn in zip(requests, chosen, strict=True)
            if turn is not None or request.is_freeing
        ]
        await failpoint.reached("stream.before_turn")
        # If another process passed the turn on before, this write finds another turn and is refused.
        results = iter(await self._store.pass_turns(passes) if passes else ())
        return [
            _PassResult(None) if turn is None and not request.is_freeing else _PassResult(turn, next(results))
            for request, turn in zip(requests, chosen, strict=True)
        ]

    async def _unblock(self, turn: Turn) -> bool:
        return await self._moves.repair(Unblock(turn.task_id, turn.generation, self._dispatch_after)) is not None

    async def _read(self, stream: StreamKey) -> Stream:
        record = await read_record(self._store, stream.record_id)
        return Stream() if record is None else STREAMS.content(record)
