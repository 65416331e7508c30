"""What becomes of a process whose output cannot be written, or whose standard streams are closed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import taskframework
from taskframework.cli.ending import is_about_output

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


def _command(line: str, folder: Path, unbuffered: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command line in a shell, as people redirect its streams."""
    command = f"{shlex.quote(sys.executable)} -m taskframework {line}"
    path = os.pathsep.join([str(Path(taskframework.__file__).parents[1]), str(folder)])
    environ = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": unbuffered}
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environ, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("unbuffered", ["", "1"])  # it fails when the process ends, or at once
def test_output_that_cannot_be_written_is_an_error_of_one_sentence(folder: Path, unbuffered: str) -> None:
    for line in ("config show", "submit --app greeting --json greets '\"one\"'", "--help"):
        done = _command(f"{line} > /dev/full", folder, unbuffered)
        assert (done.returncode, "Traceback" in done.stderr) == (1, False), line
        assert "error: The output could not be written: No space left on device." in done.stderr, line


def test_a_key_that_could_not_be_printed_can_be_revoked(folder: Path) -> None:
    assert _command("submit --app greeting greets '\"one\"'", folder).returncode == 0
    for line in ("keys create ann", "keys create ann --json"):
        done = _command(f"{line} > /dev/full", folder)
        assert done.returncode == 1
        [prefix] = re.findall(r"To revoke it: taskframework keys revoke (tf_\w+)", done.stderr)
        assert _command(f"keys revoke {prefix}", folder).returncode == 0


def test_a_process_without_standard_streams_does_its_work(folder: Path) -> None:
    for line, code in (("config show >&-", 0), ("config show 2>&-", 0), ("submit greets - <&-", 2)):
        done = _command(line, folder)
        assert (done.returncode, "Traceback" in done.stderr) == (code, False), line


@pytest.mark.parametrize(
    ("module", "code", "is_output"),
    [
        ("rich.console", "raise OSError(28, 'full')", True),
        ("taskframework.cli.output", "raise OSError(28, 'full')", True),
        ("taskframework.cli.submit", "open('no/such/file')", False),
        ("shop", "raise OSError(28, 'full')", False),
    ],
)
def test_only_an_error_of_printing_code_counts_as_an_output_error(module: str, code: str, is_output: bool) -> None:
    with pytest.raises(OSError, match="Errno") as raised:
        exec(code, {"__name__": module})
    assert is_about_output(raised.value) is is_output
