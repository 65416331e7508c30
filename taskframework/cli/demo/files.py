"""Finds the files that the demo processes: the given files, those below the given folders, or three short samples."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

_SKIPPED_FOLDERS = ("__pycache__", "node_modules")
#: Suffixes of files with data or pictures: a count of their words is useless.
_DATA_SUFFIXES = frozenset(
    {".csv", ".json", ".jsonl", ".lock", ".log", ".toml", ".tsv", ".xml", ".yaml", ".yml"}
    | {".gif", ".ico", ".jpeg", ".jpg", ".png", ".svg", ".webp"}
)

_BREAD = """# Bread

Yeast makes the dough rise: it eats the sugar of the flour and breathes out gas, and the dough holds the gas.
"""
_LIGHTHOUSES = """# Lighthouses

Each lighthouse has its own rhythm of flashes: a sailor who counts the seconds can find the lighthouse on the chart.
"""
_TIDES = """# Tides

The moon pulls the water of the sea towards itself. As the earth turns, each coast has the tide twice a day.
"""
#: The texts to digest if there are no documents.
SAMPLES = {"bread.md": _BREAD, "lighthouses.md": _LIGHTHOUSES, "tides.md": _TIDES}


def collect(paths: Sequence[Path]) -> list[Path]:
    """The files to process: the given files and those below the given folders, in the order of their names.

    Hidden files, caches, virtual environments, data and pictures are left out unless they are given themselves.
    """
    found: dict[str, Path] = {}
    for path in paths:
        for file in _walk(path) if path.is_dir() else [path]:
            found.setdefault(os.path.abspath(file), file)
    return list(found.values())


def _walk(folder: Path) -> Iterator[Path]:
    for current, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if _is_wanted(Path(current, name)))
        for file in sorted(Path(current, name) for name in names if not name.startswith(".")):
            # No pipe, socket or device. A link that leads nowhere is kept, and its task reports the error.
            if file.suffix.lower() not in _DATA_SUFFIXES and (file.is_file() or file.is_symlink()):
                yield file


def _is_wanted(folder: Path) -> bool:
    return (
        not folder.name.startswith(".") and folder.name not in _SKIPPED_FOLDERS and not (folder / "pyvenv.cfg").exists()
    )
