"""The class that an author extends for the work of one key, and its timers."""

from __future__ import annotations

from datetime import timedelta
from typing import Generic, Protocol, TypeVar

Key = TypeVar("Key")
Event = TypeVar("Event")


class Timers(Protocol):
    """The timers of one actor, by name."""

    def set(self, name: str, after: timedelta | float) -> None:
        """Let `on_timer` be called after a time, which is given as a timedelta or in seconds.

        A timer of the same name that was set before is replaced.

        A firing waits in the mailbox behind the events that came before it. If one of these events sets or cancels the
        timer, the firing is out of date and is dropped.
        """
        ...

    def cancel(self, name: str) -> None:
        """Cancel a timer, even if it has fired and the firing still waits in the mailbox."""
        ...


class KeyedActor(Generic[Key, Event]):
    """The state of one key, and all work on it.

    Its methods are called one at a time: each call begins after the previous one has ended, even if that one awaits. So
    no lock is needed, but nothing else may touch the state.
    """

    def __init__(self, key: Key, timers: Timers) -> None:
        """Make the actor; called when the first event of a key comes."""
        self.key = key
        self.timers = timers

    async def receive(self, event: Event) -> None:
        """Take the next event."""
        raise NotImplementedError

    async def on_timer(self, name: str) -> None:
        """React to a timer that has fired, and was not set or cancelled since then."""

    async def on_end(self) -> None:
        """Finish all open work: the last call, made once, when the key is idle or closed, or when all actors stop."""
