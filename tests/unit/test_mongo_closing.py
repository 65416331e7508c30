"""A connection to MongoDB closes within its time limit, whatever task code does."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from pymongo import _csot

from taskframework.stores.mongo.client import MongoDriver, connect


@pytest.mark.parametrize("driver", ["motor", "pymongo"])
async def test_close_does_not_wait_for_task_code_that_holds_all_threads_of_the_event_loop(driver: MongoDriver) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    free = threading.Event()
    held = asyncio.get_running_loop().run_in_executor(None, free.wait)
    try:
        connection = connect("mongodb://127.0.0.1:1/tasks", driver, timedelta(seconds=1), pool_size=1)
        async with asyncio.timeout(20):
            await connection.close()
    finally:
        free.set()
        await held


async def test_a_close_that_blocks_has_the_time_limit_too() -> None:
    limits: list[float | None] = []

    class Blocking:
        def close(self) -> None:
            limits.append(_csot.get_timeout())

    connection = connect("mongodb://127.0.0.1:1/tasks", "motor", timedelta(seconds=1), pool_size=1)
    client: Any = Blocking()
    await replace(connection, _client=client).close()
    assert limits == [1]
    await connection.close()
