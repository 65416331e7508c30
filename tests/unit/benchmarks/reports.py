"""A report as a run makes it, with figures that can be checked by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.benchmarks.report import report
from tests.benchmarks.rounds import ALONE, Collected, Plan

NAMES = ("taskframework", "taskiq", "dramatiq", "floor")

_ROUNDS: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "taskframework": {"drain_1": (1500,), "drain_2": (3000, 3600), "cpu_2": (400,), "submit_single_cpu": (100,)},
    "taskiq": {"drain_1": (900,), "drain_2": (1500,), "cpu_2": (300,), "submit_single_cpu": (100,)},
    "dramatiq": {"drain_1": (2000,), "drain_2": (1800,), "cpu_2": (500,), "submit_single_cpu": (100,)},
    "floor": {"drain_1": (2000,), "drain_2": (4125,)},
}


def example(**changes: Any) -> dict[str, Any]:
    """Two rounds with drains and CPU; the database and idle starts were measured once. `changes` replace parts."""
    collected = Collected()
    for name, samples in _ROUNDS.items():
        for sample, values in samples.items():
            for value in values:
                collected.add(name, {sample: [value]})
    collected.add("taskframework", {"idle_start": [4.0, 5.0, 6.0]})
    collected.add("taskiq", {"idle_start": [1.0, 2.0, 3.0]})
    collected.add(ALONE, {"write_both": [2.0, 3.0, 4.0], "embedded": [2500.0]})
    told = {
        "versions": {"package": "1.2"},
        "settings": {"queue": "quorum"},
        "weaker": ["less"],
        "bulk": None,
        "share": 1,
    }
    descriptions = dict.fromkeys(NAMES, told)
    machine = {"cpu": "A CPU", "cores": 2, "memory_gib": 8.0, "system": "Linux 6.1", "python": "3.11.7"}
    plan = Plan(contenders=NAMES, figures=("drain", "latency"), rounds=2, tasks=1000, probes=3, load_seconds=1)
    return {**report(plan, collected, descriptions, machine, {"RabbitMQ": "3.10.8"}), **changes}
