"""What one majority insert of a task and one guarded claim take alone, with nothing else running.

Each comes after a pause, as the probes of the idle latency do: a write in a tight loop finds processors awake and
caches warm and takes half of the time, which no task that comes alone ever sees.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from functools import partial

import uvloop
from pymongo import AsyncMongoClient

from tests.benchmarks.figures import Samples
from tests.benchmarks.floor_documents import Document, claim, claimable, make_indexes, new_document
from tests.benchmarks.probing import UNDISTURBED, pause
from tests.benchmarks.stage import Stage

_WARM_UP = 20


def two_writes(stage: Stage, *, pairs: int) -> Samples:
    """Insert and claim documents of the framework's shape, with its indexes; milliseconds for each write and pair."""
    with stage.place() as place, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_measure(place["BENCH_MONGO_URL"], pairs))


async def _measure(url: str, pairs: int) -> Samples:
    await make_indexes(url)
    client: AsyncMongoClient[Document] = AsyncMongoClient(url)
    tasks = client.get_default_database()["tasks"]
    inserts, claims = [], []
    for number in range(_WARM_UP + pairs):
        document = new_document(number)
        guard, update = claimable([document["_id"]]), claim(secrets.token_hex(16), "worker")
        inserts.append(await _timed(partial(tasks.insert_one, document)))
        claims.append(await _timed(partial(tasks.find_one_and_update, guard, update)))
    await client.close()
    inserts, claims = inserts[_WARM_UP:], claims[_WARM_UP:]
    both = [sum(pair) for pair in zip(inserts, claims, strict=True)]
    return {"write_insert": inserts, "write_claim": claims, "write_both": both}


async def _timed(write: Callable[[], Awaitable[object]]) -> float:
    """Milliseconds of one write after a pause."""
    await pause(UNDISTURBED)
    begin = time.perf_counter()
    await write()
    return (time.perf_counter() - begin) * 1e3
