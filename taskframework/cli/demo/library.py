"""The tasks of the demo: a digest of each file, as sub-tasks of one task that writes a report about all files."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import BaseModel, TypeAdapter

from taskframework.cli.demo.digest import Digest, digest, read_text
from taskframework.cli.demo.files import collect
from taskframework.cli.demo.report import write_report
from taskframework.tasks.context import TaskContext
from taskframework.tasks.executable import BackgroundTaskExecutable
from taskframework.tasks.options import TaskOptions
from taskframework.tasks.subtasks import SubtaskOutcome, SubtaskSummary

_DIGEST = TypeAdapter(Digest)


class Library(BaseModel):
    """Files, or folders of files, and the path of the report."""

    paths: list[str]
    report: str


class Digested(BaseModel):
    """The number of files with a digest, and of files without one."""

    completed: int
    failed: int


class DigestDocument(BackgroundTaskExecutable[str, Digest]):
    """Reads a text file, whose path is the parameter, and digests it: a plain function, so it runs in a thread."""

    task_type = "digest-document"
    options = TaskOptions(max_attempts=1)  # a file that cannot be read now cannot be read a moment later either

    def execute(self, context: TaskContext[str]) -> Digest:
        file = context.parameters
        tell = context.update_progress_soon
        return digest(read_text(Path(file)), lambda share: tell({"percent": round(100 * share), "file": file}))


class DigestLibrary(BackgroundTaskExecutable[Library, Digested]):
    """Plans a digest of every file, and writes the report after the last one; while it waits, it uses no thread."""

    task_type = "digest-library"
    options = TaskOptions(max_attempts=1, subtasks="allow_failures")

    def execute(self, context: TaskContext[Library]) -> None:
        files = collect([Path(path) for path in context.parameters.paths])
        # Bytes in a name that are not text cannot be stored; they are replaced, and then no file of that name is found.
        names = [os.fsencode(file).decode(errors="replace") for file in files]
        context.submit_subtasks_blocking(DigestDocument, names)

    def on_subtasks_finished(self, context: TaskContext[Library], summary: SubtaskSummary) -> Digested:
        outcomes = {str(outcome.parameters): _digest_of(outcome) for outcome in summary.outcomes_blocking()}
        write_report(outcomes, Path(context.parameters.report))
        return Digested(completed=summary.succeeded, failed=summary.total - summary.succeeded)


def _digest_of(outcome: SubtaskOutcome) -> Digest | str:
    """The digest, or the reason why there is none."""
    if outcome.result is not None:
        return _DIGEST.validate_python(outcome.result)
    return str(outcome.error["message"] if outcome.error else outcome.status.value)
