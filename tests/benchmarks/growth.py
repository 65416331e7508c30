"""`make bench-growth`: the same questions with few and with very many tasks in the store, and a worker's memory.

Writes a table, JSON and a chart. A run that leaves something out writes them to `build/performance` instead of
`docs/performance`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from taskframework import Settings, TaskFramework
from tests.benchmarks import chart, growth_report
from tests.benchmarks.growth_filling import Filler, MongoFiller, SqliteFiller, finished, waiting
from tests.benchmarks.growth_memory import grown
from tests.benchmarks.growth_questions import Effort, Times, measure
from tests.benchmarks.growth_report import Size
from tests.benchmarks.machine import machine
from tests.benchmarks.stage import ROOT
from tests.support.mongo import MongoServer
from tests.support.process import ServerFailed, ServerUnavailable

#: Finished and waiting tasks.
_SIZES: Sequence[Size] = ((1_000, 1_000), (100_000, 100_000), (1_000_000, 100_000))
_QUICK_SIZES: Sequence[Size] = ((1_000, 1_000), (50_000, 20_000))
_EFFORT, _QUICK_EFFORT = Effort(often=200, rarely=50), Effort(often=50, rarely=10)
_POINTS, _QUICK_POINTS = (1_000, 50_000, 100_000), (1_000, 5_000, 10_000)
_PARTS = ("mongodb", "sqlite", "memory")
_CACHE_GIGABYTES = 2.0
_WIDTH = 110
_BEGIN = time.monotonic()


def main() -> int:
    """Run the benchmark. What grows is told, not punished; the exit code is 1 if a part failed."""
    options = _options(sys.argv[1:])
    sizes, effort, points = (
        (_QUICK_SIZES, _QUICK_EFFORT, _QUICK_POINTS) if options.quick else (_SIZES, _EFFORT, _POINTS)
    )
    report: dict[str, Any] = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": machine(),
        "sizes": sizes,
        "stores": {},
        "memory": [],
    }
    try:
        if "mongodb" in options.only:
            report["stores"]["MongoDB"] = growth_report.store_report(_mongo(sizes, effort))
        if "sqlite" in options.only:
            report["stores"]["SQLite"] = growth_report.store_report(_sqlite(sizes, effort))
        if "memory" in options.only:
            report["memory"] = grown(points, lambda progress: _tell(f"worker: {progress}"))
    except (ServerFailed, ServerUnavailable) as error:
        print(error, file=sys.stderr)
        return 1
    Console(width=max(_WIDTH, Console().width)).print(growth_report.terminal(report))
    is_full = set(options.only) == set(_PARTS) and not options.quick
    folder = options.output or ROOT / ("docs" if is_full else "build") / "performance"
    _write(folder, report)
    _tell(f"written to {folder}")
    return 0


def _mongo(sizes: Sequence[Size], effort: Effort) -> dict[Size, Times]:
    with contextlib.closing(MongoServer(cache_gigabytes=_CACHE_GIGABYTES)) as server:
        server.start()
        url = server.url_of("growth")
        return asyncio.run(_measured("MongoDB", url, MongoFiller(url), sizes, effort))


def _sqlite(sizes: Sequence[Size], effort: Effort) -> dict[Size, Times]:
    with tempfile.TemporaryDirectory(prefix="taskframework-growth-") as folder:
        path = Path(folder) / "growth.db"
        return asyncio.run(_measured("SQLite", f"sqlite:///{path}", SqliteFiller(path), sizes, effort))


async def _measured(name: str, url: str, filler: Filler, sizes: Sequence[Size], effort: Effort) -> dict[Size, Times]:
    framework = TaskFramework(Settings.model_validate({"store": {"url": url}}))
    times: dict[Size, Times] = {}
    async with framework.store_only():
        for (before, waited), (done, waits) in _steps(sizes):
            _tell(f"{name}: filling up to {done:,} finished and {waits:,} waiting tasks")
            await asyncio.to_thread(filler.insert, finished(done - before, first=before))
            await asyncio.to_thread(filler.insert, waiting(waits - waited))
            await asyncio.to_thread(filler.settle)
            _tell(f"{name}: asking")
            times[done, waits] = await measure(framework, filler, effort)
    return times


def _steps(sizes: Sequence[Size]) -> Iterator[tuple[Size, Size]]:
    before: Size = (0, 0)
    for size in sizes:
        yield before, size
        before = size


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make bench-growth", description=__doc__, usage='make bench-growth ARGS="[options]"'
    )
    parser.add_argument("--only", metavar="PARTS", type=_parts, default=_PARTS, help=f"some of {','.join(_PARTS)}")
    parser.add_argument("--quick", action="store_true", help="small sizes; for a look, not for the record")
    parser.add_argument("--output", metavar="FOLDER", type=Path, help="where the files go")
    return parser.parse_args(arguments)


def _parts(text: str) -> list[str]:
    chosen = text.split(",")
    if unknown := set(chosen) - set(_PARTS):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: not among {', '.join(_PARTS)}")
    return chosen


def _tell(what: str) -> None:
    print(f"{time.monotonic() - _BEGIN:5.0f} s  {what}", file=sys.stderr)


def _write(folder: Path, report: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "growth.json").write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    (folder / "growth.md").write_text(growth_report.markdown(report))
    if (drawn := chart.svg(growth_report.CHART, growth_report.drawn(report))) is not None:
        (folder / growth_report.CHART.file).write_text(drawn)


if __name__ == "__main__":
    sys.exit(main())
