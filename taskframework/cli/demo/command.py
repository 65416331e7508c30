"""`demo`: digests real files on the embedded broker and store, shows it, writes a report, and ends."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from taskframework.cli.demo.files import SAMPLES, collect
from taskframework.cli.output import note
from taskframework.errors import TaskframeworkError

_DEFAULT_REPORT = Path("demo-report.md")
_KEPT_STORE = Path("demo.db")  # the store that `--keep` leaves
_DEFAULT_PATHS = (Path("docs"), Path("README.md"))  # read if no path is given: the first of them that holds a file


def demo(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="PATH...", help="Text files or folders of them (default: the docs here, or samples)."),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", metavar="FILE", help="Where the report is written.")
    ] = _DEFAULT_REPORT,
    keep: Annotated[bool, typer.Option("--keep", help=f"Keep the tasks in {_KEPT_STORE}, to see them later.")] = False,
) -> None:
    """Digest text files, one sub-task per file, on the embedded broker and store. It leaves nothing behind."""
    from taskframework.cli.demo.job import digest_and_report  # here: it loads the framework, and the help needs none

    # An interrupted opening may still create the file of the store while its folder is being removed.
    with tempfile.TemporaryDirectory(prefix="taskframework-demo-", ignore_cleanup_errors=True) as folder:
        default_paths = [path for path in _DEFAULT_PATHS if path.exists() and collect([path])]
        paths = paths or default_paths[:1] or _write_samples(Path(folder))
        files = _count_files(paths)
        _refuse_if_unwritable(output)
        digest_and_report(paths, files, _KEPT_STORE if keep else Path(folder, "tasks.db"), output)
    if keep:
        note(f"To see the tasks: TASKFRAMEWORK_STORE__URL=sqlite:///{_KEPT_STORE} taskframework tasks list")
    else:
        note("The tasks were not kept; use --keep to see them later. Next: taskframework dev --app yourmodule")


def _count_files(paths: Sequence[Path]) -> int:
    for path in paths:
        if not os.path.lexists(path):
            raise typer.BadParameter(f"{path} does not exist.", param_hint="PATH")
    if files := collect(paths):
        return len(files)
    raise TaskframeworkError(
        f"There is no file to digest in {', '.join(map(str, paths))}.",
        hint="Name files of prose or source code, or folders with such files: taskframework demo PATH...",
    )


def _write_samples(folder: Path) -> list[Path]:
    note("There are no documents here, so the demo digests a few samples. For your own: taskframework demo PATH...")
    for name, text in SAMPLES.items():
        Path(folder, name).write_text(text, encoding="utf-8")
    return [Path(folder, name) for name in SAMPLES]


def _refuse_if_unwritable(output: Path) -> None:
    """Refuse an output file that cannot be written, before the work instead of after it."""
    with contextlib.suppress(OSError):
        with contextlib.suppress(FileNotFoundError):
            output.stat()  # fails if the name is too long; from Python 3.14 on `exists` does not tell
        folder = next(folder for folder in output.absolute().parents if folder.exists())
        if not output.is_dir() and folder.is_dir() and os.access(output if output.exists() else folder, os.W_OK):
            return
    raise TaskframeworkError(f"{output} cannot be written.", hint="Name another file: --output /tmp/report.md")
