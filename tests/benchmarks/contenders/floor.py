"""The floor: what a good engineer writes by hand, straight on aio-pika and PyMongo, for the same writes and no more."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

import uvloop

from tests.benchmarks import program
from tests.benchmarks.contender import Contender, Places, module_command
from tests.benchmarks.floor_documents import make_indexes
from tests.benchmarks.floor_loops import GROUP, Submitter, Worker
from tests.benchmarks.results import Results, task_results

WORKER = "worker"


class Floor(Contender):
    packages = ("aio-pika", "pymongo", "uvloop", "orjson")
    settings = {
        "queue": "quorum, persistent messages, publisher confirms (200 in flight), manual multiple ack",
        "store": "PyMongo's asynchronous client, majority writes; the framework's documents and indexes",
        "groups": f"up to {GROUP} tasks: claim, read, run, complete, read, one batch of events, published mark",
        "event loop": "uvloop",
    }
    weaker = (
        "not a framework: no retries, lease renewal, sweeper, reaper or relay, no limits, no observability",
        "no dispatch mark, so that a sweeper would send a message again that only waits",
    )
    bulk = "insert_many, 1,000 a call"

    def __init__(self) -> None:
        self._places = Places.from_environment()
        self._submitter = Submitter(self._places)

    def worker_commands(self, processes: int) -> Sequence[Sequence[str]]:
        return [module_command("tests.benchmarks.contenders.floor", WORKER)] * processes

    def results(self) -> Results:
        return task_results(self._places.mongo_url)

    async def open(self) -> None:
        await make_indexes(self._places.mongo_url)
        await self._submitter.open()

    async def close(self) -> None:
        await self._submitter.close()

    async def submit(self, number: int) -> str:
        return await self._submitter.submit(number)

    async def submit_many(self, numbers: Sequence[int]) -> None:
        await self._submitter.submit_many(numbers)

    async def flush(self) -> None:
        await self._submitter.flush()


if __name__ == "__main__":
    if sys.argv[1:] == [WORKER]:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(Worker(Places.from_environment()).run())
    else:
        program.run(Floor)
