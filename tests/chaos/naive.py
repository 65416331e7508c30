"""A task system as one writes it first, so that the checker can be seen to fail.

It speaks the same HTTP and keeps documents of the same shape, but: the insert and the message are two steps with nobody
to repair the second, a claim has no lease and no fence, and a retry waits in the memory of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator
from typing import Any

import aio_pika
import uvicorn
from aio_pika.abc import AbstractIncomingMessage, AbstractRobustChannel
from pymongo import AsyncMongoClient
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from tests.chaos.history import Recorder

QUEUE = "naive"
_PREFETCH = 10

#: What is driven by nothing looks like this; the checker asks for all of it.
_EMPTY: dict[str, Any] = {
    "generation": 0,
    "fencing_token": 0,
    "attempts": 0,
    "sequence": 0,
    "published_sequence": 0,
    "publish_at": None,
    "next_dispatch_at": None,
    "lease": None,
    "result": None,
    "history": [],
}


class Naive:
    """Both roles; `acks_first` tells whether a message is acknowledged before its task runs or after."""

    def __init__(self, *, acks_first: bool) -> None:
        self._acks_first = acks_first
        self._recorder = Recorder.from_environment()
        url = os.environ["TASKFRAMEWORK_STORE__URL"]
        client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(url)
        self._tasks = client.get_default_database()["tasks"]
        self._channel: AbstractRobustChannel
        self._retries: set[asyncio.Task[None]] = set()

    async def connect(self) -> None:
        connection = await aio_pika.connect_robust(os.environ["TASKFRAMEWORK_BROKER__URL"])
        self._channel = await connection.channel()
        await self._channel.set_qos(_PREFETCH)
        self._queue = await self._channel.declare_queue(QUEUE, durable=True)

    async def consume(self) -> None:
        await self._queue.consume(self._take)

    async def submit(self, request: Request) -> JSONResponse:
        body = await request.json()
        task = {"_id": uuid.uuid4().hex, "status": "QUEUED", **body, **_EMPTY}
        await self._tasks.insert_one(task)
        await self._publish(task["_id"])
        return JSONResponse({"task_id": task["_id"]}, 202)

    async def _publish(self, task_id: str) -> None:
        message = aio_pika.Message(task_id.encode(), delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        await self._channel.default_exchange.publish(message, QUEUE)

    async def _take(self, message: AbstractIncomingMessage) -> None:
        if self._acks_first:
            await message.ack()
        task = await self._tasks.find_one_and_update(
            {"_id": message.body.decode(), "status": {"$in": ["QUEUED", "RETRYING"]}},
            {"$set": {"status": "RUNNING"}, "$inc": {"attempts": 1}},
            return_document=True,
        )
        if task is not None:
            await self._run(task)
        if not self._acks_first:
            await message.ack()

    async def _run(self, task: dict[str, Any]) -> None:
        work, attempt = task["parameters"], task["attempts"]
        told = {"task": task["_id"], "token": attempt, "pid": os.getpid()}
        self._recorder.record("execution.start", attempt=attempt, **told)
        await asyncio.sleep(work["seconds"])
        self._recorder.record("execution.effect", **told)
        if attempt <= work.get("fails", 0):
            self._recorder.record("execution.end", outcome="raised", delay=work["delay"], **told)
            await self._tasks.update_one({"_id": task["_id"]}, {"$set": {"status": "RETRYING"}})
            retry = asyncio.create_task(self._retry(task["_id"], work["delay"]))
            self._retries.add(retry)
            retry.add_done_callback(self._retries.discard)
            return
        self._recorder.record("execution.end", outcome="returned", **told)
        await self._tasks.update_one({"_id": task["_id"]}, {"$set": {"status": "COMPLETED", "result": {}}})

    async def _retry(self, task_id: str, delay: float) -> None:
        await asyncio.sleep(delay)
        await self._publish(task_id)


async def serve(role: str, ack: str, *, port: int | None) -> None:
    """Run as `api` or `worker` until SIGTERM."""
    naive = Naive(acks_first=ack == "acks-first")
    await naive.connect()
    if role == "worker":
        await naive.consume()
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        _say_ready()
        await stop.wait()
        return
    app = Starlette(routes=[Route("/api/v1/tasks", naive.submit, methods=["POST"])], lifespan=_lifespan)
    config = uvicorn.Config(app, port=port or 0, log_level="warning")
    with contextlib.suppress(KeyboardInterrupt):
        await uvicorn.Server(config).serve()


@contextlib.asynccontextmanager
async def _lifespan(_: Starlette) -> AsyncIterator[None]:
    _say_ready()
    yield


def _say_ready() -> None:
    sys.stderr.write(json.dumps({"event": "ready"}) + "\n")


if __name__ == "__main__":
    _, role, ack, *rest = sys.argv
    asyncio.run(serve(role, ack, port=int(rest[1]) if rest else None))
