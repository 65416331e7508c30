"""The command line as its users have it: real processes in a folder of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from tests.support.forks import Forked, commands
from tests.support.process import ServerFailed, wait_until

COMMAND = (sys.executable, "-m", "taskframework")

#: Seconds after which a wait for a process has failed. On a machine with many times more work than processors a worker
#: needs half a minute to start.
_TIMEOUT_SECONDS = 120.0

#: A user's program: what the tests of the command line run.
PROGRAM = '''
import asyncio
import time
from pathlib import Path

from pydantic import BaseModel

from taskframework import BackgroundTaskExecutable, RetryableError, TaskContext, TaskOptions


class Text(BaseModel):
    text: str


class CountWords(BackgroundTaskExecutable[Text, int]):
    task_type = "count-words"

    async def execute(self, context: TaskContext[Text]) -> int:
        return len(context.parameters.text.split())


class Flaky(BackgroundTaskExecutable[None, int]):
    task_type = "flaky"

    async def execute(self, context: TaskContext[None]) -> int:
        if context.attempt == 1:
            raise RetryableError("not yet", delay=0.05)
        return context.attempt


class Broken(BackgroundTaskExecutable[None, None]):
    task_type = "broken"

    async def execute(self, context: TaskContext[None]) -> None:
        raise ValueError("a \\x1b[31mbug")


class Naps(BackgroundTaskExecutable[float, None]):
    """Leaves a mark when it has begun; sleeps where nobody can wake it."""

    task_type = "naps"

    def execute(self, context: TaskContext[float]) -> None:
        Path("napping").touch()
        time.sleep(context.parameters)


class Waits(BackgroundTaskExecutable[float, None]):
    task_type = "waits"

    async def execute(self, context: TaskContext[float]) -> None:
        await asyncio.sleep(context.parameters)
'''


class CommandFailed(AssertionError):  # noqa: N818 - as its neighbours in process.py
    """A command did not end as it should."""


class Folder:
    """A working directory with the user's program `program.py` in it, and commands run there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._started: list[Started] = []
        (path / "program.py").write_text(PROGRAM)

    def run(
        self, *arguments: str, code: int | None = 0, given: str = "", env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end.

        Args:
            arguments: after `taskframework`.
            code: the exit code it must have; None for any.
            given: its standard input.
            env: variables on top of the usual ones.
        """
        done = run_command(arguments, self.path, environment_with(env or {}), given)
        if code is not None and done.returncode != code:
            raise CommandFailed(f"{' '.join(arguments)}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def json(self, *arguments: str, code: int | None = 0, env: Mapping[str, str] | None = None) -> Any:
        """Run a command with `--json` and read what it prints."""
        return json.loads(self.run(*arguments, "--json", code=code, env=env).stdout)

    def start(self, *arguments: str, env: Mapping[str, str] | None = None, stdin: int | None = None) -> Started:
        """Start a command that runs until it is stopped; it reads the open file `stdin`, or nothing."""
        started = start_command(arguments, self.path, environment_with(env or {}), stdin)
        self._started.append(started)
        return started

    def close(self) -> None:
        for started in self._started:
            started.kill()


class Started:
    """A running command whose output is read as it comes."""

    def __init__(self, popen: subprocess.Popen[str] | Forked, out: IO[str], err: IO[str]) -> None:
        self._popen = popen
        self._streams = (out, err)
        self.out: list[str] = []
        self.err: list[str] = []
        self._readers = [
            threading.Thread(target=_read, args=(stream, lines), daemon=True)
            for stream, lines in ((out, self.out), (err, self.err))
        ]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def is_alive(self) -> bool:
        return self._popen.poll() is None

    @property
    def log(self) -> list[dict[str, Any]]:
        """The JSON log lines so far."""
        return [json.loads(line) for line in self.err if line.startswith("{")]

    def event(self, name: str, *, timeout: float = _TIMEOUT_SECONDS) -> dict[str, Any]:
        """Wait for a log line with this event."""

        def found() -> list[dict[str, Any]]:
            return [line for line in self.log if line["event"] == name]

        self._wait(lambda: bool(found()), f"event {name}", timeout)
        return found()[0]

    def line(self, part: str, *, timeout: float = _TIMEOUT_SECONDS) -> str:
        """Wait for a line of either output that contains `part`."""

        def found() -> list[str]:
            return [line for line in [*self.out, *self.err] if part in line]

        self._wait(lambda: bool(found()), f"a line with {part!r}", timeout)
        return found()[0]

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def end(self, number: signal.Signals = signal.SIGTERM, *, timeout: float = _TIMEOUT_SECONDS) -> int:
        """Send a signal and return the exit code."""
        self.send(number)
        return self.wait(timeout=timeout)

    def wait(self, *, timeout: float = _TIMEOUT_SECONDS) -> int:
        try:
            code = self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise CommandFailed(f"it does not end:\n{self._tail()}") from None
        for reader in self._readers:
            reader.join(5)
        return code

    def kill(self) -> None:
        """End it, and what it started, at once."""
        if self._popen.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
            self._popen.wait()
        for stream, reader in zip(self._streams, self._readers, strict=True):
            reader.join(5)
            stream.close()

    def _wait(self, true: Any, what: str, timeout: float) -> None:
        try:
            wait_until(true, what, timeout=timeout, alive=lambda: self._popen.poll() is None or true())
        except ServerFailed as failure:
            time.sleep(0.1)  # for the readers, so that the message below is whole
            raise CommandFailed(f"{failure}\n{self._tail()}") from None

    def _tail(self) -> str:
        return "".join([*self.out[-20:], *self.err[-20:]])


def start_program(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Started:
    """Start any program."""
    popen = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert popen.stdout
    assert popen.stderr
    return Started(popen, popen.stdout, popen.stderr)


def start_command(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str], stdin: int | None = None
) -> Started:
    """Start `taskframework` with these arguments."""
    (out, their_out), (err, their_err) = os.pipe(), os.pipe()
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        streams = [nothing if stdin is None else stdin, their_out, their_err]
        forked = commands().start(arguments, folder, environment, streams)
    finally:
        for descriptor in (nothing, their_out, their_err):
            os.close(descriptor)
    return Started(forked, os.fdopen(out), os.fdopen(err))


def run_command(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str], given: str
) -> subprocess.CompletedProcess[str]:
    """Run `taskframework` with these arguments to its end."""
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        stdin.write(given.encode())
        stdin.seek(0)
        forked = commands().start(arguments, folder, environment, [file.fileno() for file in (stdin, out, err)])
        try:
            code = forked.wait(50)
        except subprocess.TimeoutExpired:
            os.killpg(forked.pid, signal.SIGKILL)
            raise
        said = []
        for file in (out, err):
            file.seek(0)
            said.append(file.read().decode())
    return subprocess.CompletedProcess(arguments, code, *said)


def environment_with(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without what would change how output looks."""
    usual = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR", "TERM")}
    return {**usual, **environment}


def _read(stream: Any, lines: list[str]) -> None:
    for line in stream:
        lines.append(line)  # noqa: PERF402 - extend would show nothing before the end
