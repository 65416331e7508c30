"""The client for programs without asyncio: the same calls, which block."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from datetime import timedelta
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import httpx

from taskframework.client.asynchronous import PATIENCE, TIMEOUT
from taskframework.client.calls import AllCalls
from taskframework.client.connection import ApiConnection, address_of
from taskframework.client.wire import BlockingWire, done, each

Arguments = ParamSpec("Arguments")
Value = TypeVar("Value")


def blocking(
    call: Callable[Concatenate[AllCalls, Arguments], Coroutine[Any, Any, Value]],
) -> Callable[Concatenate[SyncTaskClient, Arguments], Value]:
    """The same call, which returns when it is done."""

    @functools.wraps(call)
    def blocks(self: SyncTaskClient, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Value:
        return done(call(self._calls, *args, **kwargs))

    return blocks


def iterating(
    call: Callable[Concatenate[AllCalls, Arguments], AsyncGenerator[Value, None]],
) -> Callable[Concatenate[SyncTaskClient, Arguments], Generator[Value, None, None]]:
    """The same call, whose values come by a plain `for`."""

    @functools.wraps(call)
    def iterates(
        self: SyncTaskClient, /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Generator[Value, None, None]:
        yield from each(call(self._calls, *args, **kwargs))

    return iterates


class SyncTaskClient:
    """`TaskClient` for programs without asyncio::

        with SyncTaskClient("http://localhost:8000") as client:
            task = client.submit("count-words", {"text": "one two three"})
            print(client.wait(task.task_id, timeout=30))

    Several threads may share one.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: timedelta | float = TIMEOUT,
        patience: timedelta | float = PATIENCE,
        api_key: str | None = None,
        http: httpx.Client | None = None,
    ) -> None:
        """Prepare to ask, as a `TaskClient` does."""
        address = address_of(url)
        self._wire = BlockingWire(address, http)
        connection = ApiConnection(address, self._wire, timeout=timeout, patience=patience, api_key=api_key)
        self._calls = AllCalls(connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        done(self._wire.close())

    submit = blocking(AllCalls.submit)
    submit_many = blocking(AllCalls.submit_many)
    get = blocking(AllCalls.get)
    explain = blocking(AllCalls.explain)
    list_tasks = iterating(AllCalls.list_tasks)
    cancel = blocking(AllCalls.cancel)
    retry = blocking(AllCalls.retry)
    wait = blocking(AllCalls.wait)
    finished = blocking(AllCalls.finished)
    stream = iterating(AllCalls.stream)
    stream_tree = iterating(AllCalls.stream_tree)
    signal = blocking(AllCalls.signal)
    subtasks = iterating(AllCalls.subtasks)
    submit_batch = blocking(AllCalls.submit_batch)
    batch = blocking(AllCalls.batch)
    batches = iterating(AllCalls.batches)
    batch_results = iterating(AllCalls.batch_results)
    stream_items = iterating(AllCalls.stream_items)
    cancel_batch = blocking(AllCalls.cancel_batch)
    retry_failed = blocking(AllCalls.retry_failed)
