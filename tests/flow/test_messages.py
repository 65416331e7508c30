"""Messages nobody should send: doubled, unreadable, without a task, for newer versions and unknown types."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel
from pymongo import AsyncMongoClient

from taskframework import TaskFramework, TaskStatus
from taskframework.errors import TaskUnreadableError
from taskframework.model.message import TaskMessage
from taskframework.model.query import TaskFilter
from taskframework.model.scope import EVERYONE
from taskframework.model.status import Priority
from taskframework.testing.eventually import eventually
from tests.flow.conftest import Run
from tests.support.kitchen_sink import Counts, Waits

pytestmark = pytest.mark.parametrize("urls", ["servers", "servers, plain"], indirect=True)


@asynccontextmanager
async def foreign_channel(urls: dict[str, str]) -> AsyncIterator[AbstractChannel]:
    """A channel as any AMQP client opens one."""
    connection = await aio_pika.connect(urls["broker"])
    async with connection:
        yield await connection.channel()


async def send(channel: AbstractChannel, body: bytes, *, key: str = "counts.normal") -> None:
    exchange = await channel.get_exchange("tasks.exchange", ensure=False)
    await exchange.publish(aio_pika.Message(body, headers={"from": "elsewhere"}), key)


async def letters(framework: TaskFramework) -> list[dict[str, Any]]:
    page = await framework.services.dead_letters.list_letters(EVERYONE, limit=500)
    return [letter.view(whole=True) for letter in page.items]


async def test_the_same_message_twenty_times_is_one_execution(run: Run, urls: dict[str, str]) -> None:
    Counts.executions.clear()
    async with run() as framework, foreign_channel(urls) as channel:
        handle = await framework.submit("counts")
        body = TaskMessage.for_task(await handle.task()).to_body()
        await asyncio.gather(*(send(channel, body) for _ in range(20)))
        assert await handle.result(timeout=60) == 1
        await eventually(lambda: _is_empty(framework, "counts"))
        assert await letters(framework) == []
    assert Counts.executions[handle.task_id] == 1


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\x00\xffgarbage", "not JSON"),
        (b"", "not JSON"),
        (b"[1, 2]", "not a JSON object"),
        (b'{"schema_version": 99, "task_id": "x", "task_type": "counts", "dispatch_epoch": 1}', "schema_version is 99"),
        (b'{"schema_version": 1, "task_id": 5, "task_type": "counts", "dispatch_epoch": 1}', "task_id"),
        (
            b'{"schema_version": 1, "task_id": "gone", "task_type": "counts", "dispatch_epoch": 1}',
            "same broker.prefix",
        ),
        (b"x" * 200_000, "bytes"),
    ],
)
async def test_a_message_that_cannot_be_run_is_kept_and_the_queue_continues(
    run: Run, urls: dict[str, str], body: bytes, reason: str
) -> None:
    async with run() as framework, foreign_channel(urls) as channel:
        await send(channel, body)
        (letter,) = await eventually(lambda: letters(framework))
        assert letter["kind"] == "message"
        assert base64.b64decode(letter["body_base64"]) == body
        assert reason in letter["reason"]
        assert letter["headers"]["from"] == "elsewhere"
        assert await (await framework.submit("counts")).result(timeout=60) == 1


async def test_unreadable_messages_wait_for_no_slot_and_are_kept_once(run: Run, urls: dict[str, str]) -> None:
    bodies = {b"\xff%d" % number for number in range(400)}
    async with run() as framework, foreign_channel(urls) as channel:
        slots = framework.settings.worker.concurrency
        waiting = await asyncio.gather(*(framework.submit("waits") for _ in range(slots)))
        await eventually(lambda: Waits.started == slots)
        await asyncio.gather(*(send(channel, body, key="waits.normal") for body in bodies))

        async def kept() -> list[dict[str, Any]]:
            found = await letters(framework)
            return found if len(found) >= len(bodies) else []

        found = await eventually(kept)
        assert sorted(base64.b64decode(letter["body_base64"]) for letter in found) == sorted(bodies)
        Waits.gate.set()
        await asyncio.gather(*(handle.finished(timeout=60) for handle in waiting))


async def test_a_task_of_a_newer_version_is_postponed_untouched(run: Run, urls: dict[str, str]) -> None:
    def make_newer(document: dict[str, Any]) -> dict[str, Any]:
        return {"$set": {"schema_version": 99, "new_field": "kept"}}

    document = await _postponed(run, urls, make_newer)
    assert (document["status"], document["attempts"], document["new_field"]) == ("QUEUED", 0, "kept")


async def test_a_task_of_an_unknown_type_is_postponed(run: Run, urls: dict[str, str]) -> None:
    def rename(document: dict[str, Any]) -> dict[str, Any]:
        return {"$set": {"task_type": "of-tomorrow"}}

    document = await _postponed(run, urls, rename)
    assert (document["status"], document["attempts"]) == ("QUEUED", 0)


async def test_a_task_of_a_shape_nobody_knows_hides_and_stops_nothing(run: Run, urls: dict[str, str]) -> None:
    def reshape(document: dict[str, Any]) -> dict[str, Any]:
        return {"$set": {"schema_version": 99, "history": "elsewhere", "next_dispatch_at": document["created_at"]}}

    await _postponed(run, urls, reshape)
    async with run() as framework:
        with pytest.raises(TaskUnreadableError, match="newer release"):
            await framework.get("stored-elsewhere")
        listed = await framework.services.tasks.list_tasks(EVERYONE, TaskFilter(), limit=10)
        assert [task.status for task in listed.items] == [TaskStatus.COMPLETED] * 2


async def test_a_message_cannot_choose_another_type_than_its_document_has(run: Run, urls: dict[str, str]) -> None:
    Counts.executions.clear()
    async with run() as framework, foreign_channel(urls) as channel:
        soon = datetime.now(UTC) + timedelta(milliseconds=500)
        handle = await framework.submit("count-words", {"text": "a b"}, not_before=soon)
        lie = {"schema_version": 1, "task_id": handle.task_id, "task_type": "counts", "dispatch_epoch": 1}
        await send(channel, json.dumps(lie).encode())
        assert await handle.result(timeout=60) == {"words": 2}
    assert handle.task_id not in Counts.executions


async def test_a_type_nobody_runs_ends_as_dead_letter_after_its_limit(run: Run, urls: dict[str, str]) -> None:
    recovery = {"no_handler_delay": "10ms", "no_handler_limit": 2}
    async with run(recovery=recovery) as framework, foreign_channel(urls) as channel:
        task_id, message = await _stored_elsewhere(framework, urls, lambda _: {"$set": {"task_type": "of-tomorrow"}})

        async def ended() -> bool:
            await send(channel, message)
            return (await framework.get(task_id)).status is TaskStatus.DEAD_LETTER

        await eventually(ended)
        (letter,) = await letters(framework)
        assert letter["error"]["code"] == "no_handler"


async def _postponed(
    run: Run, urls: dict[str, str], change: Callable[[dict[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """Store a task, change its document as another release would, ring for it, and wait until it is put off."""
    async with run() as framework, foreign_channel(urls) as channel:
        task_id, message = await _stored_elsewhere(framework, urls, change)
        await send(channel, message)

        async def put_off() -> dict[str, Any]:
            found = await _document(urls, task_id)
            return found if found["no_handler"] == 1 else {}

        document: dict[str, Any] = await eventually(put_off)
        assert await (await framework.submit("counts")).result(timeout=60) == 1, "the queue goes on"
        assert await letters(framework) == []
        return document


async def _stored_elsewhere(
    framework: TaskFramework, urls: dict[str, str], change: Callable[[dict[str, Any]], dict[str, Any]]
) -> tuple[str, bytes]:
    """A task of which no message is under way yet."""
    async with _collection(urls) as collection:
        handle = await framework.submit("counts")
        await handle.finished(timeout=60)
        document = await collection.find_one({"_id": handle.task_id})
        assert document is not None
        document |= {"_id": "stored-elsewhere", "status": "QUEUED", "attempts": 0, "finished_at": None, "result": None}
        document |= {"last_claim_id": None, "started_at": None, "next_dispatch_at": None}
        await collection.insert_one(document)
        await collection.update_one({"_id": "stored-elsewhere"}, change(document))
        message = json.dumps(
            {"schema_version": 1, "task_id": "stored-elsewhere", "task_type": "counts", "dispatch_epoch": 1}
        )
        if change(document)["$set"].get("task_type"):
            message = message.replace('"counts"', '"of-tomorrow"')
        return "stored-elsewhere", message.encode()


@asynccontextmanager
async def _collection(urls: dict[str, str]) -> AsyncIterator[Any]:
    async with AsyncMongoClient[dict[str, Any]](urls["store"]) as client:
        yield client.get_default_database()["tasks"]


async def _document(urls: dict[str, str], task_id: str) -> dict[str, Any]:
    async with _collection(urls) as collection:
        found: dict[str, Any] = await collection.find_one({"_id": task_id})
    return found


async def _is_empty(framework: TaskFramework, task_type: str) -> bool:
    return await framework.process.broker.queue_depth(task_type, Priority.NORMAL) == 0
