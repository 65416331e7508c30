"""Copies of what store and broker hold, and ways back to them."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import aio_pika
from pymongo import MongoClient

Restore = Callable[[], None]


def back_up_store(url: str, folder: Path) -> Restore:
    """Copy a store while processes write to it, as `sqlite3 .backup` and `mongodump` do.

    Returns:
        What puts the copy back. No process may have the store open then.
    """
    prefix = "sqlite:///"
    return _back_up_sqlite(Path(url.removeprefix(prefix)), folder) if url.startswith(prefix) else _back_up_mongo(url)


async def copy_messages(url: str, queue: str) -> list[aio_pika.Message]:
    """The messages of a queue, which stay where they are."""
    async with await aio_pika.connect(url) as connection:
        source = await (await connection.channel()).get_queue(queue)
        copies = []
        while (found := await source.get(fail=False)) is not None:
            copies.append(aio_pika.Message(**_parts(found)))
        return copies  # with the connection all go back


async def replace_messages(url: str, queue: str, copies: list[aio_pika.Message]) -> None:
    """Make a queue hold these messages instead of its own."""
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        await (await channel.get_queue(queue)).purge()
        for copy in copies:
            await channel.default_exchange.publish(copy, queue)


def _parts(message: aio_pika.abc.AbstractIncomingMessage) -> dict[str, Any]:
    names = ("body", "headers", "content_type", "delivery_mode", "correlation_id", "message_id", "timestamp", "type")
    return {name: getattr(message, name) for name in names}


def _back_up_sqlite(path: Path, folder: Path) -> Restore:
    copy = folder / "backup.db"
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)

    def restore() -> None:
        for name in (path, path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
            name.unlink(missing_ok=True)
        shutil.copy(copy, path)

    return restore


def _back_up_mongo(url: str) -> Restore:
    with MongoClient[dict[str, Any]](url) as client:
        database = client.get_default_database()
        copies = {name: list(database[name].find()) for name in database.list_collection_names()}

    def restore() -> None:
        with MongoClient[dict[str, Any]](url) as client:
            database = client.get_default_database()
            for name in database.list_collection_names():
                database[name].delete_many({})
                if copies.get(name):
                    database[name].insert_many(copies[name])

    return restore
