"""The live feed: one subscription to the events exchange for the whole process, fanned out to its watchers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import signal
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import orjson

from taskframework.api.refusals import RequestRefusedError
from taskframework.brokers.base import Broker
from taskframework.events.external import ExternalEvent
from taskframework.events.subscriber import EventSubscriber
from taskframework.model.scope import Scope

logger = logging.getLogger(__name__)

MAX_WATCHERS = 1000
#: How many of these watchers one caller may have, so that some are left for other callers.
MAX_WATCHERS_PER_CALLER = 500
#: The most bytes that wait for one watcher. Watchers share events, so many slow ones cost little more than one.
MAX_WAITING_BYTES = 4 * 1024 * 1024
#: Seconds that a new watcher waits for the broker. After that it begins without events, until the broker is back.
_JOIN_TIMEOUT_SECONDS = 2.0
#: Seconds between two checks whether the process stops, or the broker is away. A consumer is registered again 0.02
#: seconds after its loss at the earliest, so no loss is overlooked.
_CHECK_SECONDS = 0.02
_SAFE_FIELD = re.compile(r"[!-~]{1,300}")


def server_is_stopping() -> bool:
    """Return whether the uvicorn server that handles this process's signals is about to stop.

    uvicorn informs an application of a stop only after the last response has ended, and an event stream never ends by
    itself. uvicorn gives an application no reference to the server, but its handler of SIGTERM is a method of the
    server. To read that handler changes nothing in the process. Other servers are not recognized: they end streams
    after their grace period.
    """
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return getattr(server, "should_exit", False) is True


@dataclass(frozen=True, slots=True)
class FeedEvent:
    """An event, and the bytes of it that every watcher sends."""

    event: ExternalEvent
    frame: bytes


def sse_frame(kind: str, data: object, identifier: str | None = None) -> bytes:
    """One server-sent event; JSON has no line breaks, so the data is always one line."""
    head = f"event: {kind}\n" if identifier is None else f"id: {identifier}\nevent: {kind}\n"
    return head.encode() + b"data: " + orjson.dumps(data) + b"\n\n"


def event_frame(event: ExternalEvent) -> bytes:
    """An external event as a server-sent event."""
    return sse_frame(event.type, event.to_dict(), event.id)


class Watcher:
    """The events that one stream still has to send."""

    def __init__(
        self, scope: Scope, task_id: str | None, task_type: str | None = None, caller: str | None = None
    ) -> None:
        self.scope = scope
        self.caller = caller
        self.task_id = task_id
        self.task_type = task_type
        #: The tasks whose sub-tasks are watched, too.
        self.parents: set[str] = set()
        #: Whether no more events come, because the process stops or the reader was too slow.
        self.is_over = False
        self.has_missed_events = False
        self._waiting_events: list[FeedEvent] = []
        self._waiting_bytes = 0
        self._wake = asyncio.Event()

    def wants(self, event: ExternalEvent) -> bool:
        """Return whether an event of the watched tasks is for this watcher."""
        return self.scope.covers(str(event.data.get("user_id"))) and (
            self.task_type is None or event.data.get("task_type") == self.task_type
        )

    def put(self, event: FeedEvent) -> None:
        if self.is_over:
            return
        if self._waiting_events and self._waiting_bytes + len(event.frame) > MAX_WAITING_BYTES:
            self.has_missed_events = True
            self.end()
            return
        self._waiting_events.append(event)
        self._waiting_bytes += len(event.frame)
        self._wake.set()

    def end(self) -> None:
        """Let the stream send what waits and end."""
        self.is_over = True
        self._wake.set()

    async def take(self, seconds: float) -> list[FeedEvent]:
        """Take all waiting events; none if no event comes within so many seconds, or if the watcher is over."""
        if not self._waiting_events and not self.is_over:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
        self._wake.clear()
        events, self._waiting_events, self._waiting_bytes = self._waiting_events, [], 0
        return events


class Feed:
    """Subscribes while there are watchers; without watchers no event is read."""

    def __init__(self, broker: Callable[[], Broker], is_stopping: Callable[[], bool] = lambda: False) -> None:
        """Prepare; streams end when `is_stopping` returns true."""
        self._broker = broker
        self._is_stopping = is_stopping
        self._checking: asyncio.Task[None] | None = None
        self._subscriber: EventSubscriber | None = None
        self._watchers: defaultdict[str | None, set[Watcher]] = defaultdict(set)
        self._parent_watchers: defaultdict[str, set[Watcher]] = defaultdict(set)
        #: Watchers of all tasks that miss events while the broker is away. Only these are told: a watcher of one task
        #: finds the gap itself.
        self._deaf_watchers: set[Watcher] = set()
        self._lock = asyncio.Lock()
        self._is_closed = False

    @property
    def watcher_count(self) -> int:
        """How many watchers there are now."""
        return sum(map(len, self._watchers.values()))

    @property
    def is_over(self) -> bool:
        """Whether the process stops, so that every stream has to end."""
        return self._is_closed or self._is_stopping()

    async def join(
        self, scope: Scope, task_id: str | None = None, task_type: str | None = None, caller: str | None = None
    ) -> Watcher:
        """Begin to watch one task, all tasks of the scope, or those of a type. The watcher gets all events that
        happen after the return.

        Args:
            scope: whose tasks are watched.
            task_id: the task to watch; None for all tasks.
            task_type: watch only tasks of this type.
            caller: the name under which the watcher is counted, if callers are identified.

        Raises:
            RequestRefusedError: if there are too many watchers, or the process is stopping.
            NotRunningError: if the process has no broker.
        """
        watcher = Watcher(scope, task_id, task_type, caller)
        async with self._lock:
            subscriber = await self._subscribe(caller)
            self._watchers[task_id].add(watcher)
        try:
            await subscriber.listening(_JOIN_TIMEOUT_SECONDS)
        except TimeoutError:
            if task_id is None:
                self._deaf_watchers.add(watcher)
        except BaseException:
            await self.leave(watcher)
            raise
        return watcher

    def watch_subtasks(self, watcher: Watcher, task_id: str) -> None:
        """Let a watcher that has joined also get the events of a task's sub-tasks."""
        watcher.parents.add(task_id)
        self._parent_watchers[task_id].add(watcher)

    def unwatch_subtasks(self, watcher: Watcher, task_id: str) -> None:
        watcher.parents.discard(task_id)
        self._parent_watchers[task_id].discard(watcher)
        if not self._parent_watchers[task_id]:
            del self._parent_watchers[task_id]

    async def leave(self, watcher: Watcher) -> None:
        """Stop watching. When the last watcher leaves, the subscription ends."""
        watcher.end()
        self._deaf_watchers.discard(watcher)
        for task_id in tuple(watcher.parents):
            self.unwatch_subtasks(watcher, task_id)
        async with self._lock:
            self._watchers[watcher.task_id].discard(watcher)
            if not self._watchers[watcher.task_id]:
                del self._watchers[watcher.task_id]
            if not self._watchers:
                await self._unsubscribe()

    async def close(self) -> None:
        """End all streams; no new streams begin."""
        self._is_closed = True
        async with self._lock:
            self._end_streams()
            await self._unsubscribe()

    def _end_streams(self) -> None:
        for group in self._watchers.values():
            for watcher in group:
                watcher.end()

    async def _check(self, subscriber: EventSubscriber) -> None:
        """End streams when the process stops, and those that missed events when the broker is back."""
        was_live = False
        while not self._is_stopping():  # a stop is not reported, and neither is a loss of the broker
            is_live = subscriber.is_live
            if is_live:
                self._end_deaf_streams()
            elif was_live:
                self._deaf_watchers.update(self._watchers.get(None, ()))
            was_live = is_live
            await asyncio.sleep(_CHECK_SECONDS)
        self._end_streams()

    def _end_deaf_streams(self) -> None:
        while self._deaf_watchers:
            watcher = self._deaf_watchers.pop()
            watcher.has_missed_events = True
            watcher.end()

    async def _subscribe(self, caller: str | None) -> EventSubscriber:
        broker = self._broker()  # first, because a process that never ran has another error than one that stops
        if self.is_over:
            raise RequestRefusedError("The process is stopping.", hint="Connect again in a moment.", code="stopping")
        if self.watcher_count >= MAX_WATCHERS:
            raise _too_many(f"{MAX_WATCHERS} event streams are already open.")
        of_caller = sum(one.caller == caller for group in self._watchers.values() for one in group)
        if caller is not None and of_caller >= MAX_WATCHERS_PER_CALLER:
            raise _too_many(
                f"{MAX_WATCHERS_PER_CALLER} event streams of this caller are already open, the limit for one caller."
            )
        if self._subscriber is None:
            subscriber = EventSubscriber(broker)
            subscriber.on()(self._distribute)
            self._subscriber = await subscriber.__aenter__()
            self._checking = asyncio.create_task(self._check(subscriber))
        return self._subscriber

    async def _unsubscribe(self) -> None:
        if self._checking is not None:
            self._checking.cancel()
        if self._subscriber is not None:
            subscriber, self._subscriber = self._subscriber, None
            await subscriber.__aexit__(None, None, None)

    def _distribute(self, event: ExternalEvent) -> None:
        watching = [*self._watchers.get(None, ()), *self._watchers.get(event.task_id, ())]
        if (parent := event.data.get("parent_task_id")) is not None:
            watching += self._parent_watchers.get(str(parent), ())
        watchers = [watcher for watcher in watching if watcher.wants(event)]
        if not watchers:
            return
        # Anybody may publish on the exchange. A line break in one of these texts would begin a foreign field in the
        # stream.
        if not all(_SAFE_FIELD.fullmatch(str(text)) for text in (event.id, event.type)):
            logger.warning("an event with id %.100r and type %.100r is not passed on", event.id, event.type)
            return
        feed_event = FeedEvent(event, event_frame(event))
        for watcher in watchers:
            watcher.put(feed_event)


def _too_many(message: str) -> RequestRefusedError:
    hint = "Close some, or watch all tasks with one stream of /api/v1/events."
    return RequestRefusedError(message, hint=hint, code="too_many_streams")
