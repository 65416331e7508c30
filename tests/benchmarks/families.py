"""`python -m tests.benchmarks.families`: what a sub-task costs beside a plain task, and whether that grows.

Per size, round by round: so many plain tasks that are submitted at once, and one task that plans so many sub-tasks of
the same type; on RabbitMQ and MongoDB with two worker processes, from the submission until all of it is over. Prints
microseconds for each (sub-)task, first of time and then of processor time, and the memory of the workers. Before that
it measures what the parent itself costs: a task that runs twice, and waits between.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from taskframework import BackgroundTaskExecutable, Settings, SubtaskSummary, TaskContext, TaskFramework
from taskframework.submission.requests import SubmitRequest
from tests.benchmarks.processes import running_workers, servers, until_over
from tests.benchmarks.usage import cpu_seconds, memory
from tests.support.process import Process

_SIZES = ((100, 20), (1_000, 6), (10_000, 3), (100_000, 1))
_ROUNDS_OF_PARENT = 40
_WORKERS = 2
_LOOK_SECONDS = 0.02


class Nothing(BackgroundTaskExecutable[int, int]):
    """A task without work: what remains is what it costs to have one."""

    task_type = "nothing"

    async def execute(self, context: TaskContext[int]) -> int:
        return context.parameters


class Family(BackgroundTaskExecutable[int, int]):
    """Plans so many of them."""

    task_type = "family"

    async def execute(self, context: TaskContext[int]) -> None:
        await context.submit_subtasks(Nothing, range(context.parameters))

    async def on_subtasks_finished(self, context: TaskContext[int], summary: SubtaskSummary) -> int:
        return summary.succeeded


def main() -> int:
    """Measure every size and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=100_000, help="largest number of sub-tasks")
    most = parser.parse_args().most
    with (
        servers() as place,
        tempfile.TemporaryDirectory() as folder,
        running_workers(["tests.benchmarks.families"], _WORKERS, Path(folder), place) as workers,
    ):
        asyncio.run(_measure(place.settings(), workers, place.mongo.pid, most))
    return 0


async def _measure(settings: Settings, workers: list[Process], mongo: int, most: int) -> None:
    framework = TaskFramework(settings)
    for executable in (Nothing, Family):
        framework.register(executable)
    async with framework.running(worker=False):
        await _plain(framework, 500)  # until everything is warm
        parent = await _seconds_of_parent(framework)
        sys.stdout.write(f" parent: {parent * 1e3:.0f} ms\n")
        for size, rounds in _SIZES:
            if size > most:
                continue
            ways = (_plain, _family)
            rows: list[list[list[float]]] = [[], []]
            for _ in range(rounds):
                for row, way in zip(rows, ways, strict=True):
                    # The last one is this process with its descendants: the workers and both servers.
                    groups = [[worker.pid for worker in workers], [mongo], [os.getpid()]]
                    before = [cpu_seconds(group) for group in groups]
                    seconds = await way(framework, size)
                    await asyncio.sleep(2.5)  # marks are written two seconds later
                    spent = [cpu_seconds(group) - earlier for group, earlier in zip(groups, before, strict=True)]
                    row.append([value / size * 1e6 for value in (seconds, *spent)])
            plain, below = ([statistics.median(column) for column in zip(*row, strict=True)] for row in rows)
            shown = "  ".join(
                f"{name} {p:5.0f} {b:5.0f} ({b / max(p, 1e-9):4.2f})"
                for name, p, b in zip(("µs", "workers", "MongoDB", "all processes"), plain, below, strict=True)
            )
            largest = memory([worker.pid for worker in workers])["rss"]
            alone = (below[0] - parent / size * 1e6) / plain[0]
            sys.stdout.write(f"{size:>7,}: {shown}  time without the parent {alone:.2f}  {largest:.0f} MiB\n")
            sys.stdout.flush()


async def _seconds_of_parent(framework: TaskFramework) -> float:
    families, plain = [], []
    for _ in range(_ROUNDS_OF_PARENT):
        families.append(await _family(framework, 1))
        plain.append(await _plain(framework, 1))
    return statistics.median(families) - statistics.median(plain)


async def _plain(framework: TaskFramework, size: int) -> float:
    began = time.monotonic()
    await framework.submit_many([SubmitRequest(task_type="nothing", parameters=number) for number in range(size)])
    await until_over(framework)
    return time.monotonic() - began


async def _family(framework: TaskFramework, size: int) -> float:
    began = time.monotonic()
    handle = await framework.submit(Family, size)
    while not (task := await handle.task()).status.is_final:  # noqa: ASYNC110 - it ends in another process
        await asyncio.sleep(_LOOK_SECONDS)
    seconds = time.monotonic() - began
    assert task.result == size, task
    return seconds


if __name__ == "__main__":
    sys.exit(main())
