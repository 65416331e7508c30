"""The report as tables: for the terminal, and as Markdown for the documentation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from tests.benchmarks.metrics import ALONE, METRICS, TIMES, Metric

Report = Mapping[str, Any]

_DASH = "\u2013"
_READING = (
    "Each cell: the median over all rounds (for p99, of all samples) and the range of the rounds' own values. The last "
    "columns divide ours by the best peer's and by the floor's: for rates more is better, for all else less. A peer "
    "without a bulk call counts with its single calls there, and for two processes with one if that is faster."
)


def number(value: float) -> str:
    """Three figures, or all of a larger number: 4,321 · 98.7 · 0.12."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def terminal(report: Report) -> Group:
    """What is shown at the end of a run."""
    names = list(report["contenders"])
    table = Table(box=box.SIMPLE_HEAD, title="median of all rounds; their ranges are in results.md", pad_edge=False)
    for column in ("", "unit", *names, "to best peer", "to floor"):
        table.add_column(column, justify="left" if column in ("", "unit") else "right", no_wrap=column == "")
    for metric in _rows(report):
        found = [report["contenders"][name]["figures"].get(metric.name) for name in names]
        cells = [_DASH if figure is None else number(figure["value"]) for figure in found]
        table.add_row(metric.title, metric.unit, *cells, *_ratios(report, metric))
    targets = Table(box=box.SIMPLE_HEAD, title="targets", pad_edge=False)
    for column in ("", "measured", "limit", ""):
        targets.add_column(column)
    for title, measured, limit, verdict in _targets(report):
        targets.add_row(title, measured, limit, Text(verdict, "green" if verdict == "met" else "bold red"))
    beside = Table(box=box.SIMPLE_HEAD, title="measured beside them", pad_edge=False, show_header=False)
    for row in _alone(report):
        beside.add_row(*row)
    failures = [Text(f"failed: {failure}", "bold red") for failure in report["failures"]]
    return Group(table, beside, targets, *failures)


def markdown(report: Report) -> str:
    """The page `results.md`."""
    names, alone = list(report["contenders"]), list(_alone(report))
    rows = [
        (
            f"{metric.title} ({metric.unit})",
            *(_with_range(report["contenders"][name]["figures"].get(metric.name)) for name in names),
            *_ratios(report, metric),
        )
        for metric in _rows(report)
    ]
    blocks = [
        "# Results of the benchmarks",
        "Written by `make bench`; do not edit. [results.json](results.json) has the same and more.",
        _where(report),
        "\n".join(_table(("", *names, "to best peer", "to floor"), rows)),
        _READING,
        "## Targets",
        "\n".join(_table(("Target", "Measured", "Limit", ""), _targets(report))),
        *(("## Measured beside them", "\n".join(_table(("", "measured"), alone))) if alone else ()),
        "## How each is configured, and what it does not promise",
        *(_contender(name, contender) for name, contender in report["contenders"].items()),
    ]
    return "\n\n".join(blocks) + "\n"


def _rows(report: Report) -> Iterator[Metric]:
    for metric in METRICS:
        if any(metric.name in contender["figures"] for contender in report["contenders"].values()):
            yield metric


def _alone(report: Report) -> Iterator[tuple[str, str]]:
    for metric in ALONE:
        if metric.name in report["alone"]:
            yield f"{metric.title} ({metric.unit})", _with_range(report["alone"][metric.name])


def _with_range(figure: Mapping[str, float] | None) -> str:
    if figure is None:
        return _DASH
    low, high = number(figure["low"]), number(figure["high"])
    return number(figure["value"]) if low == high else f"{number(figure['value'])} ({low}{_DASH}{high})"


def _ratios(report: Report, metric: Metric) -> tuple[str, str]:
    found = report["ratios"].get(metric.name, {})
    texts = [
        _DASH if ratio is None else f"{ratio:.2f} {TIMES}" for ratio in map(found.get, ("to_best_peer", "to_floor"))
    ]
    return (f"{texts[0]} {found['best_peer']}" if found.get("best_peer") else texts[0], texts[1])


def _targets(report: Report) -> Iterator[tuple[str, str, str, str]]:
    for target in report["targets"]:
        sign = "≥" if target["at_least"] else "≤"
        limit = f"{sign} {number(target['limit'])} {target['unit']}"
        yield (
            target["title"],
            f"{number(target['value'])} {target['unit']}",
            limit,
            "met" if target["met"] else "missed",
        )


def _where(report: Report) -> str:
    machine, plan = report["machine"], report["plan"]
    servers = ", ".join(f"{name} {version}" for name, version in report["servers"].items())
    return (
        f"{report['date']} · {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB · "
        f"{machine['system']} · Python {machine['python']} · {servers}, all on this machine · "
        f"{plan['rounds']} rounds, {plan['tasks']:,} tasks a drain, {plan['probes']} probes a round."
    )


def _contender(name: str, contender: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{package} {version}" for package, version in contender["versions"].items())
    lines = [f"### {name}", "", f"{versions}.", ""]
    lines += [f"- {setting}: {value}" for setting, value in contender["settings"].items()]
    if contender["weaker"]:
        lines += ["", "Weaker than this project:", ""]
        lines += [f"- {point}" for point in contender["weaker"]]
    return "\n".join(lines)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]] | Iterator[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield f"|---|{'---:|' * (len(head) - 1)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"
