"""The subscriber: how another program receives external events, typed, in order and without duplicates."""

from __future__ import annotations

import asyncio
import difflib
import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import timedelta
from typing import Self

from taskframework.brokers.base import Broker, Consumption, EventNotHandledError, ExternalMessage
from taskframework.clock import in_seconds
from taskframework.errors import ConfigurationError, MessageUnreadableError, NotRunningError
from taskframework.events.external import PREFIX, TYPES, ExternalEvent, read_events
from taskframework.events.http import HttpEvents, NobodyListensError
from taskframework.model.sequences import Sequences

logger = logging.getLogger(__name__)

Handle = Callable[[ExternalEvent], Awaitable[None] | None]

#: For how many tasks the last sequence is remembered. A duplicate that comes after as many other tasks is not noticed.
MAX_REMEMBERED_TASKS = 100_000


class EventSubscriber:
    """Receives the events of one installation.

    Use it as a context manager with handlers, or as an iterator::

        async with event_subscriber("amqp://localhost", queue="billing") as subscriber:
            async for event in subscriber:
                print(event.type, event.task_id)

    Delivery is at least once: a handler that raises gets the message again. If a loop is left in the middle, the next
    loop or handler gets the message again. Without a handler or a loop, events wait. Duplicates of lifecycle events are
    dropped by sequence, as long as this subscriber exists.
    """

    def __init__(self, broker: Broker | HttpEvents, *, queue: str | None = None, owns_broker: bool = False) -> None:
        """Prepare to listen.

        Args:
            broker: where the events are: a broker, or the HTTP interface of a process.
            queue: name of a durable queue that collects events while nobody listens. Subscribers with the same name
                share its events. Without a name, this receives only the events that happen while it listens.
            owns_broker: whether the broker is opened and closed together with the subscription.
        """
        self._broker = broker
        self._queue = queue
        self._owns_broker = owns_broker
        self._handlers: list[tuple[str | None, Handle]] = []
        self._last_sequences = Sequences(MAX_REMEMBERED_TASKS)
        self._consumption: Consumption | None = None
        #: Set while a handler or a loop listens, and after the subscription has ended: then events need not wait.
        self._can_deliver = asyncio.Event()
        self._is_closed = False
        #: What the loops wait for; None ends a loop.
        self._loops: set[asyncio.Queue[tuple[ExternalEvent, asyncio.Future[None]] | None]] = set()

    def on(self, *types: str) -> Callable[[Handle], Handle]:
        """Make a decorator: its function is called for these types (`task.completed`, or short `completed`), or for all
        events if no type is given.

        Raises:
            ConfigurationError: if there is no such type.
        """
        wanted: list[str | None] = [_full_type(name) for name in types]

        def register(handle: Handle) -> Handle:
            self._handlers.extend((name, handle) for name in wanted or [None])
            self._can_deliver.set()
            return handle

        return register

    async def __aenter__(self) -> Self:
        if self._owns_broker:
            await self._broker.open()
        self._is_closed = False
        if not self._handlers:
            self._can_deliver.clear()
        self._consumption = self._broker.subscribe(self._receive, durable_name=self._queue)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_closed = True
        self._can_deliver.set()
        try:
            if self._consumption is not None:
                await self._consumption.stop()
        finally:
            for events in self._loops:
                events.put_nowait(None)
            if self._owns_broker:
                await self._broker.close()

    @property
    def is_live(self) -> bool:
        """Whether the broker delivers events here now. Earlier events come only with a durable queue."""
        return self._consumption is not None and self._consumption.is_live

    async def listening(self, timeout: timedelta | float = 10.0) -> None:
        """Wait until events are being delivered.

        Args:
            timeout: longest time to wait, in seconds or as a timedelta.

        Raises:
            TimeoutError: if it takes longer.
        """
        async with asyncio.timeout(in_seconds(timeout)):
            while not self.is_live:  # noqa: ASYNC110 - the port tells a state, and this runs once at start
                await asyncio.sleep(0.02)

    async def __aiter__(self) -> AsyncGenerator[ExternalEvent, None]:
        if self._consumption is None or self._is_closed:
            raise NotRunningError("The subscriber receives nothing.", hint="Iterate inside `async with subscriber:`.")
        events: asyncio.Queue[tuple[ExternalEvent, asyncio.Future[None]] | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        async def hand_over(event: ExternalEvent) -> None:
            if entry not in self._handlers:  # the loop was left while another handler had the event
                return
            taken = loop.create_future()
            events.put_nowait((event, taken))
            await taken  # acknowledged when the loop body asks for the next event

        entry: tuple[str | None, Handle] = (None, hand_over)
        self._handlers.append(entry)
        self._loops.add(events)
        self._can_deliver.set()
        present: asyncio.Future[None] | None = None
        try:
            while (received := await events.get()) is not None:
                event, present = received
                yield event
                if not present.done():  # else the subscription has ended meanwhile, and nobody waits for this
                    present.set_result(None)
        finally:
            self._handlers.remove(entry)
            self._loops.remove(events)
            if not self._handlers and not self._is_closed:
                self._can_deliver.clear()
            # The present event when the loop was left, and all events after it, go back to the broker.
            unfinished = [present] if present is not None else []
            while not events.empty():
                if (waiting := events.get_nowait()) is not None:
                    unfinished.append(waiting[1])
            for taken in unfinished:
                if not taken.done():
                    taken.set_exception(NobodyListensError())

    async def _receive(self, message: ExternalMessage) -> None:
        try:
            events = read_events(message)
        except MessageUnreadableError as error:
            logger.warning("passed over on the events exchange: %s", error.message)
            return
        for event in events:
            if self._is_new(event):
                await self._handle(event)
                if event.progress_revision is None:
                    self._last_sequences.raise_to(_identity_of(event), event.sequence)

    async def _handle(self, event: ExternalEvent) -> None:
        # A message carries many events; a loop that is left after one of them has not seen the others.
        await self._can_deliver.wait()
        if not self._handlers:
            raise NobodyListensError
        for wanted, handle in list(self._handlers):
            if wanted is None or wanted == event.type:
                try:
                    pending = handle(event)
                    if inspect.isawaitable(pending):
                        await pending
                except NobodyListensError:
                    raise
                except Exception as error:
                    name = getattr(handle, "__qualname__", type(handle).__qualname__)
                    raise EventNotHandledError(f"{name} failed for {event.type} {event.id}") from error

    def _is_new(self, event: ExternalEvent) -> bool:
        return event.progress_revision is not None or event.sequence > self._last_sequences.of(_identity_of(event))


def _identity_of(event: ExternalEvent) -> tuple[str, str]:
    """As `identity_of` the task of the event; the time is missing in the events of other programs."""
    return event.task_id, str(event.data.get("created_at"))


def _full_type(name: object) -> str:
    if not isinstance(name, str):
        raise ConfigurationError(
            f"The type of an event is a text, not {name!r:.100}.",
            hint='Write @subscriber.on("completed", "failed"), or @subscriber.on() for all events.',
        )
    if (short := name.removeprefix(PREFIX)) in TYPES:
        return PREFIX + short
    near = difflib.get_close_matches(short, TYPES, 1)
    raise ConfigurationError(
        f"There is no event {name!r:.100}; there are {', '.join(TYPES)}.",
        hint=(f"Did you mean {near[0]!r}? " if near else "")
        + "To receive a type of a newer release, use on() without types, and compare event.type.",
    )
