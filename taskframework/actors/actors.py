"""All actors of a program: find the actor of a key, make it when it is needed, and end it when it is idle."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from types import TracebackType
from typing import Generic, Self, TypeVar

from taskframework.actors.actor import KeyedActor, Timers
from taskframework.actors.mailbox import End, Firing, Mailbox, MailboxTimers
from taskframework.background import Background, is_failure
from taskframework.clock import Clock, SystemClock, in_seconds
from taskframework.errors import TaskframeworkError

logger = logging.getLogger(__name__)

Key = TypeVar("Key")
Event = TypeVar("Event")

#: The name of the timer for idleness. No actor gives this name to its own timers.
_IDLE_TIMER = "\0idle"


class ActorsStoppedError(TaskframeworkError):
    """The actors were stopped and take no more events."""

    hint = "Stop the senders of events before the actors."


class ActorWaitsForItselfError(TaskframeworkError):
    """The actor gave itself an event, but its mailbox is full or closed, and only the actor could change that."""

    hint = "Handle the event at once, or keep it in the actor until later."


class KeyedActors(Generic[Key, Event]):
    """The actors by their keys: events of different keys are handled concurrently, events of one key in order.

    ::

        async with KeyedActors(Session, mailbox=100) as sessions:
            await sessions.tell("session-1", Chunk(b"..."))
    """

    def __init__(
        self,
        make: Callable[[Key, Timers], KeyedActor[Key, Event]],
        *,
        mailbox: int = 100,
        idle_after: timedelta | float = timedelta(minutes=5),
        clock: Clock | None = None,
    ) -> None:
        """Make an empty set; nothing runs yet.

        Args:
            make: makes the actor of a key, such as its class.
            mailbox: events that may wait for one actor.
            idle_after: an actor ends after this time without events and without timers that are set; a timedelta, or
                seconds.
            clock: the clock; tests give their own.

        Raises:
            ValueError: if the mailbox has no room, or the time is not above zero.
            TypeError: if `make` is a class with a method that is not `async`, or no function at all.
        """
        if not callable(make):
            raise TypeError(f"give the class of the actors, or a function that makes one, not a {type(make).__name__}")
        for name in ("receive", "on_timer", "on_end") if isinstance(make, type) else ():
            if not inspect.iscoroutinefunction(getattr(make, name, None)):
                raise TypeError(f"{make.__qualname__}.{name} must be an `async def`")
        if mailbox < 1:
            raise ValueError(f"mailbox must be 1 or more, not {mailbox}: no event could ever be delivered")
        if in_seconds(idle_after) <= 0:
            raise ValueError(f"idle_after must be a time above zero, not {idle_after!r}")
        self._make_actor = make
        self._mailbox_size = mailbox
        self._idle_after = idle_after
        self._clock = clock or SystemClock()
        self._running: dict[Key, _RunningActor[Key, Event]] = {}
        self._tasks = Background()
        self._is_stopped = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def __len__(self) -> int:
        return len(self._running)

    def __iter__(self) -> Iterator[Key]:
        """The keys that have an actor now."""
        return iter([*self._running])

    async def tell(self, key: Key, event: Event) -> None:
        """Give an event to the actor of a key. Wait while its mailbox is full, so that the sender slows down.

        Events of one sender arrive in the order of its calls.

        Raises:
            ActorsStoppedError: after `stop`.
            ActorWaitsForItselfError: if an actor would wait for room in its own mailbox.
        """
        while True:
            running = self._get_or_start(key)
            if running.is_calling and not running.mailbox.has_room:
                raise ActorWaitsForItselfError
            if await running.mailbox.put(event):
                return
            await running.ended.wait()

    async def close(self, key: Key) -> None:
        """End the actor of a key after its waiting events, and wait for its `on_end`. Without an actor, do nothing.

        An actor may close itself; then the call does not wait.
        """
        if (running := self._running.get(key)) is not None:
            running.mailbox.close()
            if not running.is_calling:
                await running.ended.wait()

    async def stop(self) -> None:
        """Take no more events, let every actor handle its waiting events, and end all actors.

        An actor may call this too; then the call does not wait.
        """
        self._is_stopped = True
        for running in self._running.values():
            running.mailbox.close()
        if not any(running.is_calling for running in self._running.values()):
            await self._tasks.finished()

    def _get_or_start(self, key: Key) -> _RunningActor[Key, Event]:
        if self._is_stopped:
            raise ActorsStoppedError
        running = self._running.get(key)
        if running is None:
            running = self._running[key] = _RunningActor(
                key, self._make_actor, self._mailbox_size, self._idle_after, self._clock
            )
            self._tasks.start(self._run(key, running))
        return running

    async def _run(self, key: Key, running: _RunningActor[Key, Event]) -> None:
        try:
            await running.run()
        finally:
            del self._running[key]
            running.ended.set()


class _RunningActor(Generic[Key, Event]):
    """One actor with its mailbox, its timers and the task that calls it."""

    def __init__(
        self,
        key: Key,
        make: Callable[[Key, Timers], KeyedActor[Key, Event]],
        mailbox: int,
        idle_after: timedelta | float,
        clock: Clock,
    ) -> None:
        self._key = key
        self.mailbox = Mailbox[Event](mailbox)
        #: Set when the actor has ended; then the key may get another actor.
        self.ended = asyncio.Event()
        self._timers = MailboxTimers(clock, self.mailbox.put_firing)
        self._idle_after = idle_after
        self._actor = make(key, self._timers)
        #: The asyncio task that calls the actor.
        self._caller: asyncio.Task[object] | None = None

    @property
    def is_calling(self) -> bool:
        """Whether the present asyncio task is the one that calls this actor: waiting for its end would take forever."""
        return self._caller is not None and self._caller is asyncio.current_task()

    async def run(self) -> None:
        """Call the actor until it ends. If this asyncio task is cancelled, such as by the actor itself, it ends too."""
        self._caller = asyncio.current_task()
        self._timers.set(_IDLE_TIMER, self._idle_after)
        try:
            while (item := await self.mailbox.next()) is not End.END:
                if isinstance(item, Firing):
                    await self._handle_firing(item)
                else:
                    self._timers.set(_IDLE_TIMER, self._idle_after)
                    await self._call(self._actor.receive, item)
        finally:
            if lost := self.mailbox.discard():
                logger.error("the asyncio task of the actor of %r was cancelled; events lost: %d", self._key, lost)
            await self._timers.stop()
            await self._call(self._actor.on_end)

    async def _handle_firing(self, firing: Firing) -> None:
        if not self._timers.take(firing) or self.mailbox.is_closed:
            return
        if firing.name != _IDLE_TIMER:
            self._timers.set(_IDLE_TIMER, self._idle_after)
            await self._call(self._actor.on_timer, firing.name)
        elif self.mailbox.is_empty and not self._timers.is_any_set(except_for=_IDLE_TIMER):
            self.mailbox.close()  # nothing was awaited since the check, so no event came in between
        else:
            self._timers.set(_IDLE_TIMER, self._idle_after)

    async def _call(self, method: Callable[..., Awaitable[None]], *args: object) -> None:
        """Call a method. An error is logged and the actor continues: it knows best which of its state is right."""
        try:
            await method(*args)
        except BaseException as error:
            if not is_failure(error):
                raise
            logger.exception("the actor of %r failed and continues", self._key)
