"""`dev --reload`: a parent that starts the process again whenever one of the author's files changes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from watchfiles import PythonFilter, awatch

from taskframework.cli.output import note, printable, show_error
from taskframework.cli.process import StopRequest
from taskframework.cli.supervision import Ending, WorkerProcess
from taskframework.errors import TaskframeworkError

#: For `shutdown.await_termination_timeout`: after saving a file, an author wants to see the effect soon. A task that
#: needs longer is handed back, which does not count as an attempt, and begins again in the next process.
SHUTDOWN_GRACE = "1s"
#: Seconds that the process has to hand tasks back and to close, before it is killed.
_STOP_SECONDS = 10.0
#: Files that are watched besides Python files: settings.
_SETTINGS_SUFFIXES = (".yml", ".yaml")
#: How many changed files are named at most.
_MAX_NAMED_FILES = 3


def run_reloading(command: Sequence[str], folder: Path) -> None:
    """Keep one process running with the present files of a folder until SIGTERM or SIGINT; a second signal kills it.

    Args:
        command: starts the process; `--tether` and a file descriptor are added to it.
        folder: whose Python and YAML files are watched, also in folders below, except environments and caches.

    Raises:
        TaskframeworkError: if the folder cannot be watched.
    """
    asyncio.run(Reloader(command, folder).run())


class Reloader:
    """One process at a time, each with the files as they are when it starts."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._folder = folder
        self._process = WorkerProcess(1, command, on_ready=lambda: None)
        self._is_stopping = False

    async def run(self) -> None:
        """Run until told to stop.

        Raises:
            TaskframeworkError: if the folder cannot be watched.
        """
        stop = StopRequest(self._process.kill)
        stop.is_opening = False
        changes = awatch(
            self._folder, watch_filter=PythonFilter(extra_extensions=_SETTINGS_SUFFIXES), stop_event=stop.requested
        )
        running = asyncio.create_task(self._run_process())
        try:
            async for changed in changes:
                await self._stop_process(running)
                note(f"{self._names_of({path for _, path in changed})} changed: restarting")
                running = asyncio.create_task(self._run_process())
        except OSError as error:
            raise TaskframeworkError(
                f"{self._folder} cannot be watched: {error}.",
                hint="Set WATCHFILES_FORCE_POLLING=true to poll it instead.",
            ) from error
        finally:
            await self._stop_process(running)

    async def _run_process(self) -> None:
        self._is_stopping = False
        ending = await self._process.run_once()
        if not self._is_stopping:
            _print_ending(ending)

    async def _stop_process(self, running: asyncio.Task[None]) -> None:
        self._is_stopping = True
        self._process.request_stop()
        await asyncio.wait([running], timeout=_STOP_SECONDS)
        self._process.kill()
        await running

    def _names_of(self, paths: set[str]) -> str:
        names = sorted(printable(os.path.relpath(path, self._folder)) for path in paths)
        more = len(names) - _MAX_NAMED_FILES
        return ", ".join(names[:_MAX_NAMED_FILES]) + (f" and {more} more" if more > 0 else "")


def _print_ending(ending: Ending) -> None:
    """Print why the process ended by itself."""
    if ending.failure is not None:
        show_error(TaskframeworkError(ending.failure.message, hint=ending.failure.hint))
    else:
        show_error(TaskframeworkError("The process ended: " + ", ".join(f"{k} {v}" for k, v in ending.fields.items())))
    note("Waiting for the next change.")
