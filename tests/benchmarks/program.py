"""The program that a contender's file is: answers the runner's requests, one JSON line each, on standard output.

`describe` prints what it is and ends; without an argument it serves until its standard input ends.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

import uvloop

from tests.benchmarks.contender import Contender
from tests.benchmarks.probing import FIRST_LOOK, pace, probe

_CHUNK = 1_000


def run(make: Callable[[], Contender]) -> None:
    """Be the program of a contender."""
    # What libraries print must not come between the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    contender = make()
    if sys.argv[1:] == ["describe"]:
        print(json.dumps(_description(contender)), file=answers)
        return
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(contender, answers))


async def _serve(contender: Contender, answers: Any) -> None:
    requests = _Requests(contender)
    while line := await asyncio.to_thread(sys.stdin.readline):
        request = json.loads(line)
        answer = await getattr(requests, request.pop("do"))(**request)
        print(json.dumps(answer), file=answers)


def _description(contender: Contender) -> dict[str, Any]:
    return {
        "versions": {package: metadata.version(package) for package in contender.packages},
        "settings": dict(contender.settings),
        "weaker": list(contender.weaker),
        "share": contender.share,
        "bulk": contender.bulk,
        "on_redis": contender.on_redis,
        "workers": {processes: contender.worker_commands(processes) for processes in (1, 2)},
    }


class _Requests:
    """What the runner may ask for, by name."""

    def __init__(self, contender: Contender) -> None:
        self._contender = contender
        self._results: Any = None

    async def open(self) -> None:
        await self._contender.open()
        self._results = self._contender.results()

    async def close(self) -> None:
        await self._contender.close()

    async def submit(self, first: int, count: int, way: str) -> dict[str, Any]:
        """Submit by single calls or in bulk; returns tasks a second and CPU seconds a task."""
        numbers = range(first, first + count)
        cpu = time.process_time()
        if way == "bulk":
            start = time.perf_counter()
            for at in range(0, count, _CHUNK):
                await self._contender.submit_many(numbers[at : at + _CHUNK])
            accepted = time.perf_counter() - start
            await self._contender.flush()
            ways = {"confirmed": (time.perf_counter() - start) / count, "accepted": accepted / count}
            rate = 1 / ways["confirmed"]
        else:
            ways = dict(await self._contender.submit_single(numbers))
            rate = 1 / min(ways.values())
        cpu = (time.process_time() - cpu) / count
        return {"rate": rate, "cpu": cpu, "ways": {name: 1 / seconds for name, seconds in ways.items()}}

    async def probe(
        self, first: int, count: int, seconds: float, after: float = 0, first_look: float = FIRST_LOOK
    ) -> dict[str, Any]:
        """Probe after a pause of `after` seconds."""
        await asyncio.sleep(after)
        return dataclasses.asdict(await probe(self._contender, range(first, first + count), seconds, first_look))

    async def pace(self, first: int, count: int, rate: float) -> float:
        return await pace(self._contender, range(first, first + count), rate)

    async def count(self, limit: int) -> int:
        return int(self._results.count(limit))

    async def has_all(self, tasks: int) -> bool:
        return bool(self._results.has_all(tasks))

    async def is_settled(self, tasks: int) -> bool:
        return bool(self._results.is_settled(tasks))

    async def numbers(self) -> list[int]:
        return [int(outcome["i"]) for outcome in self._results.all()]
