"""The in-process event bus: blinker signals with listeners in one visible order.

A listener is either must-succeed (awaited in order; its error reaches the publisher) or an observer (isolated: its
error is logged and counted). blinker alone is not enough: it holds receivers weakly, their order is undefined, and one
error stops all others. So each signal has a single receiver here, and the list `listeners` defines the order.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from blinker import Signal

from taskframework.background import Background
from taskframework.errors import TaskframeworkError
from taskframework.model.events import Event

logger = logging.getLogger(__name__)

E = TypeVar("E", bound=Event)
Handler = Callable[[E], Awaitable[Any] | Any]


class NoListenerError(TaskframeworkError):
    """No listener answers this request."""


@dataclass(frozen=True, slots=True)
class Listener:
    """A function and the type of event that it gets; `name` is the label in logs and metrics."""

    name: str
    event_type: type[Event]
    handle: Handler[Any]
    must_succeed: bool


class EventBus:
    """Carries internal events from the part that made them to the parts that listen."""

    def __init__(self) -> None:
        #: All listeners in the order in which they run, but must-succeed listeners run before observers.
        self.listeners: list[Listener] = []
        #: Called for each handled event: listener, event, error or None. For metrics.
        self.on_handled: Callable[[Listener, Event, Exception | None], None] | None = None
        self._signals: dict[type[Event], Signal] = {}
        self._routes: dict[type[Event], tuple[tuple[Listener, ...], tuple[Listener, ...]]] = {}
        self._running = Background()

    def listen(self, event_type: type[E], handle: Handler[E], *, name: str, must_succeed: bool = False) -> None:
        """Add a listener for a type of event and its subtypes, after all present listeners."""
        self.listeners.append(Listener(name, event_type, handle, must_succeed))
        self._routes.clear()

    def signal(self, event_type: type[Event]) -> Signal:
        """Return the blinker signal of exactly this type of event; its receivers get `event=` as keyword."""
        if event_type not in self._signals:
            self._signals[event_type] = Signal(event_type.__doc__)
            self._signals[event_type].connect(self._receive, weak=False)
        return self._signals[event_type]

    async def publish(self, event: Event) -> None:
        """Run the must-succeed listeners one after the other, then the observers.

        Raises:
            Exception: the error of the first must-succeed listener that failed; later listeners do not run.
        """
        await self._deliver(event)

    async def ask(self, request: Event) -> Any:
        """Publish a request and return what its must-succeed listener answered.

        Raises:
            NoListenerError: if there is no such listener.
        """
        answers = await self._deliver(request)
        if not answers:
            raise NoListenerError(f"No must-succeed listener hears {type(request).__name__}.")
        return answers[-1]

    async def drain(self) -> None:
        """Wait for the observers that still run."""
        await self._running.finished()

    async def _deliver(self, event: Event) -> list[Any]:
        signal = self.signal(type(event))
        if len(signal.receivers) == 1:  # only our own: a direct call saves a tenth of the cost of an event
            return await self._run_listeners(event)
        replies: list[tuple[Any, Any]] = signal.send(self, event=event)
        for receiver, reply in replies:
            if receiver == self._receive:
                return list(await reply)
        return []

    def _receive(self, _bus: object, *, event: Event) -> Awaitable[list[Any]]:
        """Run the listeners; the only receiver of each signal. A plain function, because blinker refuses coroutines."""
        return self._run_listeners(event)

    async def _run_listeners(self, event: Event) -> list[Any]:
        must_succeed, observers = self._route(type(event))
        answers = []
        for listener in must_succeed:
            try:
                answer = listener.handle(event)
                answers.append(await answer if inspect.isawaitable(answer) else answer)
            except Exception as error:
                self._handled(listener, event, error)
                raise
            self._handled(listener, event, None)
        for listener in observers:
            self._observe(listener, event)
        return answers

    def _observe(self, listener: Listener, event: Event) -> None:
        try:
            pending = listener.handle(event)
        except Exception as error:
            self._isolate(listener, event, error)
            return
        # Most observers are plain functions that return None; `isawaitable` takes as long as running them.
        if pending is not None and inspect.isawaitable(pending):
            self._running.start(self._finish(listener, event, pending))
        else:
            self._handled(listener, event, None)

    async def _finish(self, listener: Listener, event: Event, pending: Awaitable[Any]) -> None:
        try:
            await pending
        except Exception as error:
            self._isolate(listener, event, error)
        else:
            self._handled(listener, event, None)

    def _isolate(self, listener: Listener, event: Event, error: Exception) -> None:
        logger.error("listener %s failed on %s", listener.name, type(event).__name__, exc_info=error)
        self._handled(listener, event, error)

    def _handled(self, listener: Listener, event: Event, error: Exception | None) -> None:
        if self.on_handled is not None:
            self.on_handled(listener, event, error)

    def _route(self, event_type: type[Event]) -> tuple[tuple[Listener, ...], tuple[Listener, ...]]:
        route = self._routes.get(event_type)
        if route is None:
            hearing = [entry for entry in self.listeners if issubclass(event_type, entry.event_type)]
            route = (
                tuple(entry for entry in hearing if entry.must_succeed),
                tuple(entry for entry in hearing if not entry.must_succeed),
            )
            self._routes[event_type] = route
        return route
