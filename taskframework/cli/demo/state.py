"""How far the demo is, as its listener on the event bus hears it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pydantic import TypeAdapter

from taskframework.cli.demo.digest import Digest
from taskframework.model.events import TaskEvent
from taskframework.model.status import TaskStatus
from taskframework.model.task import Task

_DIGEST = TypeAdapter(Digest)
_REFUSED = "REFUSED"
#: Of a file that no task was made for, because it holds data.
SKIPPED = "SKIPPED"


@dataclass(frozen=True, slots=True)
class FileOutcome:
    """What became of a file: its digest, or the reason why there is none."""

    file: str
    status: str
    digest: Digest | None = None
    reason: str = ""


@dataclass(slots=True)
class Running:
    """A file that is being digested."""

    file: str
    percent: float | None = None
    step: str = ""


class DemoState:
    """Counts what is done. Its listener runs in the event loop; anybody may look."""

    def __init__(self, files: Iterable[str], on_outcome: Callable[[FileOutcome], None]) -> None:
        """Begin with nothing done; `on_outcome` is told about each file that is."""
        self._files = frozenset(files)
        self.outcomes: dict[str, FileOutcome] = {}
        self.running: dict[str, Running] = {}
        self.finished = asyncio.Event()
        self._on_outcome = on_outcome

    @property
    def total(self) -> int:
        return len(self._files)

    @property
    def failed(self) -> int:
        return sum(outcome.digest is None for outcome in self.outcomes.values())

    def hear(self, event: TaskEvent) -> None:
        """Listener for every task event."""
        task = event.task
        if task.parameters["path"] not in self._files:  # left over from an earlier demo that was interrupted
            return
        if task.status.is_final:
            self.running.pop(task.task_id, None)
            self._take(_outcome_of(task))
        elif task.status is TaskStatus.RUNNING:
            running = self.running.setdefault(task.task_id, Running(task.parameters["path"]))
            if isinstance(task.progress, dict):
                running.percent, running.step = task.progress["percent"], task.progress["step"]

    def refuse(self, file: str, reason: str) -> None:
        """Note a file whose task was not accepted."""
        self._take(FileOutcome(file, _REFUSED, reason=reason))

    def _take(self, outcome: FileOutcome) -> None:
        self.outcomes[outcome.file] = outcome
        self._on_outcome(outcome)
        if len(self.outcomes) == self.total:
            self.finished.set()


def _outcome_of(task: Task) -> FileOutcome:
    file = task.parameters["path"]
    if task.status is TaskStatus.COMPLETED:
        return FileOutcome(file, task.status.value, _DIGEST.validate_python(task.result))
    return FileOutcome(file, task.status.value, reason=task.error.message if task.error else "no reason given")
