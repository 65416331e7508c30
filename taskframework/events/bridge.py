"""The bridge: internal events → external ones, per task complete and in order.

It never publishes just the event it heard. It publishes everything in the task's history above the published mark,
because another process may have heard the ones before and died. While a publication is under way, what comes in
collects into the next one.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from taskframework import failpoint
from taskframework.errors import BrokerError
from taskframework.events.external import ExternalEvent, lifecycle_event, progress_event
from taskframework.events.publisher import TaskEventPublisher
from taskframework.model.events import TaskEvent, TaskProgressEvent
from taskframework.model.marks import MarkPublished
from taskframework.model.task import Task
from taskframework.model.view import public_view
from taskframework.stores.base import TaskStore
from taskframework.stores.delayed_marks import DelayedMarks

logger = logging.getLogger(__name__)

#: Tasks in one publication round, and tasks whose events may wait; what comes beyond is left to the relay.
ROUND = 500
MAX_WAITING = 20_000
#: Seconds for what an event tells of, before the event is sent: a task that comes alone starts, and is not delayed by
#: the news of it.
_HEAD_START = 0.007
#: Under load, seconds between two rounds: the events of a short task then travel together.
_PAUSE = 0.05
#: How many tasks' own published marks are remembered, to spare duplicates before the store's mark is read again.
REMEMBERED = 50_000


@dataclass(slots=True)
class _Waiting:
    """The newest states of one task that were heard and not yet published."""

    task: Task
    progress: Task | None = None


class ExternalEventBridge:
    """Listener for every task event."""

    def __init__(self, store: TaskStore, publisher: TaskEventPublisher, source: str) -> None:
        self._store = store
        self._publisher = publisher
        self._source = source
        self._waiting: OrderedDict[str, _Waiting] = OrderedDict()
        self._marks: OrderedDict[str, int] = OrderedDict()
        self._pump: asyncio.Task[None] | None = None
        self._delayed_marks = DelayedMarks(MarkPublished, self._write_marks)

    def hear(self, event: TaskEvent) -> None:
        """Take note of a task; publication goes on by itself."""
        self.take(event.task, is_progress=isinstance(event, TaskProgressEvent))

    def take(self, task: Task, *, is_progress: bool = False) -> None:
        """Publish what is unpublished of this task. Also the relay's way in."""
        waiting = self._waiting.get(task.task_id)
        if waiting is None:
            if len(self._waiting) >= MAX_WAITING:
                return
            waiting = self._waiting[task.task_id] = _Waiting(task)
        if task.sequence >= waiting.task.sequence:
            waiting.task = task
        if is_progress:
            waiting.progress = task
        if self._pump is None:
            # In a context of its own: the pump outlives what its first task was heard in.
            self._pump = asyncio.create_task(self._run(), context=contextvars.Context())

    async def drain(self) -> None:
        """Wait until everything heard so far is published and marked, or given up on."""
        while self._pump is not None:
            await asyncio.wait([self._pump])
        await self._delayed_marks.drain()

    async def _run(self) -> None:
        try:
            await asyncio.sleep(_HEAD_START)
            while self._waiting:
                size = min(ROUND, len(self._waiting))
                await self._publish_round([self._waiting.popitem(last=False)[1] for _ in range(size)])
                if size > 1 and len(self._waiting) < ROUND:
                    await asyncio.sleep(_PAUSE)
        finally:
            self._pump = None

    async def _publish_round(self, group: list[_Waiting]) -> None:
        events = [event for waiting in group for event in self._events(waiting)]
        try:
            if events:
                await failpoint.reached("relay.before_publish")
                await self._publisher.publish(events)
        except BrokerError as error:
            # Their relay time is in the documents; going on here without the broker would only pile up.
            logger.info("%d events are left to the relay: %s", len(events), error.message)
            return
        except Exception:
            logger.exception("%d events are left to the relay", len(events))
            return
        await failpoint.reached("relay.after_confirm")
        # Also without events: what was published before may lack its mark, and would come back from the relay for ever.
        for waiting in group:
            if waiting.task.sequence > waiting.task.published_sequence:
                self._delayed_marks.add(waiting.task.task_id, self._remember(waiting.task))

    def _events(self, waiting: _Waiting) -> list[ExternalEvent]:
        task = waiting.task
        mark = self._marks.get(task.task_id, 0)
        view = public_view(task, whole=False)
        events = [
            lifecycle_event(task, entry, self._source, view) for entry in task.unpublished if entry.sequence > mark
        ]
        if (progress := waiting.progress) is not None:
            place = sum(event.sequence <= progress.sequence for event in events)
            events.insert(place, progress_event(progress, self._source))
        return events

    def _remember(self, task: Task) -> int:
        # Not simply the task's sequence: an older state may come after a newer one, and its mark in that one's place.
        mark = self._marks[task.task_id] = max(task.sequence, self._marks.pop(task.task_id, 0))
        if len(self._marks) > REMEMBERED:
            self._marks.popitem(last=False)
        return mark

    async def _write_marks(self, marks: Sequence[MarkPublished]) -> None:
        await self._store.mark(*marks)
        await failpoint.reached("relay.after_mark")
