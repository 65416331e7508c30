"""Processes of the command line that are forked from a parent which has read the code already."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.forks import Forked, Forks
from tests.support.process import Process, ServerFailed


class ForkedProcess(Process):
    """One of them, with its log in a file."""

    def __init__(
        self, forks: Forks, arguments: Sequence[str], *, log: Path, environment: Mapping[str, str], folder: Path
    ) -> None:
        """Start `taskframework` with these arguments; what it prints is appended to `log`."""
        self._log = log
        with log.open("ab") as output, Path(os.devnull).open("rb") as nothing:
            streams = [nothing.fileno(), output.fileno(), output.fileno()]
            self._forked: Forked = forks.start(arguments, folder, environment, streams)

    @property
    def pid(self) -> int:
        return self._forked.pid

    @property
    def is_alive(self) -> bool:
        return self._forked.poll() is None

    def wait(self, timeout: float) -> int:
        try:
            return self._forked.wait(timeout)
        except subprocess.TimeoutExpired:
            raise ServerFailed(f"it does not end within {timeout:g} s:\n{self.log_tail()}") from None

    def end(self, signal_number: int, *, timeout: float) -> None:
        self.send(signal_number)
        self.wait(timeout)
