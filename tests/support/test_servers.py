"""The servers keep what they promise to the other tests: nothing is shared, and a kill loses nothing confirmed."""

from __future__ import annotations

import asyncio
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aio_pika
import pytest
from pymongo import AsyncMongoClient

from taskframework.testing.eventually import eventually
from tests.support import process
from tests.support.servers import MongoServer, RabbitServer


@pytest.mark.parametrize("turn", [1, 2])
async def test_each_test_has_its_own_virtual_host(amqp_url: str, turn: int) -> None:
    async with await aio_pika.connect(amqp_url) as connection, connection.channel() as channel:
        queue = await channel.declare_queue("same-name", durable=True, arguments={"x-queue-type": "quorum"})
        assert queue.declaration_result.message_count == 0
        await channel.default_exchange.publish(aio_pika.Message(b"left over"), "same-name")


@pytest.mark.parametrize("turn", [1, 2])
async def test_each_test_has_its_own_database(mongo_url: str, turn: int) -> None:
    client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(mongo_url)
    async with client:
        things = client.get_default_database()["things"]
        assert await things.count_documents({}) == 0
        await things.insert_one({"left": "over"})


def test_confirmed_messages_survive_a_kill(rabbit_server: RabbitServer, amqp_url: str) -> None:
    asyncio.run(_publish(amqp_url))
    rabbit_server.flush()
    rabbit_server.kill()
    rabbit_server.start()
    assert asyncio.run(_get(amqp_url)) == b"kept"


async def test_acknowledged_writes_survive_a_kill(mongo_server: MongoServer, mongo_url: str) -> None:
    client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(mongo_url)
    async with client:
        things = client.get_default_database()["things"]
        await things.insert_one({"_id": 1})
        await asyncio.to_thread(mongo_server.kill)
        await asyncio.to_thread(mongo_server.start)
        assert await things.find_one({}) == {"_id": 1}


def test_a_frozen_server_answers_when_it_is_woken(mongo_server: MongoServer) -> None:
    with mongo_server.client() as client:
        client.admin.command("ping")
        mongo_server.pause()
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(client.admin.command, "ping")
            with pytest.raises(TimeoutError):
                answer.result(timeout=0.2)
            mongo_server.resume()
            assert answer.result()["ok"] == 1


async def test_eventually_tells_what_it_saw_last() -> None:
    with pytest.raises(AssertionError, match="the last value was 0"):
        await eventually(lambda: 0, timeout=0)
    assert await eventually(lambda: "there") == "there"


async def _publish(url: str) -> None:
    async with await aio_pika.connect(url) as connection, connection.channel() as channel:
        await channel.declare_queue("kept", durable=True, arguments={"x-queue-type": "quorum"})
        message = aio_pika.Message(b"kept", delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        await channel.default_exchange.publish(message, "kept")


async def _get(url: str) -> bytes:
    async with await aio_pika.connect(url) as connection, connection.channel() as channel:
        queue = await channel.declare_queue("kept", durable=True, arguments={"x-queue-type": "quorum"})
        message = await queue.get()
        assert message is not None
        await message.ack()
        return message.body


def test_data_are_kept_in_memory_where_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_MEMORY", tmp_path)
    monkeypatch.setattr(process, "_places", [])
    gone = subprocess.Popen(["true"])
    gone.wait()
    left, others = tmp_path / f"taskframework-redis-{gone.pid}-x", tmp_path / f"taskframework-redis-{os.getppid()}-x"
    left.mkdir()
    others.mkdir()
    process.keep_data_in_memory()
    assert not left.exists(), "of a test run that was killed"
    assert others.exists(), "of a test run beside this one"

    monkeypatch.setattr(process, "_ENOUGH", 0)
    assert process.data_folder("redis").parent == tmp_path
    monkeypatch.setattr(process, "_ENOUGH", 2**60)
    (elsewhere := process.data_folder("redis")).rmdir()
    assert elsewhere.parent != tmp_path
