"""The demo's work: a task for each file on the embedded broker and store, and what came of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from pathlib import Path

from rich.logging import RichHandler

from taskframework.cli.demo.digest import Digest, digest, read_text
from taskframework.cli.demo.display import DemoDisplay
from taskframework.cli.demo.report import write_report
from taskframework.cli.output import counted, err, note, run, say
from taskframework.errors import ValueNotStorableError
from taskframework.model.events import TaskEvent
from taskframework.observability import task_log
from taskframework.runtime import TaskFramework
from taskframework.settings import Settings
from taskframework.submission.service import SubmitRequest
from taskframework.tasks.context import TaskContext
from taskframework.tasks.executable import BackgroundTaskExecutable
from taskframework.tasks.options import TaskOptions

#: Threads that read and digest. More than processors, since reading waits for disks.
_THREADS = 16
#: Seconds without an end after which we look whether the store still answers.
_PATIENCE = 5.0


class DigestDocument(BackgroundTaskExecutable[str, Digest]):
    """Reads a text file, whose path is the parameter, and digests it: a plain function, so it runs in a thread."""

    task_type = "digest-document"
    options = TaskOptions(max_attempts=1)  # what cannot be read now will not be readable a moment later

    def execute(self, context: TaskContext[str]) -> Digest:
        text = read_text(Path(context.parameters))
        return digest(text, lambda share: context.update_progress_soon({"percent": round(100 * share)}))


def digest_and_report(files: Sequence[Path], store: Path, output: Path) -> None:
    """Digest the files with the tasks in a store of their own, write the report, and tell how it went.

    Raises:
        OSError: if the report cannot be written.
        StoreError: if the store fails.
    """
    handler = RichHandler(console=err(), show_time=False, show_path=False)
    handler.addFilter(lambda record: record.name != task_log.logger.name)  # the display tells of each task
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[handler], force=True)
    names = [str(file) for file in files]
    tasks = counted(len(names), "task")
    note(f"{tasks}, one a file, on the embedded broker and SQLite")
    display, started = DemoDisplay(names), time.monotonic()
    run(_digest_all(store, names, display))
    seconds = time.monotonic() - started
    write_report({name: display.outcomes[name] for name in names}, output)
    failed = sum(isinstance(outcome, str) for outcome in display.outcomes.values())
    say(f"{tasks} in {seconds:.1f} s: {len(names) - failed:,} completed, {failed:,} failed.")
    say(f"Report: {output}")


async def _digest_all(store: Path, files: Sequence[str], display: DemoDisplay) -> None:
    settings = {
        "store": {"url": f"sqlite:///{store}"},
        "worker": {"concurrency": _THREADS, "max_threads": _THREADS},
        "shutdown": {"await_termination_timeout": "0s"},
    }
    framework = TaskFramework(Settings.model_validate(settings))
    framework.register(DigestDocument)
    requests = [SubmitRequest(task_type=DigestDocument.task_type, parameters=file) for file in files]
    async with framework.running(worker=True):
        framework.services.bus.listen(TaskEvent, display.hear, name="demo")
        with display.shown():
            for file, outcome in zip(files, await framework.submit_many(requests), strict=True):
                if isinstance(outcome, ValueNotStorableError):
                    display.take(file, "its name is not valid text")
                elif isinstance(outcome, Exception):
                    raise outcome
            while not display.finished.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(display.finished.wait(), _PATIENCE)
                await framework.services.store.ping()
