"""Faults that a test puts into a running framework: a store that is unavailable, a process that is dead."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from taskframework.clock import Clock
from taskframework.errors import StoreUnavailableError
from taskframework.stores.base import TaskStore

#: Methods that work even in a dead process: they write nothing, and the test has to close the store.
_UNAFFECTED_METHODS = frozenset({"open", "close", "now"})


@dataclass(slots=True)
class Faults:
    """The faults of one process."""

    #: Whether the store is unavailable: no call reaches it.
    is_store_away: bool = False
    #: Whether the process is dead: no call reaches the store, for good, as after `kill -9`.
    is_dead: bool = False

    def check(self) -> None:
        """Fail as a call to the store would fail.

        Raises:
            StoreUnavailableError: if there is such a fault.
        """
        if self.is_dead:
            raise StoreUnavailableError("The test let this process die.")
        if self.is_store_away:
            raise StoreUnavailableError("The test took the store away.")


class FaultyStore:
    """A store with faults in front of it; in all other respects it is the store itself."""

    def __init__(self, store: TaskStore, faults: Faults) -> None:
        self._store = store
        self._faults = faults

    @classmethod
    def around(cls, store: TaskStore, faults: Faults) -> TaskStore:
        """Make a store that has these faults."""
        return cast(TaskStore, cls(store, faults))

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._store, name)
        if name in _UNAFFECTED_METHODS or not inspect.iscoroutinefunction(member):
            return member

        async def call(*args: Any, **kwargs: Any) -> Any:
            self._faults.check()
            return await member(*args, **kwargs)

        setattr(self, name, call)  # looked up once
        return call


@dataclass(frozen=True, slots=True)
class ProcessClock:
    """The clock of one process. In a dead process every lease has run out, so that no code waits for the store."""

    clock: Clock
    faults: Faults

    def now(self) -> datetime:
        return self.clock.now()

    def monotonic(self) -> float:
        return math.inf if self.faults.is_dead else self.clock.monotonic()

    async def sleep(self, seconds: float) -> None:
        await self.clock.sleep(seconds)
