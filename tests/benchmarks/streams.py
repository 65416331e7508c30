"""`python -m tests.benchmarks.streams`: how fast the tasks of many serial streams run beside plain tasks.

Round by round on RabbitMQ and MongoDB, so many plain tasks, and as many tasks of serial streams, which take turns over
all keys. All are submitted while the workers are stopped (SIGSTOP); the rate is that of the workers after this. With
`--running` they are submitted while the workers run, and the rate is that from the first submission to the last end.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from taskframework import TaskFramework
from taskframework.submission.requests import SubmitRequest
from tests.benchmarks.families import Nothing
from tests.benchmarks.processes import Place, running_workers, servers, submit_all, submit_while_stopped, until_over
from tests.benchmarks.usage import cpu_seconds
from tests.support.process import Process


def main() -> int:
    """Measure, and print the rates and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000)
    parser.add_argument("--tasks", type=int, default=10, help="tasks of each key")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--running", action="store_true", help="submit while the workers run")
    options = parser.parse_args()
    with (
        servers() as place,
        tempfile.TemporaryDirectory() as folder,
        running_workers(["tests.benchmarks.families"], options.workers, Path(folder), place) as workers,
    ):
        asyncio.run(_measure(place, workers, options))
    return 0


async def _measure(place: Place, workers: Sequence[Process], options: argparse.Namespace) -> None:
    framework = TaskFramework(place.settings())
    framework.register(Nothing)
    async with framework.running(worker=False):
        await framework.submit_many([SubmitRequest(task_type="nothing", parameters=n) for n in range(1_000)])
        await until_over(framework)  # now everything is warm
        rates: dict[str, list[float]] = {"plain": [], "serial": []}
        for number in range(options.rounds):
            for kind, row in rates.items():
                keys = [f"{number}-{key}" for key in range(options.keys)] if kind == "serial" else [None] * options.keys
                requests = [_request(key, n) for n in range(options.tasks) for key in keys]
                stopped = [] if options.running else workers
                row.append(await _rate(framework, place, workers, stopped, kind, requests))
        plain, serial = (statistics.median(row) for row in rates.values())
        sys.stdout.write(f"plain {plain:.0f}/s, serial {serial:.0f}/s: {serial / plain:.2f}\n")


def _request(key: str | None, parameters: int) -> SubmitRequest:
    if key is None:
        return SubmitRequest(task_type="nothing", parameters=parameters)
    return SubmitRequest(task_type="nothing", parameters=parameters, stream={"key": key})


async def _rate(
    framework: TaskFramework,
    place: Place,
    workers: Sequence[Process],
    stopped: Sequence[Process],
    kind: str,
    requests: Sequence[SubmitRequest],
) -> float:
    if stopped:
        await submit_while_stopped(framework, stopped, requests)
    used = {"workers": [worker.pid for worker in workers], "MongoDB": [place.mongo.pid], "RabbitMQ": [place.rabbit.pid]}
    before = {name: cpu_seconds(pids) for name, pids in used.items()}
    began = time.monotonic()
    if not stopped:
        await submit_all(framework, requests)
    await until_over(framework)
    seconds = time.monotonic() - began
    spent = {name: (cpu_seconds(pids) - before[name]) / len(requests) * 1e6 for name, pids in used.items()}
    shown = ", ".join(f"{name} {each:.0f}" for name, each in spent.items())
    sys.stdout.write(f"{kind:>6}: {len(requests) / seconds:5.0f}/s; processor time of each task in µs: {shown}\n")
    sys.stdout.flush()
    return len(requests) / seconds


if __name__ == "__main__":
    sys.exit(main())
