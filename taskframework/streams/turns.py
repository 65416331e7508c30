"""Whose turn it is in a serial stream: when a task has ended, the next task gets the turn and is unblocked.

Any process may pass a turn on. If several try, one of them makes the write; the others find a turn that they did not
expect, and look again. `model/streams.py` says what is promised, `looks.py` says when a process looks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from taskframework import failpoint
from taskframework.errors import StoreUnavailableError
from taskframework.grouping import Grouping
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

#: The most rounds of looking and writing. In each lost round another process passed the turn on.
_ROUNDS = 50


@dataclass(frozen=True, slots=True)
class _Pass:
    """A turn that is to be passed on."""

    stream: StreamKey
    #: The turn as it is now; None if there was no turn yet.
    turn: Turn | None
    #: Whether no task gets the turn, because the stream halts.
    halts: bool
    #: Whether the task that had the turn was discarded: then the stream halts no more, even if no task waits.
    frees: bool


@dataclass(frozen=True, slots=True)
class _Passed:
    """The result of passing a turn on."""

    #: The next turn; None if no task waits.
    chosen: Turn | None
    #: Whether the stream has that turn now.
    is_made: bool = False


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
        self._passing: Grouping[_Pass, _Passed] = Grouping(self._pass_all, key=lambda wanted: wanted.stream)
        self._tasks = JointReads(store)

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
        for _ in range(_ROUNDS):
            state = await self._read(stream) if state is None else state
            turn_now = state.turn
            holder = None if turn_now is None else await self._tasks.get(turn_now.task_id)
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
        raise StoreUnavailableError(
            f"The turn of stream {stream.key!r} is being passed on by too many processes at once."
        )

    async def go_on(self, stream: StreamKey, state: Stream) -> bool:
        """Let a halted stream continue with the next task.

        Returns:
            Whether the stream was halted and this call let it continue.

        Raises:
            StoreError: if the store failed; the stream may still continue.
        """
        if not state.is_halted:
            return False
        record = await self._store.change_record(PassTurn(stream, self._kept, state.turn, None))
        if STREAMS.content(record).turn is not None:
            return False
        await self.advance(stream)
        return True

    async def _pass_on(self, stream: StreamKey, turn: Turn | None, holder: Task | None) -> bool:
        """Give the turn of an ended task to the next task; or halt the stream, if the outcome of the task requires it.

        Returns:
            Whether this is done. It is not if another task had the turn, or the chosen task is not BLOCKED any more.
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
        # If another process passed the turn on before, this write finds another turn and is refused.
        made = iter(await self._store.pass_turns(passes) if passes else ())
        return [
            _Passed(None) if turn is None and not each.frees else _Passed(turn, next(made))
            for each, turn in zip(wanted, chosen, strict=True)
        ]

    async def _let_go(self, turn: Turn) -> bool:
        return await self._moves.repair(Unblock(turn.task_id, turn.generation, self._dispatch_after)) is not None

    async def _read(self, stream: StreamKey) -> Stream:
        record = await read_record(self._store, stream.record_id)
        return Stream() if record is None else STREAMS.content(record)
