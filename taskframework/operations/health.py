"""Whether this process can do its work, and why not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from taskframework.errors import StoreError
from taskframework.stores.base import TaskStore


@dataclass(frozen=True, slots=True)
class Readiness:
    """The answer of a readiness check; `checks` maps each part to "ok" or what is wrong with it."""

    ready: bool
    checks: dict[str, str]

    def view(self) -> dict[str, Any]:
        return {"status": "ready" if self.ready else "not ready", "checks": self.checks}


@dataclass(slots=True)
class Health:
    """Collects what readiness depends on. A broker outage alone leaves the process ready: submissions are stored."""

    store: TaskStore
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
        return Readiness(ready, checks)


def _ask(questions: Sequence[tuple[str, Callable[[], str | None]]]) -> list[tuple[str, str | None]]:
    return [(name, question()) for name, question in questions]
