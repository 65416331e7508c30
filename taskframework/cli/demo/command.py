"""`demo`: digests real files on the embedded broker and store, shows it, writes a report, and ends."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from taskframework.cli.demo.files import KEPT, DemoError, collect, default_paths, why_skipped
from taskframework.cli.demo.samples import SAMPLES
from taskframework.cli.output import note

_REPORT = Path("demo-report.md")


def demo(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PATH...", help="Text files, or folders of them. By default the docs here, else samples."
        ),
    ] = None,
    output: Annotated[Path, typer.Option("--output", metavar="FILE", help="Where the report is written.")] = _REPORT,
    keep: Annotated[bool, typer.Option("--keep", help=f"Keep the tasks in {KEPT}, to look at them.")] = False,
) -> None:
    """Digest text files, a task each, on the embedded broker and store: nothing to install, nothing left behind."""
    from taskframework.cli.demo.job import DemoJob  # with all that finds key words, which other commands need not load

    with _documents(paths or default_paths()) as files:
        DemoJob(files, output, keep).run()


@contextmanager
def _documents(paths: Sequence[Path]) -> Iterator[list[Path]]:
    """The files to digest; samples of our own if none are named and none are here."""
    if paths:
        yield _files(paths)
        return
    with tempfile.TemporaryDirectory(prefix="taskframework-") as folder:
        for name, text in SAMPLES.items():
            Path(folder, name).write_text(text, encoding="utf-8")
        note("There are no documents here, so a few samples are digested. Your own: taskframework demo PATH...")
        yield collect([Path(folder)])


def _files(paths: Sequence[Path]) -> list[Path]:
    for path in paths:
        if not os.path.lexists(path):
            raise typer.BadParameter(f"{path} does not exist.", param_hint="PATH")
    files = collect(paths)
    if all(map(why_skipped, files)):
        raise DemoError(
            f"There is no file to digest in {', '.join(map(str, paths))}.",
            hint="Name files of prose or source code, or folders that hold some: taskframework demo PATH...",
        )
    return files
