"""Latency: one task after the other, or a steady stream of them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.benchmarks.contender import Contender
from tests.benchmarks.results import Outcome, Results

#: Seconds between two looks for a result: fine enough for milliseconds, and no load to speak of.
FIRST_LOOK = 0.001
#: Seconds after which a task has long begun. Who looks for results in MongoDB before that, every few milliseconds,
#: delays the start that is to be measured, and that of a contender which does more before it starts the most.
UNDISTURBED = 0.015
_LOOK = 0.002
_PATIENCE = 30.0


@dataclass(slots=True)
class Latencies:
    """Milliseconds from just before the submission."""

    start: list[float] = field(default_factory=list)
    result: list[float] = field(default_factory=list)


async def probe(
    contender: Contender, numbers: Sequence[int], seconds: float, first_look: float = FIRST_LOOK
) -> Latencies:
    """Submit one task at a time, wait for its result, pause a little and go on until numbers or seconds are used up.

    The result is looked for from `first_look` seconds after the submission on.
    """
    results = contender.results()
    latencies = Latencies()
    end = time.monotonic() + seconds
    for number in numbers:
        if time.monotonic() > end:
            break
        submitted = time.time_ns()
        task_id = await contender.submit(number)
        outcome = await _result(results, task_id, first_look)
        latencies.result.append((time.time_ns() - submitted) / 1e6)
        latencies.start.append((outcome["started"] - submitted) / 1e6)
        await pause()
    return latencies


async def pause(least: float = 0) -> None:
    """Idle for some milliseconds, and for `least` seconds before that.

    The length differs each time, so that nothing falls in step with a poll or a flush.
    """
    await asyncio.sleep(least + random.uniform(0.002, 0.012))


async def pace(contender: Contender, numbers: Sequence[int], rate: float) -> float:
    """Submit at a fixed rate, whatever comes back; return the rate that was kept."""
    start = time.perf_counter()
    running: set[asyncio.Task[str]] = set()
    for at, number in enumerate(numbers):
        if (wait := start + at / rate - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        task = asyncio.create_task(contender.submit(number))
        running.add(task)
        task.add_done_callback(running.discard)
    await asyncio.gather(*running)
    return len(numbers) / (time.perf_counter() - start)


async def _result(results: Results, task_id: str, first_look: float) -> Outcome:
    end = time.monotonic() + _PATIENCE
    # Not at once and in a thread: what was submitted may still be on its way out of this event loop.
    await asyncio.sleep(first_look)
    while (found := await asyncio.to_thread(results.find, task_id)) is None:
        if time.monotonic() > end:
            raise TimeoutError(f"no result of task {task_id} within {_PATIENCE:g} s")
        await asyncio.sleep(_LOOK)
    return found
