"""The embedded default: submit tasks and do them in one process, on SQLite, with nothing installed.

A program of its own, started in an empty folder, that prepares its process as `taskframework dev` does: prints tasks
a second, from the first submission to the last stored result.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time

import uvloop

from taskframework import Settings, SubmitRequest, TaskFramework
from taskframework.cli.process import reduce_garbage_collection
from taskframework.model.events import TaskCompletedEvent
from tests.benchmarks.contenders.taskframework import TASK_TYPE, Noop

_CHUNK = 1_000
_WARM_UP = 200


async def measure(tasks: int) -> float:
    """Tasks a second."""
    framework = TaskFramework(Settings())
    framework.register(Noop)
    async with framework.running():
        await _do(framework, _WARM_UP)
        reduce_garbage_collection()
        start = time.perf_counter()
        await _do(framework, tasks)
        return tasks / (time.perf_counter() - start)


async def _do(framework: TaskFramework, tasks: int) -> None:
    """Submit and wait until the last is completed; the bus tells of a completion when it is stored."""
    done = asyncio.Event()
    left = tasks

    def count(_: TaskCompletedEvent) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            done.set()

    framework.services.bus.listen(TaskCompletedEvent, count, name=f"benchmark of {tasks}")
    for at in range(0, tasks, _CHUNK):
        requests = [SubmitRequest(task_type=TASK_TYPE, parameters={"i": i}) for i in range(at, min(tasks, at + _CHUNK))]
        for outcome in await framework.submit_many(requests):
            if isinstance(outcome, Exception):
                raise outcome
    await done.wait()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(runner.run(measure(int(sys.argv[1]))))
