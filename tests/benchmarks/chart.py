"""Bar charts as SVG, by hand: for light and dark pages, with a title and a description for who cannot see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from tests.benchmarks.contenders import OURS
from tests.benchmarks.table import number

_WIDTH, _LEFT, _RIGHT, _TOP = 760, 128, 100, 84
_BAR, _GAP, _BETWEEN = 16, 4, 18
_TICKS = 5

_STYLE = """
    text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: #24292f }
    .title { font-size: 17px; font-weight: 600 } .soft { fill: #57606a; font-size: 12px } .ours { font-weight: 700 }
    .grid { stroke: #d0d7de } .range { stroke: #24292f; stroke-width: 1.5 }
    .page { fill: #ffffff }
    .bar0 { fill: #9db7d5 } .bar1 { fill: #5b7fa6 } .own0 { fill: #f0a868 } .own1 { fill: #c8641b }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3 } .soft { fill: #9198a1 } .grid { stroke: #30363d } .range { stroke: #e6edf3 }
      .page { fill: #0d1117 }
      .bar0 { fill: #33506f } .bar1 { fill: #6c94bf } .own0 { fill: #8a4a17 } .own1 { fill: #ee8f45 }
    }
"""


@dataclass(frozen=True, slots=True)
class Chart:
    """What one chart shows: for each contender a bar for each of these metrics, at most two."""

    file: str
    title: str
    unit: str
    #: Metric and what its bars are called in the legend.
    metrics: Sequence[tuple[str, str]]
    #: What stands in the corner; None tells the unit and what the lines are.
    note: str | None = None


CHARTS = (
    Chart("drain.svg", "Drain: tasks done a second", "tasks/s", (("drain_1", "1 process"), ("drain_2", "2 processes"))),
    Chart("submit.svg", "Submit: tasks a second", "tasks/s", (("submit_single", "single"), ("submit_bulk", "bulk"))),
    Chart(
        "latency.svg",
        "Idle latency from submit to start",
        "ms",
        (("idle_start_median", "median"), ("idle_start_p99", "p99")),
    ),
    Chart("cpu.svg", "CPU for one task", "µs", (("cpu_workers", "workers"), ("cpu_submitter", "submitter"))),
)


def svg(chart: Chart, report: Mapping[str, Any]) -> str | None:
    """Draw a chart; None if the report has nothing for it."""
    rows = [
        (name, [contender["figures"].get(metric) for metric, _ in chart.metrics])
        for name, contender in report["contenders"].items()
    ]
    rows = [(name, figures) for name, figures in rows if any(figures)]
    if not rows:
        return None
    largest = max(figure["high"] for _, figures in rows for figure in figures if figure)
    step = _step(largest)
    scale = (_WIDTH - _LEFT - _RIGHT) / largest
    block = len(chart.metrics) * (_BAR + _GAP) - _GAP
    height = _TOP + len(rows) * (block + _BETWEEN) + 36
    parts = [*_head(chart, rows, height), *_grid(largest, step, scale, height)]
    for at, (name, figures) in enumerate(rows):
        parts += _row(name, figures, _TOP + at * (block + _BETWEEN), scale, block)
    return "\n".join([*parts, "</svg>", ""])


def _head(chart: Chart, rows: Sequence[tuple[str, Sequence[Any]]], height: int) -> list[str]:
    told = "; ".join(
        f"{name}: "
        + ", ".join(
            f"{label} {number(figure['value'])}"
            for (_, label), figure in zip(chart.metrics, figures, strict=True)
            if figure
        )
        for name, figures in rows
    )
    note = chart.note or f"{chart.unit}; line: range of the rounds"
    legend, x = [], _LEFT
    for at, (_, label) in enumerate(chart.metrics):
        legend.append(f'<rect class="own{at}" x="{x}" y="48" width="7" height="12"/>')
        legend.append(f'<rect class="bar{at}" x="{x + 7}" y="48" width="7" height="12"/>')
        legend.append(f'<text class="soft" x="{x + 20}" y="58">{escape(label)}</text>')
        x += 40 + 8 * len(label)
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        'role="img" aria-labelledby="title description">',
        f'<title id="title">{escape(chart.title)}</title>',
        f'<desc id="description">{escape(f"In {chart.unit}. {told}.")}</desc>',
        f"<style>{_STYLE}</style>",
        f'<rect class="page" width="{_WIDTH}" height="{height}" rx="8"/>',
        f'<text class="title" x="20" y="30">{escape(chart.title)}</text>',
        f'<text class="soft" x="{_WIDTH - 20}" y="58" text-anchor="end">{escape(note)}</text>',
        *legend,
    ]


def _grid(largest: float, step: float, scale: float, height: int) -> list[str]:
    parts, value = [], 0.0
    while value <= largest:
        x = _LEFT + value * scale
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{_TOP - 8}" x2="{x:.1f}" y2="{height - 30}"/>')
        parts.append(f'<text class="soft" x="{x:.1f}" y="{height - 14}" text-anchor="middle">{value:,g}</text>')
        value += step
    return parts


def _row(name: str, figures: Sequence[Any], top: int, scale: float, block: int) -> list[str]:
    kind, weight = ("own", ' class="ours"') if name == OURS else ("bar", "")
    parts = [f'<text{weight} x="{_LEFT - 10}" y="{top + block / 2 + 5:.1f}" text-anchor="end">{escape(name)}</text>']
    for at, figure in enumerate(figures):
        if figure is None:
            continue
        y, width = top + at * (_BAR + _GAP), figure["value"] * scale
        low, high = (_LEFT + figure[end] * scale for end in ("low", "high"))
        middle = y + _BAR / 2
        parts += [
            f'<rect class="{kind}{at}" x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_BAR}" rx="2"/>',
            f'<line class="range" x1="{low:.1f}" y1="{middle}" x2="{high:.1f}" y2="{middle}"/>',
            f'<text x="{max(_LEFT + width, high) + 6:.1f}" y="{y + 12.5}">{number(figure["value"])}</text>',
        ]
    return parts


def _step(largest: float) -> float:
    """A round distance between grid lines that gives about five of them."""
    exact = largest / _TICKS
    power = 10.0 ** len(f"{int(exact)}") / 10 if exact >= 1 else 0.1
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= exact)
