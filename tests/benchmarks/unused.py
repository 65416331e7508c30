"""`python -m tests.benchmarks.unused`: what limits, streams and keys of other types cost a plain task.

Two workers on the same servers, each with a database and a virtual host of its own: one knows the plain type alone, the
other knows the other types too, and has run tasks of each. Round by round both run so many plain tasks, one after the
other and in alternating order. Prints the median of the ratios of the rounds, between which bounds the true median is
with 95 % confidence, and the same for one worker against itself, which tells what the machine's noise does.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from taskframework import BackgroundTaskExecutable, ConcurrencyLimit, RateLimit, TaskContext, TaskFramework, TaskOptions
from taskframework.submission.options import SubmissionOptions
from taskframework.submission.requests import SubmitRequest
from tests.benchmarks.families import Nothing
from tests.benchmarks.processes import Place, running_workers, servers, until_over
from tests.benchmarks.usage import cpu_seconds

_PROVIDERS = {"openai": {"rate": 1_000, "burst_capacity": 1_000}}


class Rated(Nothing):
    task_type = "rated"
    options = TaskOptions(rate_limit="openai")


class Slotted(Nothing):
    task_type = "slotted"
    options = TaskOptions(concurrency_limit=3)


class Keyed(BackgroundTaskExecutable[dict[str, str], int]):
    task_type = "keyed"
    options = TaskOptions(rate_limit=RateLimit("openai", key="user"), concurrency_limit=ConcurrencyLimit(3, key="user"))

    async def execute(self, context: TaskContext[dict[str, str]]) -> int:
        return 1


_FEATURES: Sequence[tuple[type[BackgroundTaskExecutable[Any, Any]], Any, SubmissionOptions]] = (
    (Rated, 1, {}),
    (Slotted, 1, {}),
    (Keyed, {"user": "ann"}, {}),
    (Nothing, 1, {"stream": {"key": "s"}}),
    (Nothing, 1, {"unique": {"key": "u", "version": 1}}),
    (Nothing, 1, {"throttle": {"key": "t", "every": "1h"}}),
    (Nothing, 1, {"priority": "low"}),
)


@dataclass(slots=True)
class _Side:
    """One of the two workers, and the process that submits to it."""

    name: str
    submitter: TaskFramework
    worker_pid: int
    #: For each round, seconds, and seconds of the worker's processor time.
    rounds: list[tuple[float, float]] = field(default_factory=list)

    async def run(self, tasks: int) -> None:
        """Run so many plain tasks."""
        before, began = cpu_seconds([self.worker_pid]), time.monotonic()
        await self.submitter.submit_many([SubmitRequest(task_type="nothing", parameters=1)] * tasks)
        await until_over(self.submitter)
        self.rounds.append((time.monotonic() - began, cpu_seconds([self.worker_pid]) - before))


def main() -> int:
    """Measure and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--tasks", type=int, default=1_000, help="of each round and worker")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        first = stack.enter_context(servers())
        places = {"alone": first, "beside": first.other("beside"), "again": first.other("again")}
        pids = {}
        for name, place in places.items():
            apps = ["tests.benchmarks.families", *(["tests.benchmarks.unused"] if name == "beside" else [])]
            limiter = {"RATE_LIMITER__PROVIDERS": json.dumps(_PROVIDERS)}
            [worker] = stack.enter_context(running_workers(apps, 1, folder / name, place, limiter))
            pids[name] = worker.pid
        asyncio.run(_measure(places, pids, options))
    return 0


async def _measure(places: dict[str, Place], pids: dict[str, int], options: argparse.Namespace) -> None:
    async with contextlib.AsyncExitStack() as stack:
        sides = []
        for name, place in places.items():
            framework = TaskFramework(place.settings(rate_limiter={"providers": _PROVIDERS}))
            for each in (Nothing, Rated, Keyed, Slotted) if name == "beside" else (Nothing,):
                framework.register(each)
            await stack.enter_async_context(framework.running(worker=False))
            sides.append(_Side(name, framework, pids[name]))
        for executable, parameters, given in _FEATURES:
            await sides[1].submitter.submit(executable, parameters, **given)
        for number in range(-2, options.rounds):
            for side in sides if number % 2 else reversed(sides):
                await side.run(options.tasks)
            if number < 0:  # until everything is warm
                for side in sides:
                    side.rounds.clear()
        one, other, again = sides
        _print("beside other types", one, other)
        _print("the same again", one, again)


def _print(title: str, one: _Side, other: _Side) -> None:
    for index, what in enumerate(("time", "processor time of the worker")):
        ratios = sorted(b[index] / a[index] for a, b in zip(one.rounds, other.rounds, strict=True))
        # The true median is between these two with 95 % confidence, whatever the distribution is.
        low = max(0, int(len(ratios) / 2 - 0.98 * len(ratios) ** 0.5))
        sys.stdout.write(
            f"{title}, {what}: {statistics.median(ratios):.3f} ({ratios[low]:.3f} to {ratios[-1 - low]:.3f})\n"
        )


if __name__ == "__main__":
    sys.exit(main())
