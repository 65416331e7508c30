"""A process that ends at once ends with its code, whatever became of its output."""

from __future__ import annotations

import os
import subprocess
import sys

_PROGRAM = """
import sys
from taskframework.cli.ending import exit_now
sys.stdin.readline()
print("for nobody")
exit_now(3)
"""


def test_a_process_ends_although_nobody_reads_its_output() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.close()
        process.stdin.write(b"\n")
        process.stdin.close()
        assert process.wait(30) == 3
