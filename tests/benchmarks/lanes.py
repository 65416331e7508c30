"""`python -m tests.benchmarks.lanes`: how the slots are shared while tasks of two priorities wait.

High and low tasks that sleep are submitted while the workers are stopped (SIGSTOP). From then on, until the last high
task has started, both wait all the time; so of the starts in this time each priority should have its weight's share
(8:1 by default). Prints the share of the low tasks, the longest time between two of their starts, and the rate beside
that of as many tasks with one priority, which run before.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from taskframework import BackgroundTaskExecutable, TaskContext, TaskFramework
from taskframework.model.query import TaskFilter
from taskframework.model.scope import EVERYONE
from taskframework.model.status import Priority
from taskframework.submission.requests import SubmitRequest
from tests.benchmarks.processes import running_workers, servers, submit_while_stopped, until_over
from tests.support.process import Process

#: How many tasks are read together.
_PAGE = 500
#: This share of the starts is left out at the beginning, until each worker has messages of both priorities.
_BEGINNING_SHARE = 0.1

#: When each task started and in which lane, in this order.
Starts = list[tuple[datetime, Priority]]


class Sleep(BackgroundTaskExecutable[float, None]):
    """Sleeps for so many seconds, beside other tasks."""

    task_type = "sleep"

    async def execute(self, context: TaskContext[float]) -> None:
        await asyncio.sleep(context.parameters)


def main() -> int:
    """Measure, and print the shares."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slots", type=int, default=5, help="of each worker")
    parser.add_argument("--seconds", type=float, default=0.05, help="for which each task sleeps")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--tasks", type=int, default=4_000, help="of both priorities together")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with servers() as place, tempfile.TemporaryDirectory() as folder:
        slots = {"WORKER__CONCURRENCY": str(options.slots)}
        apps = ["tests.benchmarks.lanes"]
        with running_workers(apps, options.workers, Path(folder), place, slots) as workers:
            framework = TaskFramework(place.settings())
            framework.register(Sleep)
            asyncio.run(_measure(framework, workers, options))
    return 0


async def _measure(framework: TaskFramework, workers: Sequence[Process], options: argparse.Namespace) -> None:
    async with framework.running(worker=False):
        await framework.submit_many([SubmitRequest(task_type="sleep", parameters=0)] * 100)
        await until_over(framework)  # now everything is warm
        for _ in range(options.rounds):
            plain = await _round(framework, workers, options, [Priority.NORMAL])
            lanes = await _round(framework, workers, options, [Priority.HIGH, Priority.LOW])
            _print(lanes, _seconds(plain) / _seconds(lanes))


async def _round(
    framework: TaskFramework, workers: Sequence[Process], options: argparse.Namespace, priorities: Sequence[Priority]
) -> Starts:
    requests = [_request(options.seconds, priority) for priority in priorities] * (options.tasks // len(priorities))
    since = framework.services.store.now()
    await submit_while_stopped(framework, workers, requests)
    await until_over(framework)
    return await _starts(framework, since)


def _request(seconds: float, priority: Priority) -> SubmitRequest:
    return SubmitRequest(task_type="sleep", parameters=seconds, priority=priority.value)


async def _starts(framework: TaskFramework, since: datetime) -> Starts:
    starts: Starts = []
    cursor: str | None = None
    while True:
        selected = TaskFilter(task_type="sleep", created_after=since)
        page = await framework.services.store.list_tasks(EVERYONE, selected, limit=_PAGE, cursor=cursor)
        starts.extend((task.started_at, task.lane) for task in page.items if task.started_at is not None)
        cursor = page.next_cursor
        if cursor is None:
            return sorted(starts)


def _seconds(starts: Starts) -> float:
    return (starts[-1][0] - starts[0][0]).total_seconds()


def _print(starts: Starts, rate: float) -> None:
    last_high = max(index for index, (_, lane) in enumerate(starts) if lane is Priority.HIGH)
    both_wait = starts[int(len(starts) * _BEGINNING_SHARE) : last_high]
    low = [at for at, lane in both_wait if lane is Priority.LOW]
    longest = max((b - a).total_seconds() for a, b in itertools.pairwise(low))
    sys.stdout.write(
        f"low tasks: {len(low) / len(both_wait):.3f} of the starts, {longest:.2f} s the longest pause; "
        f"{rate:.2f} of the rate without priorities\n"
    )
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
