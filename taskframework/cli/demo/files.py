"""Which files the demo processes."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from taskframework.errors import TaskframeworkError

#: Where `--keep` leaves the tasks.
KEPT = Path("demo.db")

_SKIPPED = ("__pycache__", "node_modules")
#: Files of text without sentences.
_DATA = frozenset({".csv", ".json", ".jsonl", ".lock", ".log", ".svg", ".toml", ".tsv", ".xml", ".yaml", ".yml"})


class DemoError(TaskframeworkError):
    """The demo could not do its job."""


def collect(paths: Sequence[Path]) -> list[Path]:
    """The files to process: the ones given, and those below the folders given, in the order of their names.

    Hidden files, caches and virtual environments are left out unless they are given themselves.
    """
    found: dict[str, Path] = {}
    for path in paths:
        for file in _walk(path) if path.is_dir() else [path]:
            found.setdefault(os.path.abspath(file), file)
    return list(found.values())


def default_paths() -> list[Path]:
    """What there is to digest if nobody says: the docs here, else the readme, else nothing."""
    here = [path for path in (Path("docs"), Path("README.md")) if path.exists() and collect([path])]
    return here[:1]


def why_skipped(file: Path) -> str:
    """Why a file is not worth a task; empty if it is."""
    return f"data ({file.suffix}), neither prose nor source code" if file.suffix.lower() in _DATA else ""


def _walk(folder: Path) -> Iterator[Path]:
    for here, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if _is_wanted(Path(here, name)))
        for name in sorted(names):
            file = Path(here, name)
            if not name.startswith(".") and not _is_special(file):
                yield file


def _is_wanted(folder: Path) -> bool:
    return not folder.name.startswith(".") and folder.name not in _SKIPPED and not (folder / "pyvenv.cfg").exists()


def _is_special(file: Path) -> bool:
    """Whether it is a pipe, socket or device. What cannot be looked at is kept: its task will say why."""
    try:
        return not stat.S_ISREG(file.stat().st_mode)
    except OSError:
        return False
