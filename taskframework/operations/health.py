"""Whether this process can do its work, and why not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from taskframework.errors import StoreError
from taskframework.model.view import moment
from taskframework.stores.base import TaskStore


class Repair(Protocol):
    """What readiness asks a repair loop."""

    name: str
    last_run: datetime | None

    @property
    def seconds_since_success(self) -> float: ...

    @property
    def problem(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Readiness:
    """The answer of a readiness check; `checks` maps each part to "ok" or what is wrong with it."""

    ready: bool
    checks: dict[str, str]
    #: When each repair last looked: by its name, the time (None before the first look) and how many seconds ago.
    repairs: dict[str, tuple[datetime | None, float]]

    def view(self) -> dict[str, Any]:
        repairs = {
            name: {"last_run": moment(at), "seconds_ago": round(seconds, 3)}
            for name, (at, seconds) in self.repairs.items()
        }
        return {"status": "ready" if self.ready else "not ready", "checks": self.checks, "repairs": repairs}


@dataclass(slots=True)
class Health:
    """Collects what readiness depends on. A broker outage alone leaves the process ready: submissions are stored."""

    store: TaskStore
    repairs: Sequence[Repair] = ()
    #: Name and question of what must be right; the answer is None or what is wrong.
    required: list[tuple[str, Callable[[], str | None]]] = field(default_factory=list)
    #: What is only reported.
    reported: list[tuple[str, Callable[[], str | None]]] = field(default_factory=list)
    stopping: bool = False

    async def readiness(self) -> Readiness:
        checks = {"store": "ok"}
        try:
            await self.store.ping()
        except StoreError as error:
            checks["store"] = error.message
        ready = checks["store"] == "ok" and not self.stopping
        for name, problem in _ask(self.required):
            checks[name] = problem or "ok"
            ready = ready and problem is None
        for name, problem in _ask(self.reported):
            checks[name] = problem or "ok"
        if self.stopping:
            checks["process"] = "stopping"
        repairs = {repair.name: (repair.last_run, repair.seconds_since_success) for repair in self.repairs}
        return Readiness(ready, checks, repairs)


def _ask(questions: Sequence[tuple[str, Callable[[], str | None]]]) -> list[tuple[str, str | None]]:
    return [(name, question()) for name, question in questions]
