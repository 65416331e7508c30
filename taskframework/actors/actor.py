"""What an author writes for each key."""

from __future__ import annotations

from datetime import timedelta
from typing import Generic, Protocol, TypeVar

Key = TypeVar("Key")
Event = TypeVar("Event")


class Timers(Protocol):
    """The timers of one actor, by name."""

    def set(self, name: str, after: timedelta | float) -> None:
        """Let `on_timer` be called after so much time, given as a timedelta or in seconds.

        The time of the same name that was set before is forgotten.

        A firing waits in the mailbox behind the events that came before it. If one of these sets or cancels the timer,
        the firing is an old one and is dropped.
        """
        ...

    def cancel(self, name: str) -> None:
        """Forget a timer, also if it has fired and the firing still waits in the mailbox."""
        ...


class KeyedActor(Generic[Key, Event]):
    """The state of one key, and all that is done with it.

    Its methods are called one at a time, each after the one before has ended, also where it awaits. So no lock is
    needed, and nothing else may touch the state.
    """

    def __init__(self, key: Key, timers: Timers) -> None:
        """Begin; called when the first event of a key comes."""
        self.key = key
        self.timers = timers

    async def receive(self, event: Event) -> None:
        """Take the next event."""
        raise NotImplementedError

    async def on_timer(self, name: str) -> None:
        """A timer that was set has fired, and was not set or cancelled since."""

    async def on_end(self) -> None:
        """The last call, once: the key was idle, or was closed, or everything stops. Finish what is open."""
