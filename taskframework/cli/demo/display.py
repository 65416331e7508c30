"""What the demo shows while it runs: bars on a terminal, and a line for each file that is done."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pydantic import TypeAdapter
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from taskframework.cli.demo.digest import Digest
from taskframework.cli.output import counted, err, printable
from taskframework.model.events import TaskEvent
from taskframework.model.status import TaskStatus

_DIGEST = TypeAdapter(Digest)


class DemoDisplay:
    """Hears what happens to the tasks of these files, and shows it.

    Attributes:
        outcomes: the digest of each file, or the reason why there is none.
    """

    def __init__(self, files: Sequence[str]) -> None:
        self.outcomes: dict[str, Digest | str] = {}
        self.finished = asyncio.Event()
        self._files = frozenset(files)
        columns = (BarColumn(30), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
        self._bars = Progress(*columns, console=err(), transient=True, disable=not err().is_terminal)
        self._all = self._bars.add_task("Digesting", total=len(files))
        self._bar_of: dict[str, TaskID] = {}

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show while the context lasts; what ends after it, because of Ctrl-C, is not news any more."""
        with self._bars:
            try:
                yield
            finally:
                self.finished.set()

    def hear(self, event: TaskEvent) -> None:
        """Listener for every task event; an earlier demo that was interrupted may have left tasks of other files."""
        task, file = event.task, event.task.parameters
        if file not in self._files or self.finished.is_set():
            return
        if task.status is TaskStatus.COMPLETED:
            self.take(file, _DIGEST.validate_python(task.result))
        elif task.status.is_final:
            self.take(file, task.error.message if task.error else task.status.value)
        elif isinstance(task.progress, dict):
            if file not in self._bar_of:
                self._bar_of[file] = self._bars.add_task(printable(file), total=100)
            self._bars.update(self._bar_of[file], completed=task.progress["percent"])

    def take(self, file: str, outcome: Digest | str) -> None:
        """Note what became of a file."""
        self.outcomes[file] = outcome
        done, total = len(self.outcomes), len(self._files)
        if file in self._bar_of:
            self._bars.remove_task(self._bar_of.pop(file))
        self._bars.update(self._all, completed=done, description=f"{done:,} of {total:,}")
        said, style = f"FAILED: {outcome}", "red"
        if isinstance(outcome, Digest):
            said, style = ", ".join([counted(outcome.words, "word"), *list(outcome.frequent_words)[:3]]), ""
        line = printable(f"[{done:>{len(str(total))}}/{total}] {file}: {said}")
        self._bars.console.print(Text(line, style=style), soft_wrap=True)
        if done == total:
            self.finished.set()
