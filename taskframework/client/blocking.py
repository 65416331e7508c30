"""The client for programs without asyncio: the same calls, which block."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable
from datetime import timedelta
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, overload

import httpx

from taskframework.client.answers import R, RemoteBatch, RemoteResult, RemoteTask
from taskframework.client.asynchronous import DEFAULT_PATIENCE_SECONDS, DEFAULT_TIMEOUT_SECONDS
from taskframework.client.calls import AllCalls
from taskframework.client.connection import ApiConnection
from taskframework.client.transport import BlockingTransport, iterate_blocking, run_blocking
from taskframework.events.requests import address_of
from taskframework.submission.options import SubmissionOptions
from taskframework.tasks.kinds import AnyTaskType, KindOf, P

Arguments = ParamSpec("Arguments")
Value = TypeVar("Value")
Method = TypeVar("Method", bound=Callable[..., Any])


def blocking(
    call: Callable[Concatenate[AllCalls, Arguments], Coroutine[Any, Any, Value]],
) -> Callable[Concatenate[SyncTaskClient, Arguments], Value]:
    """Make a method that does the same call and returns when the call is done."""

    @functools.wraps(call)
    def blocks(self: SyncTaskClient, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Value:
        return run_blocking(call(self._calls, *args, **kwargs))

    return blocks


def iterating(
    call: Callable[Concatenate[AllCalls, Arguments], AsyncGenerator[Value, None]],
) -> Callable[Concatenate[SyncTaskClient, Arguments], Generator[Value, None, None]]:
    """Make a method that does the same call and gives its values to a plain `for`."""

    @functools.wraps(call)
    def iterates(
        self: SyncTaskClient, /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Generator[Value, None, None]:
        yield from iterate_blocking(call(self._calls, *args, **kwargs))

    # `help` and the reference would otherwise show the generator of the wrapped call, which needs `async for`.
    shown = inspect.signature(call)
    gives = shown.return_annotation.replace("AsyncGenerator[", "Generator[").replace(", None]", ", None, None]")
    iterates.__signature__ = shown.replace(return_annotation=gives)  # type: ignore[attr-defined]
    return iterates


def documented_by(call: Callable[..., Any]) -> Callable[[Method], Method]:
    """Give a method the docstring of the call that it makes, but its own signature and overloads."""

    def document(method: Method) -> Method:
        method.__doc__ = call.__doc__
        return method

    return document


class SyncTaskClient:
    """`TaskClient` for programs without asyncio::

        with SyncTaskClient("http://localhost:8000") as client:
            task = client.submit("count-words", {"text": "one two three"})
            print(client.wait(task.task_id, timeout=30))

    Several threads may share one client.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: timedelta | float = DEFAULT_TIMEOUT_SECONDS,
        patience: timedelta | float = DEFAULT_PATIENCE_SECONDS,
        api_key: str | None = None,
        http: httpx.Client | None = None,
    ) -> None:
        """Prepare to ask, as a `TaskClient` does."""
        address = address_of(url)
        self._transport = BlockingTransport(address, http)
        connection = ApiConnection(address, self._transport, timeout=timeout, patience=patience, api_key=api_key)
        self._calls = AllCalls(connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        run_blocking(self._transport.close())

    submit_many = blocking(AllCalls.submit_many)
    explain = blocking(AllCalls.explain)
    list_tasks = iterating(AllCalls.list_tasks)
    cancel = blocking(AllCalls.cancel)
    retry = blocking(AllCalls.retry)
    stream = iterating(AllCalls.stream)
    stream_tree = iterating(AllCalls.stream_tree)
    signal = blocking(AllCalls.signal)
    subtasks = iterating(AllCalls.subtasks)
    batch = blocking(AllCalls.batch)
    batches = iterating(AllCalls.batches)
    stream_items = iterating(AllCalls.stream_items)
    cancel_batch = blocking(AllCalls.cancel_batch)
    retry_failed = blocking(AllCalls.retry_failed)
    dead_letter = blocking(AllCalls.dead_letter)
    replay = blocking(AllCalls.replay)
    replay_edited = blocking(AllCalls.replay_edited)
    discard = blocking(AllCalls.discard)
    repair = blocking(AllCalls.repair)
    replay_all = blocking(AllCalls.replay_all)
    discard_all = blocking(AllCalls.discard_all)
    retry_all = blocking(AllCalls.retry_all)
    cancel_all = blocking(AllCalls.cancel_all)
    replay_status = blocking(AllCalls.replay_status)
    stop_replay = blocking(AllCalls.stop_replay)
    dead_letters = iterating(AllCalls.dead_letters)
    dead_letter_groups = iterating(AllCalls.dead_letter_groups)

    # Calls with overloads are written out: by `blocking` a type checker would keep only one of the overloads.

    @overload
    def submit(
        self, task_type: str, parameters: Any = None, **options: Unpack[SubmissionOptions]
    ) -> RemoteTask[Any]: ...
    @overload
    def submit(
        self, task_type: KindOf[None, R], parameters: None = None, **options: Unpack[SubmissionOptions]
    ) -> RemoteTask[R]: ...
    @overload
    def submit(self, task_type: KindOf[P, R], parameters: P, **options: Unpack[SubmissionOptions]) -> RemoteTask[R]: ...
    @documented_by(AllCalls.submit)
    def submit(
        self, task_type: AnyTaskType, parameters: Any = None, **options: Unpack[SubmissionOptions]
    ) -> RemoteTask[Any]:
        return run_blocking(self._calls.submit(task_type, parameters, **options))

    @overload
    def get(self, task: str) -> RemoteTask[Any]: ...
    @overload
    def get(self, task: RemoteTask[R]) -> RemoteTask[R]: ...
    @documented_by(AllCalls.get)
    def get(self, task: str | RemoteTask[Any]) -> RemoteTask[Any]:
        return run_blocking(self._calls.get(task))

    @overload
    def wait(self, task: str, timeout: timedelta | float | None = None) -> Any: ...
    @overload
    def wait(self, task: RemoteTask[R], timeout: timedelta | float | None = None) -> R: ...
    @documented_by(AllCalls.wait)
    def wait(self, task: str | RemoteTask[Any], timeout: timedelta | float | None = None) -> Any:
        return run_blocking(self._calls.wait(task, timeout))

    @overload
    def finished(self, task: str, timeout: timedelta | float | None = None) -> RemoteTask[Any]: ...
    @overload
    def finished(self, task: RemoteTask[R], timeout: timedelta | float | None = None) -> RemoteTask[R]: ...
    @documented_by(AllCalls.finished)
    def finished(self, task: str | RemoteTask[Any], timeout: timedelta | float | None = None) -> RemoteTask[Any]:
        return run_blocking(self._calls.finished(task, timeout))

    @overload
    def submit_batch(
        self,
        task_type: str,
        items: Iterable[Any],
        *,
        chunk_size: int | None = None,
        policy: str | None = None,
        **options: Unpack[SubmissionOptions],
    ) -> RemoteBatch[Any]: ...
    @overload
    def submit_batch(
        self,
        task_type: KindOf[P, R],
        items: Iterable[P],
        *,
        chunk_size: int | None = None,
        policy: str | None = None,
        **options: Unpack[SubmissionOptions],
    ) -> RemoteBatch[R]: ...
    @documented_by(AllCalls.submit_batch)
    def submit_batch(
        self,
        task_type: AnyTaskType,
        items: Iterable[Any],
        *,
        chunk_size: int | None = None,
        policy: str | None = None,
        **options: Unpack[SubmissionOptions],
    ) -> RemoteBatch[Any]:
        call = self._calls.submit_batch(task_type, items, chunk_size=chunk_size, policy=policy, **options)
        return run_blocking(call)

    @overload
    def batch_results(
        self, batch: str, *, follow: bool = False, first: int = 0
    ) -> Generator[RemoteResult[Any], None, None]: ...
    @overload
    def batch_results(
        self, batch: RemoteBatch[R], *, follow: bool = False, first: int = 0
    ) -> Generator[RemoteResult[R], None, None]: ...
    @documented_by(AllCalls.batch_results)
    def batch_results(
        self, batch: str | RemoteBatch[Any], *, follow: bool = False, first: int = 0
    ) -> Generator[RemoteResult[Any], None, None]:
        yield from iterate_blocking(self._calls.batch_results(batch, follow=follow, first=first))
