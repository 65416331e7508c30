"""Runs the demo's tasks on the embedded broker and store, and shows their progress."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from rich.logging import RichHandler
from rich.text import Text

from taskframework.cli.demo.library import DigestDocument, Digested, DigestLibrary, Library
from taskframework.cli.output import err, note, printable, run, say
from taskframework.cli.watching import follow
from taskframework.errors import TaskframeworkError
from taskframework.model.events import TaskEvent
from taskframework.model.status import TaskStatus
from taskframework.model.task import Task
from taskframework.model.wording import duration_text, pluralize
from taskframework.observability import task_log
from taskframework.runtime import TaskFramework
from taskframework.settings import Settings

#: Threads that read and digest. More than processors, because reading waits for disks.
_THREADS = 16


def digest_and_report(paths: Sequence[Path], files: int, store: Path, output: Path) -> None:
    """Digest the given files, by tasks in their own store; show the progress and the result.

    Raises:
        StoreError: if the store fails.
        TaskframeworkError: if the report cannot be written, or if no file could be digested.
    """
    handler = RichHandler(console=err(), show_time=False, show_path=False)
    handler.addFilter(lambda record: record.name != task_log.logger.name)  # the display shows each task
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[handler], force=True)
    note(f"{pluralize(files, 'sub-task')}, one per file, on the embedded broker and SQLite")
    started = time.monotonic()
    library = Library(paths=[str(path) for path in paths], report=str(output))
    task = run(_run_tasks(store, library, Display(files)))
    if task.error is not None:
        raise TaskframeworkError(task.error.message)
    digested = Digested.model_validate(task.result)
    seconds = time.monotonic() - started
    took = f"{pluralize(files, 'file')} in {duration_text(seconds)}"
    say(f"{took}: {digested.completed:,} completed, {digested.failed:,} failed.")
    say(f"Report: {output}")
    if not digested.completed:
        raise TaskframeworkError("No file could be digested.", hint=f"{output} says of each file why.")


async def _run_tasks(store: Path, library: Library, display: Display) -> Task:
    settings = {
        "store": {"url": f"sqlite:///{store}"},
        "worker": {"concurrency": _THREADS, "max_threads": _THREADS},
        "shutdown": {"await_termination_timeout": "0s"},
    }
    framework = TaskFramework(Settings.model_validate(settings))
    framework.register(DigestDocument)
    framework.register(DigestLibrary)
    async with framework.running(worker=True):
        framework.services.bus.listen(TaskEvent, display.on_event, name="demo")
        handle = await framework.submit(DigestLibrary, library, correlation_id=display.correlation_id)
        return await follow(handle, None, lambda _: display.show())


class Display:
    """Hears the events of the sub-tasks, and prints a line for each finished file; `follow` shows everything else."""

    def __init__(self, files: int) -> None:
        # Sub-tasks have the correlation id of their parent. Others may be left from a demo that was interrupted.
        self.correlation_id = str(uuid.uuid4())
        self._files = files
        self._done = 0
        self._lines: list[Text] = []

    def on_event(self, event: TaskEvent) -> None:
        """Listener for every task event."""
        task = event.task
        if task.parent is None or not task.status.is_final or task.correlation_id != self.correlation_id:
            return
        self._done += 1
        text, style = f"FAILED: {task.error.message if task.error else task.status.value}", "red"
        if task.status is TaskStatus.COMPLETED and isinstance(digest := task.result, dict):
            text, style = ", ".join([pluralize(digest["words"], "word"), *list(digest["frequent_words"])[:3]]), ""
        line = printable(f"[{self._done:>{len(str(self._files))}}/{self._files}] {task.parameters}: {text}")
        self._lines.append(Text(line, style=style))

    def show(self) -> None:
        """Print the new lines."""
        console, lines, self._lines = err(), self._lines, []
        for line in lines:
            console.print(line, soft_wrap=True)
