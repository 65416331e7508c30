"""The floor of the benchmarks does what it is compared for: the framework's documents, finished and told of."""

from __future__ import annotations

import asyncio
import contextlib

import aio_pika
import orjson
from pymongo import AsyncMongoClient

from taskframework.model.status import TaskStatus
from taskframework.stores.mongo.documents import task_of
from taskframework.testing.eventually import eventually
from tests.benchmarks.contender import Places
from tests.benchmarks.events import QUEUE
from tests.benchmarks.floor_documents import Document, make_indexes
from tests.benchmarks.floor_loops import GROUP, Submitter, Worker

MANY = 2 * GROUP + 1


async def test_every_task_is_completed_once_and_its_events_are_published(amqp_url: str, mongo_url: str) -> None:
    places = Places(amqp_url, mongo_url, "")
    await make_indexes(mongo_url)
    submitter = Submitter(places)
    await submitter.open()
    working = asyncio.create_task(Worker(places).run())
    async with AsyncMongoClient[Document](mongo_url, tz_aware=True) as client:
        collection = client.get_default_database()["tasks"]

        async def all_published() -> bool:
            return await collection.count_documents({"published_sequence": 3, "publish_at": None}) == MANY + 1

        await submitter.submit(-1)
        await submitter.submit_many(range(MANY))
        await submitter.flush()
        await eventually(all_published)
        tasks = [task_of(document) for document in await collection.find().to_list()]
    working.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await working
    await submitter.close()

    assert sorted(task.result["i"] for task in tasks) == list(range(-1, MANY))
    for task in tasks:
        assert (task.status, task.attempts, task.fencing_token, task.lease) == (TaskStatus.COMPLETED, 1, 1, None)
        assert task.parameters == {"i": task.result["i"]}
        assert [entry.type for entry in task.history] == ["submitted", "started", "completed"]
    assert await _published(amqp_url) == {(task.task_id, sequence) for task in tasks for sequence in (1, 2, 3)}


async def _published(url: str) -> set[tuple[str, int]]:
    found = set()
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        queue = await channel.get_queue(QUEUE)
        while (message := await queue.get(fail=False, no_ack=True)) is not None:
            found |= {(event["subject"], event["sequence"]) for event in orjson.loads(message.body)}
    return found
