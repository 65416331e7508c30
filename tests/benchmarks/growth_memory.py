"""A worker's memory while it does many tasks, on RabbitMQ and MongoDB."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

from tests.benchmarks.contenders import OURS
from tests.benchmarks.stage import Client, Program, Stage, Workers
from tests.benchmarks.usage import memory
from tests.support.process import ServerFailed

_SUBMITTED_AT_ONCE = 2_000
#: So many may wait: the queue is to stay short, so that memory tells of tasks done and not of tasks waiting.
_AHEAD = 10_000
_PATIENCE = 600.0


def grown(points: Sequence[int], tell: Callable[[str], None]) -> list[tuple[int, float]]:
    """Have no-op tasks done by one worker process and look at it when so many are done.

    Args:
        points: numbers of tasks done, growing.
        tell: hears of the progress.

    Returns:
        For each point the tasks done by then and MiB resident.

    Raises:
        ServerFailed: The worker died or does not go on.
    """
    with contextlib.closing(Stage(with_redis=False)) as stage:
        stage.start()
        program = Program.load(OURS)
        with stage.place() as place, program.client(stage, place) as client:
            client.ask("open")
            with program.workers(stage, place, 1) as workers:
                return _watched(client, workers, points, tell)


def _watched(
    client: Client, workers: Workers, points: Sequence[int], tell: Callable[[str], None]
) -> list[tuple[int, float]]:
    found: list[tuple[int, float]] = []
    submitted, done, end = 0, 0, time.monotonic() + _PATIENCE
    while len(found) < len(points):
        if submitted < points[-1] and submitted - done < _AHEAD:
            count = min(_SUBMITTED_AT_ONCE, points[-1] - submitted)
            client.ask("submit", first=submitted, count=count, way="bulk")
            submitted += count
        done = client.ask("count", limit=points[-1])
        if done >= points[len(found)]:
            workers.wait(lambda: True, "the worker lives", timeout=1)
            found.append((done, memory(workers.pids)["rss"]))
            tell(f"{done:,} tasks done: {found[-1][1]:.1f} MiB")
        if time.monotonic() > end:
            raise ServerFailed(f"{done:,} of {points[-1]:,} tasks done in {_PATIENCE:g} s")
        time.sleep(0.05)
    return found
