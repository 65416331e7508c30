"""The bridge: turns internal events into external events, for each task complete and in order.

It never publishes only the event that came. It publishes all events in the task's history above the published mark,
because another process may have got the events before and died. Events that come while a publication is under way
are collected for the next publication.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from taskframework import failpoint
from taskframework.clock import Clock
from taskframework.errors import BrokerError, BrokerUnavailableError
from taskframework.events.external import ExternalEvent, lifecycle_events, progress_event
from taskframework.events.publisher import TaskEventPublisher
from taskframework.model.events import TaskEvent, TaskProgressEvent
from taskframework.model.marks import MarkPublished
from taskframework.model.sequences import Sequences, identity_of
from taskframework.model.task import Task
from taskframework.stores.base import TaskStore
from taskframework.stores.delayed_marks import DelayedMarks

logger = logging.getLogger(__name__)

#: How many tasks one round publishes, and how many may wait for a round; the relay publishes all further tasks.
ROUND_SIZE = 500
MAX_WAITING_TASKS = 20_000
#: Seconds by which a publication is delayed, so that publishing the events of a task does not delay its start.
_DELAY_SECONDS = 0.007
#: Seconds between two rounds under load: so the events of a short task are in one message.
_PAUSE_SECONDS = 0.05


class Reporter(Protocol):
    """Reports the end of a task to the parent or the stream that waits for it; the part that the bridge needs."""

    def handle_task(self, task: Task, on_done: Callable[[], None]) -> None: ...

    async def finished(self) -> None: ...


@dataclass(slots=True)
class _WaitingTask:
    """The newest states of one task that came with events and are not yet published."""

    task: Task
    progress: Task | None = None


class ExternalEventBridge:
    """Listener for every task event."""

    def __init__(
        self,
        store: TaskStore,
        publisher: TaskEventPublisher,
        source: str,
        reporter: Reporter,
        looks: Reporter,
        clock: Clock,
    ) -> None:
        """Prepare.

        Args:
            store: where the marks are written.
            publisher: publishes the events.
            source: the `source` of the CloudEvents.
            reporter: reports the ends of sub-tasks to their parents.
            looks: passes the turn on in streams when their tasks end.
            clock: for the marks, which wait so that many are written together.
        """
        self._store = store
        self._reporter = reporter
        self._looks = looks
        self._publisher = publisher
        self._source = source
        self._waiting: OrderedDict[str, _WaitingTask] = OrderedDict()
        #: The last published sequence of each task; the mark in the store is written two seconds later.
        self._published = Sequences()
        self._pump: asyncio.Task[None] | None = None
        #: Set at the end of the present round; each round has its own event.
        self._round_is_over = asyncio.Event()
        self._delayed_marks = DelayedMarks(MarkPublished, self._write_marks, clock)

    def on_event(self, event: TaskEvent) -> None:
        """Take the task of an event; it is published in the background."""
        self.enqueue(event.task, is_progress=isinstance(event, TaskProgressEvent))

    def enqueue(self, task: Task, *, is_progress: bool = False) -> None:
        """Publish the unpublished events of this task soon. The relay calls this too."""
        if len(self._waiting) >= ROUND_SIZE:  # thousands may wait, and no event has the parameters
            task = task.evolve(parameters=None)
        waiting = self._waiting.get(task.task_id)
        if waiting is None:
            if len(self._waiting) >= MAX_WAITING_TASKS:
                return
            waiting = self._waiting[task.task_id] = _WaitingTask(task)
        if task.sequence >= waiting.task.sequence:
            waiting.task = task
        if is_progress:
            waiting.progress = task
        if not self._is_publishing:
            # In an empty context: the pump runs on after the request whose context it would otherwise have.
            self._pump = asyncio.create_task(self._run(), context=contextvars.Context())

    async def wait_for_room(self) -> None:
        """Wait while more tasks wait here than one round publishes, or marks are late.

        A caller that stores many thousand tasks waits here between two parts. Otherwise the last ones are not marked in
        time (`RELAY_AFTER`), and the relays publish them too. That is work that makes the next marks even later: with
        100,000 sub-tasks, the relays published 140,000 times, and a sub-task took half as much time again.
        """
        while self._is_publishing and len(self._waiting) > ROUND_SIZE:
            await self._round_is_over.wait()
        await self._delayed_marks.wait_while_late()

    async def wait_until_published(self, tasks: Iterable[Task]) -> None:
        """Wait until these tasks, just taken, are published or left to the relay. Their marks come later."""
        awaited = [self._waiting[task.task_id] for task in tasks if task.task_id in self._waiting]
        while self._is_publishing and awaited:
            await self._round_is_over.wait()
            # Compare the entries: a task that reports its progress all the time is always waiting, in a new entry.
            awaited = [entry for entry in awaited if self._waiting.get(entry.task.task_id) is entry]

    async def drain(self) -> None:
        """Wait until all events so far are published and marked, or left to the relay; for the end of the process.

        This waits for the reports and the looks too: their moves make events that are published here.
        """
        while True:
            if self._pump is not None and not self._pump.done():
                await asyncio.wait([self._pump])
            await self._reporter.finished()
            await self._looks.finished()
            if not self._is_publishing:
                break
        await self._delayed_marks.drain()

    @property
    def _is_publishing(self) -> bool:
        return self._pump is not None and not self._pump.done()  # done: cancelled before it began

    def _mark(self, task: Task) -> None:
        """Mark a task as published. The end of a sub-task is marked only when its parent knows of it. A task that may
        pass on or get the turn of its stream is marked only after a look at this turn.
        """
        # An older state may be published after a newer one, and the mark must not fall.
        mark = self._published.raise_to(identity_of(task), task.sequence)

        def add() -> None:
            self._delayed_marks.add(task.task_id, mark)

        if task.parent is None and task.stream is None:
            add()
        elif mark != task.sequence:
            return  # an older state; the newer state is marked
        elif task.stream is not None:
            self._looks.handle_task(task, add)
        elif task.status.is_final:
            self._reporter.handle_task(task, add)
        else:
            add()

    async def _run(self) -> None:
        try:
            await asyncio.sleep(_DELAY_SECONDS)
            while self._waiting:
                size = min(ROUND_SIZE, len(self._waiting))
                await self._publish_round([self._waiting.popitem(last=False)[1] for _ in range(size)])
                self._end_round()
                if size > 1 and len(self._waiting) < ROUND_SIZE:
                    await asyncio.sleep(_PAUSE_SECONDS)
        finally:
            self._pump = None
            self._end_round()

    def _end_round(self) -> None:
        self._round_is_over.set()
        self._round_is_over = asyncio.Event()

    async def _publish_round(self, waiting_tasks: list[_WaitingTask]) -> None:
        events = [event for waiting in waiting_tasks for event in self._events(waiting)]
        try:
            if events:
                await failpoint.reached("relay.before_publish")
                await self._publisher.publish(events)
        except BrokerError as error:
            # Each document says when its relay is due. Here the events would only pile up while the broker is away.
            level = logging.DEBUG if isinstance(error, BrokerUnavailableError) else logging.INFO  # the outage is logged
            logger.log(level, "events left to the relay: %d: %s", len(events), error.message)
            return
        except Exception:
            logger.exception("events left to the relay: %d", len(events))
            return
        await failpoint.reached("relay.after_confirm")
        # Mark also tasks without new events: if its mark is missing, the relay would bring a task back for ever.
        for waiting in waiting_tasks:
            if waiting.task.sequence > waiting.task.published_sequence:
                self._mark(waiting.task)

    def _events(self, waiting: _WaitingTask) -> list[ExternalEvent]:
        task = waiting.task
        mark = max(task.published_sequence, self._published.of(identity_of(task)))
        events = lifecycle_events(task, mark, self._source)
        if (progress := waiting.progress) is not None:
            place = sum(event.sequence <= progress.sequence for event in events)
            events.insert(place, progress_event(progress, self._source))
        return events

    async def _write_marks(self, marks: Sequence[MarkPublished]) -> None:
        await self._store.mark(*marks)
        await failpoint.reached("relay.after_mark")
