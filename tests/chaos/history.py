"""What happened, as seen from outside: one JSON line per observation, by every process into one file.

The harness, the task code in the workers and the subscriber all append to the same file; a line is one write, so lines
of different processes do not mix and a process that is killed leaves whole ones. `checker.py` judges such a history.

| Kind | Fields | Seen by |
|---|---|---|
| `submit.invoke` | submission, task_type, not_before | load |
| `submit.ok` | submission, status, task | load: 202, or 200 for a repetition |
| `submit.fail` | submission, status, reason | load: surely not accepted |
| `submit.unknown` | submission, status, retry_after, reason | load: 5xx, or no answer |
| `execution.start` | task, token, attempt, pid | the task's own code |
| `execution.effect` | task, token, pid | the task's own code, where a real one would do its work |
| `execution.end` | task, token, pid, outcome (`returned`, `raised`, `stopped`), delay | the task's own code |
| `event` | subscriber, task, sequence, type | a subscriber with a durable queue |
| `subscriber.start`, `subscriber.stop` | subscriber | the harness |
| `fault.start`, `fault.stop` | fault, target, pids (those it excuses; null: all) | the harness |
| `final` | task, status, generation, sequence, result | the harness, when it first sees a task final |
| `document` | document | the harness, at the end |
| `queue` | name, messages | the harness, at the end, without any worker |
| `undriven` | count | a process's metric `tasks_undriven`, at the end |
| `error` | target, line | a process's log, at the end |
| `process.end` | target, code, seconds | the harness, after a SIGTERM |
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Tells a process that is started where to write.
VARIABLE = "CHAOS_HISTORY"


@dataclass(frozen=True, slots=True)
class Observation:
    """One line of a history.

    Attributes:
        kind: what was seen.
        process: who saw it.
        monotonic: seconds of the machine's monotonic clock, the same for all its processes.
        wall: seconds since 1970, comparable with the times in documents.
        fields: the rest, by kind.
    """

    kind: str
    process: str
    monotonic: float
    wall: float
    fields: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    def get(self, name: str) -> Any:
        return self.fields.get(name)


class Recorder:
    """Appends observations to a file that other processes append to as well."""

    def __init__(self, path: Path, process: str | None = None) -> None:
        self.path = path
        self._process = process or str(os.getpid())
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    @classmethod
    def from_environment(cls) -> Recorder:
        """The recorder of a started process."""
        return cls(Path(os.environ[VARIABLE]))

    def record(self, kind: str, **fields: Any) -> None:
        line = {"kind": kind, "process": self._process, "monotonic": time.monotonic(), "wall": time.time(), **fields}
        os.write(self._file, json.dumps(line, default=str).encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


def read(path: Path) -> list[Observation]:
    """A recorded history in the order of time."""
    with path.open() as lines:
        observations = [_observation(json.loads(line)) for line in lines]
    return sorted(observations, key=lambda seen: seen.monotonic)


def _observation(line: dict[str, Any]) -> Observation:
    kind, process, monotonic, wall = (line.pop(name) for name in ("kind", "process", "monotonic", "wall"))
    return Observation(kind, process, monotonic, wall, line)
