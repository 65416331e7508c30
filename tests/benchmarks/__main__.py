"""`make bench`: this project, its peers and the floor side by side, on private servers.

Writes a table, JSON and charts. A run that leaves something out writes them to `build/performance` instead of
`docs/performance`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.benchmarks import chart, table
from tests.benchmarks.contenders import CONTENDERS, PROGRAMS
from tests.benchmarks.machine import machine, servers
from tests.benchmarks.report import report
from tests.benchmarks.rounds import FIGURES, Plan, run
from tests.benchmarks.stage import ROOT, Program, Stage
from tests.support.process import ServerFailed, ServerUnavailable

_FULL = ROOT / "docs" / "performance"
_PARTIAL = ROOT / "build" / "performance"
_WIDTH = 150


def main() -> int:
    """Run the benchmarks; the exit code is 1 if a trial failed. Missed targets are told, not punished."""
    options = _options(sys.argv[1:])
    if sys.platform != "linux":
        print("make bench reads /proc: it runs on Linux only", file=sys.stderr)
        return 1
    plan = _plan(options)
    try:
        programs = [Program.load(name) for name in plan.contenders]
        with contextlib.closing(Stage(with_redis=any(program.on_redis for program in programs))) as stage:
            _tell_settings(programs)
            print("Starting the servers ...", file=sys.stderr)
            stage.start()
            versions = servers(stage)
            collected = run(plan, stage, programs)
    except (ServerFailed, ServerUnavailable) as error:
        print(error, file=sys.stderr)
        return 1
    descriptions = {program.name: program.description for program in programs}
    whole = report(plan, collected, descriptions, machine(), versions)
    Console(width=max(_WIDTH, Console().width)).print(table.terminal(whole))
    is_full = set(plan.contenders) == set(CONTENDERS) and set(plan.figures) == set(FIGURES) and not options.quick
    folder = options.output or (_FULL if is_full else _PARTIAL)
    _write(folder, whole)
    print(f"Written to {folder}", file=sys.stderr)
    return 1 if collected.failures else 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__, usage='make bench ARGS="[options]"')
    parser.add_argument("--only", metavar="NAMES", type=_names(PROGRAMS), help=f"some of {','.join(PROGRAMS)}")
    parser.add_argument("--figures", metavar="NAMES", type=_names(FIGURES), help=f"some of {','.join(FIGURES)}")
    parser.add_argument("--rounds", metavar="N", type=int, help="how often all is done; the medians count")
    parser.add_argument("--tasks", metavar="N", type=int, help="tasks of one drain")
    parser.add_argument("--probes", metavar="N", type=int, help="tasks of one round that measure the idle latency")
    parser.add_argument("--quick", action="store_true", help="less of everything; for a look, not for the record")
    parser.add_argument("--output", metavar="FOLDER", type=Path, help="where the files go")
    return parser.parse_args(arguments)


def _plan(options: argparse.Namespace) -> Plan:
    usual = (
        {"rounds": 1, "tasks": 2_000, "probes": 50} if options.quick else {"rounds": 3, "tasks": 10_000, "probes": 150}
    )
    return Plan(
        contenders=options.only or list(CONTENDERS),
        figures=options.figures or list(FIGURES),
        load_seconds=2.0 if options.quick else 4.0,
        **{name: getattr(options, name) or value for name, value in usual.items()},
    )


def _names(known: Mapping[str, str] | Sequence[str]) -> Any:
    def names(text: str) -> list[str]:
        chosen = text.split(",")
        if unknown := set(chosen) - set(known):
            raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: not among {', '.join(known)}")
        return [name for name in known if name in chosen]

    return names


def _tell_settings(programs: Sequence[Program]) -> None:
    for program in programs:
        versions = ", ".join(f"{name} {version}" for name, version in program.description["versions"].items())
        print(f"{program.name}: {versions}", file=sys.stderr)
        for name, value in program.description["settings"].items():
            print(f"    {name}: {value}", file=sys.stderr)
        for point in program.description["weaker"]:
            print(f"    weaker: {point}", file=sys.stderr)


def _write(folder: Path, whole: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(whole, indent=2, ensure_ascii=False) + "\n")
    (folder / "results.md").write_text(table.markdown(whole))
    for one in chart.CHARTS:
        if (drawn := chart.svg(one, whole)) is not None:
            (folder / one.file).write_text(drawn)


if __name__ == "__main__":
    sys.exit(main())
