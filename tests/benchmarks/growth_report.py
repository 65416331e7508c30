"""The report of the growth benchmark: JSON, a table for the terminal, Markdown, and what the chart draws."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from tests.benchmarks.chart import Chart
from tests.benchmarks.growth_questions import Times
from tests.benchmarks.table import number

#: More than this, and a question is said to grow.
LIMIT = 1.5
#: Differences below this many milliseconds are the machine's.
_NOISE = 0.3
_DIGITS = 4
#: Beyond so many times a bar would make all others invisible.
_DRAWN = 5

Size = tuple[int, int]
Report = Mapping[str, Any]

CHART = Chart(
    "growth.svg",
    "Growth: time at the largest size divided by the time at the smallest",
    "times",
    (("MongoDB", "MongoDB"), ("SQLite", "SQLite")),
    note=f"times; above {LIMIT} it grows, above {_DRAWN} it is not drawn",
)


def store_report(times: Mapping[Size, Times]) -> dict[str, Any]:
    """Of one store: for each question the median and the 99th percentile at each size, and how it grew."""
    sizes = list(times)
    return {name: _grown([times[size][name] for size in sizes]) for name in times[sizes[0]]}


def _grown(samples: Sequence[Sequence[float]]) -> dict[str, Any]:
    medians = [statistics.median(sample) for sample in samples]
    return {
        "median_ms": [_short(median) for median in medians],
        "p99_ms": [_short(sorted(sample)[max(0, round(0.99 * len(sample)) - 1)]) for sample in samples],
        "ratio": _short(medians[-1] / medians[0]),
        "grows": medians[-1] > LIMIT * medians[0] and medians[-1] - medians[0] > _NOISE,
    }


def terminal(report: Report) -> Group:
    """What is shown at the end of a run."""
    tables = []
    for store, questions in report["stores"].items():
        table = Table(box=box.SIMPLE_HEAD, title=f"{store}: median (99th percentile) in ms", pad_edge=False)
        for column in _columns(report):
            table.add_column(column, justify="right" if column else "left", no_wrap=True)
        for name, found in questions.items():
            *cells, ratio, verdict = _cells(name, found)
            table.add_row(*cells, ratio, Text(verdict, "bold red" if found["grows"] else "green"))
        tables.append(table)
    memory = [Text(f"memory of a worker after {done:,} tasks: {used:.1f} MiB") for done, used in report["memory"]]
    return Group(*tables, *memory)


def markdown(report: Report) -> str:
    """The same as a page of the documentation."""
    machine = report["machine"]
    where = (
        f"{report['date']} · {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB · "
        f"{machine['system']} · Python {machine['python']}, servers on the same machine."
    )
    blocks = [
        "# Growth",
        "Written by `make bench-growth`; do not edit. [growth.json](growth.json) has the same.",
        where,
        "![Growth](growth.svg)",
        "Sizes are finished + waiting tasks. Each cell: median (99th percentile) in milliseconds; a number behind a "
        f"name is how many tasks one call is about. A question grows if its median is more than {LIMIT} times and "
        f"{_NOISE} ms longer at the largest size than at the smallest. *Count undriven* reads every live task; it is "
        "asked more rarely the longer it takes.",
    ]
    for store, questions in report["stores"].items():
        rows = "\n".join(f"| {' | '.join(_cells(name, found))} |" for name, found in questions.items())
        columns = list(_columns(report))
        blocks += [f"## {store}", f"| {' | '.join(columns)} |\n|---|{'---:|' * (len(columns) - 1)}\n{rows}"]
    if report["memory"]:
        rows = "\n".join(f"| {done:,} | {used:.1f} |" for done, used in report["memory"])
        blocks += ["## Memory of a worker", f"| Tasks done | MiB resident |\n|---:|---:|\n{rows}"]
    return "\n\n".join(blocks) + "\n"


def drawn(report: Report) -> dict[str, Any]:
    """The ratios in the form that charts are drawn from: a question is a row, a store a bar."""
    names = dict.fromkeys(name for questions in report["stores"].values() for name in questions)
    rows = {name: {"figures": _bars(report, name)} for name in names}
    return {"contenders": rows}


def _bars(report: Report, name: str) -> dict[str, dict[str, float]]:
    found = {store: questions[name]["ratio"] for store, questions in report["stores"].items() if name in questions}
    return {store: {"value": ratio, "low": ratio, "high": ratio} for store, ratio in found.items() if ratio <= _DRAWN}


def _columns(report: Report) -> Iterator[str]:
    yield ""
    for finished, waiting in report["sizes"]:
        yield f"{finished:,} + {waiting:,}"
    yield from ("ratio", "verdict")


def _cells(name: str, found: Mapping[str, Any]) -> list[str]:
    pairs = zip(found["median_ms"], found["p99_ms"], strict=True)
    cells = [f"{number(median)} ({number(p99)})" for median, p99 in pairs]
    return [name, *cells, f"{found['ratio']:.2f}", "grows" if found["grows"] else "flat"]


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
