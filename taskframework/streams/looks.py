"""When a process looks whose turn it is in a serial stream: after it stored a task of the stream, and after it got the
event that a task of the stream ended or was queued again.

Looks at one stream follow each other, and the next look covers all events that came during the one before. If a
process dies before it has looked, the event of the task is not marked as published, so a relay brings the task here
again. A BLOCKED task also has a driver that makes some process look.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from taskframework.background import Background
from taskframework.errors import StoreError
from taskframework.model.events import TaskEvent
from taskframework.model.sequences import Sequences, identity_of
from taskframework.model.status import TaskStatus
from taskframework.model.streams import Stream, StreamKey, is_serial, stream_of
from taskframework.model.task import Task
from taskframework.streams.turns import StreamTurns

logger = logging.getLogger(__name__)

#: At how many streams this process looks at once: enough for the store to group a hundred calls while it writes others.
_MAX_CONCURRENT_STREAMS = 256


@dataclass(slots=True)
class _Look:
    """The present look at a stream, and the events of the stream that came since this look began."""

    #: A task that has ended, if the event of an end came.
    ended: Task | None = None
    #: Whether another look is needed after the present one.
    is_wanted: bool = True
    #: The functions to call after the next look.
    callbacks: list[Callable[[], None]] = field(default_factory=list)
    #: The tasks that need no further look after the next one, each with its sequence.
    covered: dict[Hashable, int] = field(default_factory=dict)
    #: The same two for the present look: the bridge may ask about a task for which this look began.
    present_callbacks: list[Callable[[], None]] = field(default_factory=list)
    present_covered: dict[Hashable, int] = field(default_factory=dict)

    def begin(self) -> Task | None:
        """Begin a look that covers all events until now; return the task that ended, if any."""
        ended, self.ended = self.ended, None
        self.present_callbacks, self.present_covered = self.callbacks, self.covered
        self.callbacks, self.covered, self.is_wanted = [], {}, False
        return ended


class StreamLooks:
    """Looks at the streams whose tasks end or are queued again in this process."""

    def __init__(self, turns: StreamTurns) -> None:
        """Prepare; in a look, `turns` passes the turn on if it is time."""
        self.turns = turns
        self._looks: dict[StreamKey, _Look] = {}
        self._places = asyncio.Semaphore(_MAX_CONCURRENT_STREAMS)
        self._background = Background()
        #: Tasks that an ended look covered, each with its sequence: the bridge asks after it has published a task.
        self._covered = Sequences()

    def on_event(self, event: TaskEvent) -> None:
        """Look soon, as a listener for tasks that end and for tasks that are queued again."""
        if event.task.stream is not None:
            self.handle_task(event.task)

    def handle_task(self, task: Task, on_done: Callable[[], None] | None = None) -> None:
        """Look soon whose turn it is in the stream of a task.

        Args:
            task: a task that ended, or that waits for its turn; any other task needs no look.
            on_done: called after the look; not called if the look fails.
        """
        stream = stream_of(task)
        if stream is None or not _needs_look(task) or self._covered.of(identity_of(task)) >= task.sequence:
            if on_done is not None:
                on_done()
            return
        look = self._looks.get(stream)
        if look is not None and look.present_covered.get(identity_of(task), 0) >= task.sequence:
            if on_done is not None:
                look.present_callbacks.append(on_done)
            return
        look = self._request_look(stream)
        if task.status.is_final:
            look.ended = task
        look.covered[identity_of(task)] = task.sequence
        if on_done is not None:
            look.callbacks.append(on_done)

    def look(self, stream: StreamKey) -> None:
        """Look soon whose turn it is in a stream, even if a look has just ended."""
        self._request_look(stream)

    async def finished(self) -> None:
        """Wait until all wanted looks are done or left to the repair."""
        await self._background.finished()

    async def look_now(self, stream: StreamKey, state: Stream, tasks: Sequence[Task]) -> None:
        """Look at once, for tasks of a stream that were just stored.

        Raises:
            StoreError: if the store failed; a relay or a repair looks later.
        """
        await self.turns.advance(stream, known=state)
        self._covered.raise_all({identity_of(task): task.sequence for task in tasks})

    def _request_look(self, stream: StreamKey) -> _Look:
        look = self._looks.get(stream)
        if look is None:
            look = self._looks[stream] = _Look()
            self._background.start(self._run_looks(stream, look), contextvars.Context())
        look.is_wanted = True
        return look

    async def _run_looks(self, stream: StreamKey, look: _Look) -> None:
        try:
            async with self._places:
                while look.is_wanted:
                    await self.turns.advance(stream, ended=look.begin())
                    self._covered.raise_all(look.present_covered)
                    for on_done in look.present_callbacks:
                        on_done()
        except StoreError as error:
            logger.info("the turn of stream %r is left to the repair: %s", stream.key, error.message)
        except Exception:
            logger.exception("the turn of stream %r is left to the repair", stream.key)
        finally:
            del self._looks[stream]


def _needs_look(task: Task) -> bool:
    """Return whether a task may have to pass its turn on, or waits for its turn."""
    return is_serial(task) and (task.status.is_final or task.status is TaskStatus.BLOCKED)
