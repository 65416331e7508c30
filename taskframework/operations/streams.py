"""Shows ordered streams, reads their results, and lets halted streams continue."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from taskframework.errors import TransitionRefusedError
from taskframework.model.query import CursorInvalidError, Page
from taskframework.model.scope import EVERYONE, Scope
from taskframework.model.stream_results import StreamResult
from taskframework.model.streams import STREAMS, Stream, StreamKey, stream_key_of
from taskframework.moves import TaskMoves
from taskframework.stores.base import TaskStore
from taskframework.streams.gaps import StreamGaps
from taskframework.streams.results import StreamResults
from taskframework.streams.turns import StreamTurns

#: How many positions are read together for results. Each may have a result of 1 MiB, and parameters of the same size.
_RESULT_PAGE_SIZE = 50
#: Seconds between two looks at a stream whose next result does not exist yet: at first, and at most.
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.05, 1.0
#: How many records one read takes for a list, and the most reads for one page: of a million streams few may be halted.
_LIST_BATCH_SIZE, _MAX_READS = 500, 10
#: User and key of a stream, as in the id of its record: a slash in one of them has three characters there.
CURSOR_PATTERN = re.compile(r"[ -.0-~]{1,1000}/[ -.0-~]{0,1000}")


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """A stream as it is now."""

    key: str
    stream: Stream
    #: How many tasks wait for their turn.
    waiting: int
    #: Whether the task that has the turn still exists and has not ended.
    is_turn_taken: bool

    def view(self) -> dict[str, Any]:
        """Return the fields of the HTTP contract."""
        turn = self.stream.turn if self.is_turn_taken or self.stream.is_halted else None
        return {
            "key": self.key,
            "mode": self.stream.mode,
            "next_position": self.stream.next_position,
            "turn": None if turn is None else {"task_id": turn.task_id, "position": turn.position},
            "waiting": self.waiting,
            "is_halted": self.stream.is_halted,
        }


@dataclass(frozen=True, slots=True)
class ListedStream:
    """A stream in a list, with the content of its record."""

    owner: StreamKey
    stream: Stream

    def view(self) -> dict[str, Any]:
        """Return the fields of the HTTP contract."""
        turn = self.stream.turn
        return {
            "key": self.owner.key,
            "user_id": self.owner.user_id,
            "mode": self.stream.mode,
            "next_position": self.stream.next_position,
            "last_turn": None if turn is None else {"task_id": turn.task_id, "position": turn.position},
            "is_halted": self.stream.is_halted,
        }


class StreamOperations:
    """Operations on streams. A `StreamKey` contains the owner of the stream, so most operations need no scope."""

    def __init__(
        self, store: TaskStore, moves: TaskMoves, turns: StreamTurns, gaps: StreamGaps, gap: timedelta
    ) -> None:
        """Prepare; `gap` has the same meaning as for `StreamResults`."""
        self._store = store
        self._turns = turns
        self._results = StreamResults(store, moves, gaps, gap)

    async def list_streams(
        self, scope: Scope, *, limit: int, cursor: str | None = None, is_halted: bool | None = None
    ) -> Page[ListedStream]:
        """Return streams in the order of user and key. A page may be short although further pages follow.

        Args:
            scope: whose streams.
            limit: the most streams of the page.
            cursor: `next_cursor` of the page before.
            is_halted: only halted streams (True), only others (False), or all (None).

        Raises:
            CursorInvalidError: if the cursor does not belong to this list.
        """
        if cursor is not None and CURSOR_PATTERN.fullmatch(cursor) is None:
            raise CursorInvalidError
        prefix = f"{STREAMS.name}/" if scope.owner is None else STREAMS.id_of(scope.owner, "")
        after = prefix if cursor is None else f"{STREAMS.name}/{cursor}"
        found: list[ListedStream] = []
        for _ in range(_MAX_READS):
            records = await self._store.list_records(STREAMS.name, limit=_LIST_BATCH_SIZE, after=after)
            readable = STREAMS.contents(records)
            for record in records:
                if not record.id.startswith(prefix):
                    return Page(tuple(found), None)
                if len(found) == limit:
                    return Page(tuple(found), after.removeprefix(f"{STREAMS.name}/"))
                after, stream = record.id, readable.get(record.id)
                if stream is not None and is_halted in (None, stream.is_halted):
                    found.append(ListedStream(stream_key_of(record.id), stream))
            if len(records) < _LIST_BATCH_SIZE:
                return Page(tuple(found), None)
        return Page(tuple(found), after.removeprefix(f"{STREAMS.name}/"))

    async def status(self, stream: StreamKey) -> StreamStatus:
        """Return the state of a stream.

        Raises:
            TaskNotFoundError: if there is no such stream.
        """
        state = await self._results.read_state(stream)
        turn = state.turn
        holder = None if turn is None else await self._store.get(turn.task_id, EVERYONE)
        is_taken = holder is not None and turn is not None and holder.generation == turn.generation
        is_live = is_taken and holder is not None and not holder.status.is_final
        return StreamStatus(stream.key, state, await self._store.count_blocked(stream), is_live)

    async def go_on(self, stream: StreamKey, *, position: int | None = None) -> StreamStatus:
        """Let a stream continue without the task that halted it.

        Args:
            stream: the stream.
            position: only if the task at this position halted it. Without it, a second call may pass over the next task
                that failed.

        Raises:
            TaskNotFoundError: if there is no such stream.
            TransitionRefusedError: if the stream is not halted, or not at this position. A call that failed halfway may
                be repeated.
        """
        state = await self._results.read_state(stream)
        held = None if state.turn is None else state.turn.position
        is_meant = position in (None, held) or not state.is_halted
        if not (is_meant and await self._turns.resume_halted(stream, state)):
            raise _refuse_to_go_on(stream, None if is_meant else position)
        return await self.status(stream)

    async def results(self, stream: StreamKey, *, limit: int, first: int = 0) -> Page[StreamResult]:
        """Return the results from a position on that are known now, in order. The cursor is the position after them;
        there is always a cursor, because a stream has no end.

        Raises:
            TaskNotFoundError: if there is no such stream.
        """
        await self._results.adopt_late(stream)
        found = (await self._results.read_ready(stream, first, limit)).results
        return Page(found, str(first + len(found)))

    async def follow_results(self, stream: StreamKey, *, first: int = 0) -> AsyncIterator[Sequence[StreamResult]]:
        """Yield the result of each position in order, as soon as this result and all before it exist or are skipped.

        The results come in parts; an empty part says that nothing is new. This never ends.

        Raises:
            TaskNotFoundError: if there is no such stream, or it was removed meanwhile.
        """
        await self._results.adopt_late(stream)
        pause = FIRST_PAUSE_SECONDS
        while True:
            # While this waits for a result, each look reads only this result and not the results after it.
            ready = await self._results.read_ready(
                stream, first, _RESULT_PAGE_SIZE if pause == FIRST_PAUSE_SECONDS else 1
            )
            yield ready.results
            first += len(ready.results)
            if ready.results:
                pause = FIRST_PAUSE_SECONDS
                continue
            left = pause if ready.due is None else (ready.due - self._store.now()).total_seconds()
            await asyncio.sleep(min(pause, max(left, 0.001)))
            pause = min(pause * 1.5, MAX_PAUSE_SECONDS)


def _refuse_to_go_on(stream: StreamKey, position: int | None) -> TransitionRefusedError:
    message = f"Stream {stream.key!r} is not halted."
    hint = "The task that has the turn has not failed, or no task is waiting."
    if position is not None:
        message = f"Stream {stream.key!r} is not halted at position {position}."
        hint = "Look at the stream again: it may have continued already."
    return TransitionRefusedError(stream.key, "continued", "not halted", message=message, hint=hint)
