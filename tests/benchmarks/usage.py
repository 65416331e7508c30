"""What processes use, from /proc: CPU seconds and memory of a process with all its descendants."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_MEBIBYTE = 1024  # /proc counts in KiB


def tree(pid: int) -> Iterator[int]:
    """A process and its living descendants."""
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # a thread or process that has just ended
            for child in children.read_text().split():
                yield from tree(int(child))


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system time of these processes, of their descendants, and of children that they have waited for."""
    return sum(_own_cpu(member) for pid in pids for member in tree(pid))


def memory(pids: Iterable[int]) -> dict[str, float]:
    """MiB: `pss` of all of them with their descendants (shared pages divided), `rss` of the largest process."""
    members = [member for pid in pids for member in tree(pid)]
    rollups = [_fields(Path(f"/proc/{member}/smaps_rollup")) for member in members]
    return {
        "pss": sum(rollup.get("Pss", 0) for rollup in rollups) / _MEBIBYTE,
        "rss": max((rollup.get("Rss", 0) for rollup in rollups), default=0) / _MEBIBYTE,
    }


def _own_cpu(pid: int) -> float:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0.0
    # The name may hold spaces and brackets; utime, stime, cutime and cstime are fields 14 to 17.
    after_name = stat.rpartition(")")[2].split()
    return sum(map(int, after_name[11:15])) / _TICKS


def _fields(path: Path) -> dict[str, int]:
    try:
        lines = path.read_text().splitlines()[1:]
    except OSError:
        return {}
    return {name: int(value.split()[0]) for name, _, value in (line.partition(":") for line in lines)}
