"""The report: one dictionary with everything about a run; JSON, tables and charts are made of it alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from tests.benchmarks.contenders import FLOOR, OURS, VARIANTS
from tests.benchmarks.metrics import ALONE as ALONE_METRICS
from tests.benchmarks.metrics import METRICS, Figure, best, figures
from tests.benchmarks.rounds import ALONE, Collected, Plan
from tests.benchmarks.targets import judged

_DIGITS = 4


def report(
    plan: Plan,
    collected: Collected,
    descriptions: Mapping[str, Mapping[str, Any]],
    machine: Mapping[str, Any],
    servers: Mapping[str, str],
) -> dict[str, Any]:
    """Put everything together.

    Args:
        plan: what was done.
        collected: what came out.
        descriptions: what each contender says of itself.
        machine: where.
        servers: their versions.
    """
    by_contender = {name: figures(collected.samples.get(name, {}), METRICS) for name in plan.contenders}
    alone = figures(collected.samples.get(ALONE, {}), ALONE_METRICS)
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": dict(machine),
        "servers": dict(servers),
        "plan": dataclasses.asdict(plan),
        "contenders": {
            name: {
                **{part: descriptions[name][part] for part in ("versions", "settings", "weaker", "bulk", "share")},
                "figures": _plain(by_contender[name]),
            }
            for name in plan.contenders
        },
        "alone": _plain(alone),
        "ratios": _ratios(by_contender),
        "targets": [
            {
                **dataclasses.asdict(target),
                "value": _short(target.value),
                "limit": _short(target.limit),
                "met": target.is_met,
            }
            for target in judged(by_contender, alone)
        ],
        "failures": list(collected.failures),
    }


def _ratios(by_contender: Mapping[str, Mapping[str, Figure]]) -> dict[str, Any]:
    """Ours divided by the best peer's and by the floor's, for each metric that we have."""
    peers = {name: found for name, found in by_contender.items() if name not in (OURS, FLOOR, *VARIANTS)}
    ours, floor = by_contender.get(OURS, {}), by_contender.get(FLOOR, {})
    ratios: dict[str, Any] = {}
    for metric in METRICS:
        if metric.name not in ours or metric.name == "load_rate":
            continue
        value, leader = ours[metric.name].value, best(metric, peers)
        ratios[metric.name] = {
            "best_peer": leader and leader[0],
            "to_best_peer": _quotient(value, leader[1] if leader else 0),
            "to_floor": _quotient(value, floor[metric.name].value if metric.name in floor else 0),
        }
    return ratios


def _quotient(value: float, other: float) -> float | None:
    return _short(value / other) if other else None


def _plain(found: Mapping[str, Figure]) -> dict[str, dict[str, float]]:
    return {
        name: {part: _short(number) for part, number in dataclasses.asdict(figure).items()}
        for name, figure in found.items()
    }


def _short(number: float) -> float:
    return float(f"{number:.{_DIGITS}g}")
