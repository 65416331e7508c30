"""The two clients are one: the same calls with the same parameters, and what needs an event loop is told."""

from __future__ import annotations

import asyncio
import inspect
import pydoc
from collections.abc import AsyncGenerator

import pytest

from taskframework.client import SyncTaskClient, TaskClient
from taskframework.client.transport import iterate_blocking, run_blocking


def calls(client: type) -> dict[str, str]:
    """The public methods, each with its parameters."""
    found = inspect.getmembers(client, inspect.isfunction)
    return {name: str(inspect.signature(call).replace(return_annotation="")) for name, call in found if name[0] != "_"}


def test_both_clients_have_the_same_calls() -> None:
    asynchronous = calls(TaskClient)
    # Only an event loop can read an asynchronous iterable.
    asynchronous["submit_batch"] = asynchronous["submit_batch"].replace("'Items'", "'Iterable[Any]'")
    assert asynchronous == calls(SyncTaskClient)
    assert len(calls(TaskClient)) > 9
    own = [{**inspect.signature(client).parameters} for client in (TaskClient, SyncTaskClient)]
    assert own[0].keys() == own[1].keys()
    assert own[0].pop("http") != own[1].pop("http")
    assert own[0] == own[1]


def test_the_help_of_a_blocking_call_tells_what_the_call_does() -> None:
    assert "Queue again a task" in pydoc.render_doc(SyncTaskClient.retry)
    assert "-> Generator[RemoteTask, None, None]" in pydoc.render_doc(SyncTaskClient.list_tasks).replace("'", "")
    for _, call in inspect.getmembers(SyncTaskClient, inspect.isfunction):
        assert "Async" not in str(inspect.signature(call))


def test_work_that_needs_an_event_loop_is_refused_by_the_blocking_client() -> None:
    async def work() -> None:
        await asyncio.sleep(0)

    with pytest.raises(TypeError, match="needs an event loop; use TaskClient"):
        run_blocking(work())


def test_values_are_iterated_to_their_end_and_no_further() -> None:
    told: list[str] = []

    async def values() -> AsyncGenerator[int, None]:
        try:
            yield 1
            yield 2
        finally:
            told.append("closed")

    assert list(iterate_blocking(values())) == [1, 2]
    left = iterate_blocking(values())
    assert next(left) == 1
    left.close()
    assert told == ["closed", "closed"]


async def test_a_blocking_call_on_an_event_loop_is_refused() -> None:
    """It held up everything else on the loop, and nothing told it."""
    with SyncTaskClient("http://localhost:1") as client:
        with pytest.raises(RuntimeError, match=r"SyncTaskClient would block the event loop; use `TaskClient`"):
            client.submit("mail")
        with pytest.raises(RuntimeError, match="would block"):
            next(client.list_tasks())
