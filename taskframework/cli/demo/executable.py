"""The demo's task: the digest of one file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from taskframework.cli.demo.digest import Digest, digest, read_text
from taskframework.tasks.context import TaskContext
from taskframework.tasks.executable import BackgroundTaskExecutable
from taskframework.tasks.options import TaskOptions

#: Characters from which a text takes long enough for somebody to look how far it is.
_LONG = 50_000


@dataclass(frozen=True, slots=True)
class DigestParameters:
    """Which file to digest."""

    path: str


class DigestDocument(BackgroundTaskExecutable[DigestParameters, Digest]):
    """Reads a text file and finds its key words and the sentences that say most.

    A plain function, so it runs in a thread. A file that cannot be read will not be readable a moment later, so one
    attempt is all there is.
    """

    task_type = "digest-document"
    options = TaskOptions(max_attempts=1)

    def execute(self, context: TaskContext[DigestParameters]) -> Digest:
        text = read_text(Path(context.parameters.path))
        if len(text) >= _LONG:
            context.update_progress_soon({"percent": 20, "step": "ranking", "characters": len(text)})
        return digest(text)
