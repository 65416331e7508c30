"""`python -m tests.benchmarks.lanes`: how the slots are shared while tasks of two priorities wait.

High and low tasks that sleep are submitted while the workers are stopped (SIGSTOP). From then on, until the last high
task has started, both wait all the time; so of the starts in this time each priority should have its weight's share
(8:1 by default). Prints the share of the low tasks, their longest pause between two starts, and the rate.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from taskframework import BackgroundTaskExecutable, TaskContext, TaskFramework
from taskframework.model.query import TaskFilter
from taskframework.model.scope import EVERYONE
from taskframework.model.status import Priority
from taskframework.submission.service import SubmitRequest
from tests.benchmarks.processes import running_workers, servers, until_over
from tests.support.process import Process

#: How many requests are submitted together, and how many tasks are read together.
_GROUP = 500
#: Seconds after the last submission until the submitter is at rest: marks are written two seconds later.
_REST_SECONDS = 4.0
#: This share of the starts is left out at the beginning, until each worker has messages of both priorities.
_BEGINNING_SHARE = 0.1


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
    parser.add_argument("--tasks", type=int, default=2_000, help="of each of the two priorities")
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
            for worker in workers:
                worker.pause()
            since = framework.services.store.now()
            for priority in (Priority.HIGH, Priority.LOW):
                await _submit(framework, [_request(options.seconds, priority)] * options.tasks)
            await asyncio.sleep(_REST_SECONDS)
            began = time.monotonic()
            for worker in workers:
                worker.send(signal.SIGCONT)
            await until_over(framework)
            _print(await _starts(framework, since), time.monotonic() - began)


def _request(seconds: float, priority: Priority) -> SubmitRequest:
    return SubmitRequest(task_type="sleep", parameters=seconds, priority=priority.value)


async def _submit(framework: TaskFramework, requests: Sequence[SubmitRequest]) -> None:
    for at in range(0, len(requests), _GROUP):
        await framework.submit_many(requests[at : at + _GROUP])


async def _starts(framework: TaskFramework, since: datetime) -> list[tuple[datetime, Priority]]:
    starts: list[tuple[datetime, Priority]] = []
    cursor: str | None = None
    while True:
        selected = TaskFilter(task_type="sleep", created_after=since)
        page = await framework.services.store.list_tasks(EVERYONE, selected, limit=_GROUP, cursor=cursor)
        starts.extend((task.started_at, task.lane) for task in page.items if task.started_at is not None)
        cursor = page.next_cursor
        if cursor is None:
            return sorted(starts)


def _print(starts: Sequence[tuple[datetime, Priority]], seconds: float) -> None:
    last_high = max(index for index, (_, lane) in enumerate(starts) if lane is Priority.HIGH)
    both_wait = starts[int(len(starts) * _BEGINNING_SHARE) : last_high]
    low = [at for at, lane in both_wait if lane is Priority.LOW]
    longest = max((b - a).total_seconds() for a, b in itertools.pairwise(low))
    sys.stdout.write(
        f"low tasks: {len(low) / len(both_wait):.3f} of the starts, {longest:.2f} s the longest pause; "
        f"{len(starts) / seconds:.0f} tasks a second\n"
    )
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
