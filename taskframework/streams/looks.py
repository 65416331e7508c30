"""When a process looks whose turn it is in a serial stream: when it has stored, seen ended or queued anew a task of it.

Looks at one stream follow each other, and what is heard during one is covered by the next. If a process dies before it
has looked, that event of the task is not marked as published, so a relay brings the task here again; and a BLOCKED task
has a driver by which somebody looks.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from taskframework.background import Background
from taskframework.errors import StoreError
from taskframework.model.events import TaskEvent
from taskframework.model.sequences import Sequences
from taskframework.model.status import TaskStatus
from taskframework.model.streams import Stream, StreamKey, is_serial, stream_of
from taskframework.model.task import Task
from taskframework.streams.turns import StreamTurns

logger = logging.getLogger(__name__)

#: How many streams this process looks at at the same time: enough for groups of a hundred while others are under way.
_AT_ONCE = 256


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


class StreamLooks:
    """Looks at the streams of which this process hears."""

    def __init__(self, turns: StreamTurns) -> None:
        """Prepare; in a look, `turns` passes the turn on if it is time."""
        self.turns = turns
        self._looks: dict[StreamKey, _Look] = {}
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._looking = Background()
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

    async def now(self, stream: StreamKey, state: Stream, tasks: Sequence[Task]) -> None:
        """Look at once, for tasks of a stream that were just stored.

        Raises:
            StoreError: if the store failed; a relay or a repair looks later.
        """
        await self.turns.advance(stream, known=state)
        self._done.raise_all({task.task_id: task.sequence for task in tasks})

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
                    await self.turns.advance(stream, ended=look.begin())
                    self._done.raise_all(look.now_seen_to)
                    for then in look.now_told:
                        then()
        except StoreError as error:
            logger.info("the turn of stream %r is left to the repair: %s", stream.key, error.message)
        except Exception:
            logger.exception("the turn of stream %r is left to the repair", stream.key)
        finally:
            del self._looks[stream]


def _matters(task: Task) -> bool:
    """Whether a task may have to pass its turn on, or waits for its turn."""
    return is_serial(task) and (task.status.is_final or task.status is TaskStatus.BLOCKED)
