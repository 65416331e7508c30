"""Both clients of the HTTP interface, with the same methods, so that one test is for both."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from typing import Any

from taskframework.client import SyncTaskClient, TaskClient

KINDS = ("asyncio", "blocking")
_END = object()


class InThread:
    """A `SyncTaskClient` with the methods of a `TaskClient`: each call blocks in a thread."""

    def __init__(self, client: SyncTaskClient) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._client, name)

        async def one_by_one(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            values = call(*args, **kwargs)
            try:
                while (value := await asyncio.to_thread(next, values, _END)) is not _END:
                    yield value
            finally:
                await asyncio.to_thread(values.close)

        async def once(*args: Any, **kwargs: Any) -> Any:
            return await asyncio.to_thread(call, *args, **kwargs)

        return one_by_one if inspect.isgeneratorfunction(call) else once


def client_of(kind: str, url: str, **options: Any) -> Any:
    """A client of one of the `KINDS`."""
    return TaskClient(url, **options) if kind == "asyncio" else InThread(SyncTaskClient(url, **options))
