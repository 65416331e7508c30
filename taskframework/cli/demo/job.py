"""The demo's work: digests files on the embedded broker and store, shows it and writes a report."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.logging import RichHandler
from rich.text import Text

from taskframework.cli.demo.display import DemoDisplay, outcome_table
from taskframework.cli.demo.executable import DigestDocument
from taskframework.cli.demo.files import KEPT, DemoError, why_skipped
from taskframework.cli.demo.report import ReportRow, write_report
from taskframework.cli.demo.running import digest_all
from taskframework.cli.demo.state import SKIPPED, FileOutcome
from taskframework.cli.output import counted, err, note, out, run, say
from taskframework.observability import task_log
from taskframework.runtime import TaskFramework
from taskframework.settings import Settings

#: Threads that read and digest. More than processors, since reading waits for disks.
_THREADS = 16


@dataclass(frozen=True, slots=True)
class DemoJob:
    """What to digest, and what shall be left of it."""

    files: Sequence[Path]
    output: Path
    keep: bool

    def run(self) -> None:
        """Do it, with everything a person wants to see.

        Raises:
            DemoError: if the report cannot be written.
            StoreError: if the store fails.
        """
        _check_output(self.output)
        with _store(self.keep) as store:
            digested, seconds = _digest([file for file in self.files if not why_skipped(file)], store)
        skipped = [FileOutcome(str(file), SKIPPED, reason=why) for file in self.files if (why := why_skipped(file))]
        outcomes = [*digested, *skipped]
        shown, left_out = outcome_table(outcomes)
        out().print(shown)
        if left_out:
            note(f"... and {left_out:,} more that were digested; the report has them all.")
        _write(outcomes, self.output)
        failed = sum(outcome.digest is None for outcome in digested)
        tasks = counted(len(digested), "task")
        say(f"\n{tasks} in {seconds:.1f} s: {len(digested) - failed:,} completed, {failed:,} failed.")
        if skipped:
            say(f"{counted(len(skipped), 'file')} skipped.")
        say(f"Report: {self.output}")
        if self.keep:
            note(f"Look at the tasks: TASKFRAMEWORK_STORE__URL=sqlite:///{KEPT} taskframework tasks list")
        else:
            note(
                "The tasks themselves are gone; --keep leaves them to look at. Next: taskframework dev --app yourmodule"
            )


def _check_output(output: Path) -> None:
    """Refuse before the work what could not be written after it."""
    if output.is_dir():
        raise DemoError(f"{output} is a folder.", hint="Name a file: --output report.md")
    folder = next(folder for folder in output.absolute().parents if folder.exists())
    if not folder.is_dir() or not os.access(output if output.exists() else folder, os.W_OK):
        raise DemoError(f"{output} cannot be written.", hint="Name another file: --output /tmp/report.md")


@contextmanager
def _store(keep: bool) -> Iterator[Path]:
    if keep:
        yield KEPT
        return
    # An interrupted opening may still create the file while the folder is being removed.
    with tempfile.TemporaryDirectory(prefix="taskframework-demo-", ignore_cleanup_errors=True) as folder:
        yield Path(folder, "tasks.db")


def _digest(files: Sequence[Path], store: Path) -> tuple[list[FileOutcome], float]:
    console = err()
    handler = RichHandler(console=console, show_time=False, show_path=False)
    handler.addFilter(lambda record: record.name != task_log.logger.name)  # the display tells of each task
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[handler], force=True)
    settings = Settings.model_validate(
        {
            "store": {"url": f"sqlite:///{store}"},
            "worker": {"concurrency": _THREADS, "max_threads": _THREADS},
            "shutdown": {"await_termination_timeout": "0s"},
        }
    )
    framework = TaskFramework(settings)
    framework.register(DigestDocument)
    console.print(Text(f"{counted(len(files), 'file')}, a task each, on the embedded broker and SQLite", style="dim"))
    return run(digest_all(framework, files, DemoDisplay(console, map(str, files))))


def _write(outcomes: Sequence[FileOutcome], output: Path) -> None:
    try:
        write_report([ReportRow(outcome.file, outcome.digest, outcome.reason) for outcome in outcomes], output)
    except OSError as error:
        raise DemoError(
            f"{output} cannot be written: {error.strerror}.", hint="Name another file: --output /tmp/report.md"
        ) from error
