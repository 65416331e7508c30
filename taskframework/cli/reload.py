"""`dev --reload`: a parent that starts the process again whenever one of the author's files changes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from watchfiles import PythonFilter, awatch

from taskframework.cli.output import note, printable, show_error
from taskframework.cli.process import Stop
from taskframework.cli.supervision import Ending, WorkerProcess
from taskframework.errors import TaskframeworkError

#: For `shutdown.await_termination_timeout`: after saving a file, an author wants to see the effect soon. A task that
#: needs longer is handed back, which does not count as an attempt, and begins again in the next process.
GRACE = "1s"
#: Seconds that the process has to hand tasks back and to close, before it is killed.
_PATIENCE = 10.0
#: Files that are watched besides Python files: settings.
_SETTINGS = (".yml", ".yaml")
#: How many changed files are named at most.
_MOST_NAMED = 3


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
        self._is_ending = False

    async def run(self) -> None:
        """Run until told to stop.

        Raises:
            TaskframeworkError: if the folder cannot be watched.
        """
        stop = Stop(self._process.kill)
        stop.is_opening = False
        changes = awatch(self._folder, watch_filter=PythonFilter(extra_extensions=_SETTINGS), stop_event=stop.asked)
        living = asyncio.create_task(self._live())
        try:
            async for changed in changes:
                await self._end(living)
                note(f"{self._named({path for _, path in changed})} changed: restarting")
                living = asyncio.create_task(self._live())
        except OSError as error:
            raise TaskframeworkError(
                f"{self._folder} cannot be watched: {error}.",
                hint="Set WATCHFILES_FORCE_POLLING=true to poll it instead.",
            ) from error
        finally:
            await self._end(living)

    async def _live(self) -> None:
        self._is_ending = False
        ending = await self._process.live()
        if not self._is_ending:
            _tell(ending)

    async def _end(self, living: asyncio.Task[None]) -> None:
        self._is_ending = True
        self._process.let_go()
        await asyncio.wait([living], timeout=_PATIENCE)
        self._process.kill()
        await living

    def _named(self, paths: set[str]) -> str:
        names = sorted(printable(os.path.relpath(path, self._folder)) for path in paths)
        more = len(names) - _MOST_NAMED
        return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _tell(ending: Ending) -> None:
    """Print why the process ended by itself."""
    if ending.failure is not None:
        show_error(TaskframeworkError(ending.failure.message, hint=ending.failure.hint))
    else:
        show_error(TaskframeworkError("The process ended: " + ", ".join(f"{k} {v}" for k, v in ending.fields.items())))
    note("Waiting for the next change.")
