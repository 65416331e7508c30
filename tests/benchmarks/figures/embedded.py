"""How many tasks a second the embedded default does: one process, submitted in bulk and done, durable on SQLite."""

from __future__ import annotations

import subprocess
import sys
import tempfile

from tests.benchmarks.figures import Samples
from tests.benchmarks.stage import environment
from tests.support.process import ServerFailed

_PATIENCE = 120.0


def embedded(*, tasks: int) -> Samples:
    """Run the program in a folder of its own.

    Raises:
        ServerFailed: It does not end well; the message is what it printed.
    """
    with tempfile.TemporaryDirectory(prefix="taskframework-bench-") as folder:
        command = [sys.executable, "-m", "tests.benchmarks.embedded", str(tasks)]
        try:
            done = subprocess.run(
                command, cwd=folder, env=environment({}), capture_output=True, text=True, timeout=_PATIENCE, check=False
            )
        except subprocess.TimeoutExpired:
            raise ServerFailed(f"embedded: not done within {_PATIENCE:g} s") from None
    if done.returncode:
        raise ServerFailed(f"embedded:\n{done.stderr[-2_000:]}")
    return {"embedded": [float(done.stdout)]}
