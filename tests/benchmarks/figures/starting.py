"""How long a person waits before anything of ours happens: the import, the help, a look at the tasks."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from tests.benchmarks.figures import Samples
from tests.benchmarks.stage import environment
from tests.support.process import ServerFailed

#: Starts of each in a round; the first may read modules from the disk.
_STARTS = 5
_PATIENCE = 60.0
_PROGRAMS = {
    "start_import": ("-c", "import taskframework"),
    "start_framework": ("-c", "from taskframework import TaskFramework"),
    "start_help": ("-m", "taskframework", "--help"),
    "start_list": ("-m", "taskframework", "tasks", "list"),
}
#: There is nothing to look at before something has executed once.
_STORE = """
import asyncio
from taskframework import TaskFramework

async def main():
    async with TaskFramework().running():
        pass

asyncio.run(main())
"""


def starting() -> Samples:
    """Milliseconds from the start of a Python process to its end, for each of these.

    Raises:
        ServerFailed: One does not end well; the message is what it printed.
    """
    with tempfile.TemporaryDirectory(prefix="taskframework-bench-") as folder:
        _start(("-c", _STORE), folder)
        return {name: [_start(program, folder) for _ in range(_STARTS)] for name, program in _PROGRAMS.items()}


def _start(program: Sequence[str], folder: str) -> float:
    command, before = [sys.executable, *program], time.perf_counter()
    done = subprocess.run(
        command, cwd=folder, env=environment({}), capture_output=True, text=True, timeout=_PATIENCE, check=False
    )
    if done.returncode:
        raise ServerFailed(f"{' '.join(program)}:\n{done.stderr[-2_000:]}")
    return (time.perf_counter() - before) * 1_000
