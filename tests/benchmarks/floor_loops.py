"""The floor's two halves: a submitter and a worker that group their writes. Nothing of the framework is used.

No retries, no leases renewed, no sweeper, no reaper, no relay: what is here is what a task costs at least when it is
stored first, claimed, fenced and told of.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import aio_pika
import orjson
from aio_pika.abc import AbstractIncomingMessage
from pymongo import AsyncMongoClient, UpdateOne

from tests.benchmarks.contender import Places, outcome
from tests.benchmarks.events import bind_subscriber
from tests.benchmarks.floor_documents import Document, claim, claimable, completion, events, new_document

QUEUE = "floor.noop"
EVENTS = "floor.events"
GROUP = 100
_UNCONFIRMED = 200
_PERSISTENT = aio_pika.DeliveryMode.PERSISTENT


class Submitter:
    """Stores a task with others that come at the same time, then publishes its message, confirmed."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._waiting: list[tuple[Document, asyncio.Future[None]]] = []
        self._inserting: asyncio.Task[None] | None = None
        self._publishing: set[asyncio.Task[None]] = set()
        self._unconfirmed = asyncio.Semaphore(_UNCONFIRMED)

    async def open(self) -> None:
        self._connection = await aio_pika.connect_robust(self._places.amqp_url)
        channel = await self._connection.channel()
        await declare(channel)
        await bind_subscriber(self._places.amqp_url, EVENTS)
        self._exchange = channel.default_exchange
        self._client: AsyncMongoClient[Document] = AsyncMongoClient(self._places.mongo_url)
        self._tasks = self._client.get_default_database()["tasks"]

    async def close(self) -> None:
        await self._connection.close()
        await self._client.close()

    async def submit(self, number: int) -> str:
        document = new_document(number)
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((document, stored))
        if self._inserting is None:
            self._inserting = asyncio.create_task(self._insert())
        await stored
        return str(document["_id"])

    async def submit_many(self, numbers: Sequence[int]) -> None:
        documents = [new_document(number) for number in numbers]
        await self._tasks.insert_many(documents, ordered=False)
        self._publish(documents)

    async def flush(self) -> None:
        while self._publishing:
            await asyncio.wait(self._publishing)

    async def _insert(self) -> None:
        while self._waiting:
            group, self._waiting = self._waiting, []
            documents = [document for document, _ in group]
            await self._tasks.insert_many(documents, ordered=False)
            for _, stored in group:
                stored.set_result(None)
            self._publish(documents)
        self._inserting = None

    def _publish(self, documents: Sequence[Document]) -> None:
        for document in documents:
            task = asyncio.create_task(self._publish_one(document))
            self._publishing.add(task)
            task.add_done_callback(self._publishing.discard)

    async def _publish_one(self, document: Document) -> None:
        body = orjson.dumps({"task_id": document["_id"], "task_type": document["task_type"], "dispatch_epoch": 1})
        async with self._unconfirmed:
            await self._exchange.publish(aio_pika.Message(body, delivery_mode=_PERSISTENT), QUEUE)


class Worker:
    """Deliveries in groups through three stations, each busy with another group: claim and run, complete, publish."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._worker_id = secrets.token_hex(8)
        self._deliveries: asyncio.Queue[AbstractIncomingMessage] = asyncio.Queue()

    async def run(self) -> None:
        """Work until cancelled."""
        connection = await aio_pika.connect_robust(self._places.amqp_url)
        client: AsyncMongoClient[Document] = AsyncMongoClient(self._places.mongo_url, tz_aware=True)
        async with connection, client:
            self._tasks = client.get_default_database()["tasks"]
            await self._work(await connection.channel())

    async def _work(self, channel: Any) -> None:
        queue = await declare(channel)
        self._events = await channel.get_exchange(EVENTS, ensure=False)
        await channel.set_qos(prefetch_count=3 * GROUP)
        await queue.consume(self._deliveries.put)
        claimed: asyncio.Queue[Any] = asyncio.Queue(1)
        completed: asyncio.Queue[Any] = asyncio.Queue(1)
        await asyncio.gather(
            _station(self._next_group, self._claim, claimed.put),
            _station(claimed.get, self._complete, completed.put),
            _station(completed.get, self._publish, _nowhere),
        )

    async def _next_group(self) -> list[AbstractIncomingMessage]:
        group = [await self._deliveries.get()]
        while len(group) < GROUP and not self._deliveries.empty():
            group.append(self._deliveries.get_nowait())
        return group

    async def _claim(
        self, group: list[AbstractIncomingMessage]
    ) -> tuple[AbstractIncomingMessage, list[UpdateOne], Any]:
        ids = [orjson.loads(message.body)["task_id"] for message in group]
        claim_id = secrets.token_hex(16)
        won = await self._won(ids, claim_id)
        writes = [completion(task, await noop(task["parameters"]), self._worker_id) for task in won]
        return group[-1], writes, {"_id": {"$in": ids}, "last_claim_id": claim_id}

    async def _won(self, ids: list[str], claim_id: str) -> list[Document]:
        guard, update = claimable(ids), claim(claim_id, self._worker_id)
        if len(ids) == 1:
            document = await self._tasks.find_one_and_update(guard, update, return_document=True, hint="_id_")
            return [] if document is None else [document]
        await self._tasks.update_many(guard, update, hint="_id_")
        return await self._tasks.find({"_id": {"$in": ids}, "lease.claim_id": claim_id}).to_list()

    async def _complete(self, work: tuple[AbstractIncomingMessage, list[UpdateOne], Any]) -> list[Document]:
        last, writes, of_this_claim = work
        if writes:
            await self._tasks.bulk_write(writes, ordered=False)
        documents: list[Document] = await self._tasks.find(of_this_claim).to_list()
        await last.ack(multiple=True)  # groups come here in the order of their deliveries
        return documents

    async def _publish(self, documents: list[Document]) -> None:
        batch = [event for document in documents for event in events(document)]
        message = aio_pika.Message(
            orjson.dumps(batch), content_type="application/cloudevents-batch+json", delivery_mode=_PERSISTENT
        )
        await self._events.publish(message, "", mandatory=False)
        for sequence in {document["sequence"] for document in documents}:
            ids = [document["_id"] for document in documents if document["sequence"] == sequence]
            published = {"published_sequence": sequence, "publish_at": None}
            await self._tasks.update_many({"_id": {"$in": ids}, "sequence": sequence}, {"$set": published})


async def noop(parameters: Document) -> Document:
    return dict(outcome(parameters["i"]))


async def declare(channel: Any) -> Any:
    """The queue of the tasks and the exchange of the events."""
    await channel.declare_exchange(EVENTS, "fanout", durable=True)
    return await channel.declare_queue(QUEUE, durable=True, arguments={"x-queue-type": "quorum"})


async def _station(
    take: Callable[[], Awaitable[Any]], work: Callable[[Any], Awaitable[Any]], give: Callable[[Any], Awaitable[None]]
) -> None:
    while True:
        await give(await work(await take()))


async def _nowhere(_: None) -> None:
    """The last station has nobody behind it."""
