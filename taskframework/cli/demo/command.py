"""`demo`: digests real files on the embedded broker and store, shows it, writes a report, and ends."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from taskframework.cli.demo.files import KEPT, DemoError, collect, default_paths

_REPORT = Path("demo-report.md")


def demo(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="PATH...", help="Text files, or folders of them. By default the docs in this folder."),
    ] = None,
    output: Annotated[Path, typer.Option("--output", metavar="FILE", help="Where the report is written.")] = _REPORT,
    keep: Annotated[bool, typer.Option("--keep", help=f"Keep the tasks in {KEPT}, to look at them.")] = False,
) -> None:
    """Digest text files, a task each, on the embedded broker and store: nothing to install, nothing left behind."""
    from taskframework.cli.demo.job import DemoJob  # with all that finds key words, which other commands need not load

    DemoJob(_files(paths), output, keep).run()


def _files(paths: Sequence[Path] | None) -> list[Path]:
    for path in paths or ():
        if not os.path.lexists(path):
            raise typer.BadParameter(f"{path} does not exist.", param_hint="PATH")
    files = collect(paths or default_paths())
    if not files:
        raise DemoError(
            f"There is no file to digest in {', '.join(map(str, paths or ()))}.",
            hint="Name text files, or folders that hold some: taskframework demo PATH...",
        )
    return files
