"""Whether this process can do its work, and why not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from taskframework.errors import StoreError
from taskframework.model.records import Record
from taskframework.model.view import format_time
from taskframework.stores.base import TaskStore

#: A record that never exists. To delete it changes nothing, but a database refuses this to a user that may not write.
_NO_RECORD = Record("readiness", "readiness", {}, revision="none")
#: Seconds that this write may take. A slow one is no problem here: while replicas lag, other writes succeed late too,
#: and a probe must be answered in time.
_WRITE_SECONDS = 2.0


class Repair(Protocol):
    """The part of a repair loop that readiness needs."""

    name: str
    last_run: datetime | None

    @property
    def interval(self) -> float: ...

    @property
    def seconds_since_success(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Readiness:
    """The answer of a readiness check; `checks` maps each part to "ok" or to its problem."""

    ready: bool
    checks: dict[str, str]
    #: When the last look of each repair succeeded: by its name, the time (null before), how many seconds ago, and the
    #: planned pause.
    repairs: dict[str, dict[str, str | float | None]]

    def view(self) -> dict[str, Any]:
        return {"status": "ready" if self.ready else "not ready", "checks": self.checks, "repairs": self.repairs}


@dataclass(slots=True)
class Health:
    """Collects the checks of readiness. If only the broker is away, the process is ready: submissions are stored."""

    store: TaskStore
    repairs: Sequence[Repair] = ()
    #: The checks that decide: each a name, and a function that returns None or the problem.
    required: list[tuple[str, Callable[[], str | None]]] = field(default_factory=list)
    #: The checks that are only reported, in the same form; they may give details of a required check.
    reported: list[tuple[str, Callable[[], str | None]]] = field(default_factory=list)
    stopping: bool = False

    async def readiness(self) -> Readiness:
        checks = {"store": "ok"}
        try:
            await self.store.ping()
            # A ping also succeeds if this user may not read or not write.
            await self.store.read_records([_NO_RECORD.id])
            with suppress(TimeoutError):
                async with asyncio.timeout(_WRITE_SECONDS):
                    await self.store.delete_records([_NO_RECORD])
        except StoreError as error:
            checks["store"] = error.message
        checks |= {name: question() or "ok" for name, question in self.required}
        ready = not self.stopping and set(checks.values()) == {"ok"}
        checks |= {name: question() or "ok" for name, question in self.reported}
        if self.stopping:
            checks["process"] = "stopping"
        repairs: dict[str, dict[str, str | float | None]] = {
            repair.name: {
                "last_run": format_time(repair.last_run),
                "seconds_ago": round(repair.seconds_since_success, 3),
                "every_seconds": repair.interval,
            }
            for repair in self.repairs
        }
        return Readiness(ready, checks, repairs)
