"""What the project has set itself, judged by the figures of one run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tests.benchmarks.contenders import FLOOR, OURS, VARIANTS
from tests.benchmarks.metrics import METRICS, TIMES, Figure, best

Figures = Mapping[str, Mapping[str, Figure]]

_BY_NAME = {metric.name: metric for metric in METRICS}


@dataclass(frozen=True, slots=True)
class Target:
    """One target: `value` has to be at least, or at most, `limit`."""

    title: str
    value: float
    limit: float
    unit: str
    at_least: bool

    @property
    def is_met(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit


def judged(contenders: Figures, alone: Mapping[str, Figure]) -> list[Target]:
    """Every target for which this run has the figures."""
    peers = {name: figures for name, figures in contenders.items() if name not in (OURS, FLOOR, *VARIANTS)}
    ours, floor = contenders.get(OURS, {}), contenders.get(FLOOR, {})
    return [
        *_against_the_fastest(ours, peers),
        *_latency(ours, peers.get("taskiq", {}), alone),
        *_cpu(ours, peers),
        *_floor(ours, floor),
        *_embedded(alone),
        *_starting(alone),
    ]


def _against_the_fastest(ours: Mapping[str, Figure], peers: Figures) -> Iterator[Target]:
    for name, limit, title in (
        ("drain_2", 1.5, "Drain with 2 worker processes against the fastest peer (aim: 2)"),
        ("submit_bulk", 1.0, "Submit with submit_many against the fastest peer"),
        ("submit_single", 0.6, "Submit with single calls against the fastest peer"),
    ):
        fastest = best(_BY_NAME[name], peers)
        if name in ours and fastest is not None:
            yield Target(f"{title}, {fastest[0]}", ours[name].value / fastest[1], limit, TIMES, at_least=True)


def _latency(ours: Mapping[str, Figure], taskiq: Mapping[str, Figure], alone: Mapping[str, Figure]) -> Iterator[Target]:
    for what in ("median", "p99"):
        idle, both = f"idle_start_{what}", f"write_both_{what}"
        if idle in ours and idle in taskiq and both in alone:
            title = f"Idle latency, submit to start, {what}, against TaskIQ's plus two database writes"
            yield Target(title, ours[idle].value, taskiq[idle].value + alone[both].value, "ms", at_least=False)


def _cpu(ours: Mapping[str, Figure], peers: Figures) -> Iterator[Target]:
    for name, share in (("celery", 1.0), ("dramatiq", 1.0), ("taskiq", 1.25)):
        mine, other = _whole_cpu(ours), _whole_cpu(peers.get(name, {}))
        if mine is not None and other is not None:
            title = f"CPU of submitter and workers against {share:g} {TIMES} {name}'s"
            yield Target(title, mine, share * other, "µs/task", at_least=False)


def _floor(ours: Mapping[str, Figure], floor: Mapping[str, Figure]) -> Iterator[Target]:
    if "drain_2" in ours and "drain_2" in floor:
        overhead = floor["drain_2"].value / ours["drain_2"].value
        title = "Overhead over the hand-written floor, drain with 2 worker processes"
        yield Target(title, overhead, 1.5, TIMES, at_least=False)


def _embedded(alone: Mapping[str, Figure]) -> Iterator[Target]:
    if "embedded" in alone:
        yield Target("Embedded broker and SQLite", alone["embedded"].value, 2_000, "tasks/s", at_least=True)


def _starting(alone: Mapping[str, Figure]) -> Iterator[Target]:
    for name, title in (("start_import", "`import taskframework`"), ("start_help", "`taskframework --help`")):
        if name in alone:
            yield Target(title, alone[name].value, 300, "ms", at_least=False)


def _whole_cpu(figures: Mapping[str, Figure]) -> float | None:
    parts = [figures.get(name) for name in ("cpu_workers", "cpu_submitter")]
    return None if None in parts else sum(part.value for part in parts if part is not None)
