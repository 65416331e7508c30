"""Batches from both clients: as a whole, and line by line while they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from starlette.responses import Response

from taskframework import ApiUnavailableError, TaskNotFoundError, TaskStatus, ValueNotStorableError
from taskframework.client import SyncTaskClient, TaskClient
from taskframework.testing.eventually import eventually
from tests.support.clients import KINDS, client_of
from tests.support.stand_in import StandIn

Open = Callable[..., AbstractAsyncContextManager[tuple[Any, StandIn]]]
LATER = {"Retry-After": "0"}


@pytest.fixture(params=KINDS)
def opened(request: pytest.FixtureRequest) -> Open:
    @asynccontextmanager
    async def stage(**options: Any) -> AsyncIterator[tuple[Any, StandIn]]:
        async with StandIn().serving() as there:
            client = client_of(request.param, there.address, **options)
            yield client, there
            await client.close()

    return stage


async def test_a_small_list_travels_as_a_whole(opened: Open) -> None:
    async with opened() as (client, there):
        moment = datetime(2027, 1, 31, 12, tzinfo=UTC)
        options = {"chunk_size": 2, "policy": "at_least(1)", "priority": "low", "idempotency_key": "b"}
        batch = await client.submit_batch("mail", [1, 2, 3], not_before=moment, **options)
        assert (batch.batch_id, batch.total, batch.status) == ("b", 3, TaskStatus.COMPLETED)
        del options["idempotency_key"]
        assert there.options["b"] == {"task_type": "mail", "not_before": "2027-01-31T12:00:00Z", **options}


async def test_a_large_list_and_what_is_iterated_travel_line_by_line(opened: Open) -> None:
    async with opened() as (client, there):
        large = [{"n": n, "text": "x\n" * 40} for n in range(5_000)]
        batch = await client.submit_batch("mail", large, chunk_size=2, priority="low", correlation_id='a "b" & c')
        assert there.items[batch.batch_id] == large
        expected = {"task_type": "mail", "chunk_size": "2", "priority": "low", "correlation_id": 'a "b" & c'}
        assert there.options[batch.batch_id] == expected
        batch = await client.submit_batch("mail", (n for n in range(3)))
        assert there.items[batch.batch_id] == [0, 1, 2]
        batch = await client.submit_batch("mail", iter([]))
        assert there.items[batch.batch_id] == []


async def test_two_batches_have_two_keys_and_a_repeated_one_has_one(opened: Open) -> None:
    async with opened() as (client, there):
        there.first = [Response(status_code=503, headers=LATER)] * 2
        await client.submit_batch("mail", [1])
        await client.submit_batch("mail", [1])
        assert len(there.asked) == 4
        assert len(there.options) == 2


async def test_items_that_can_be_iterated_again_are_sent_again(opened: Open) -> None:
    async with opened() as (client, there):
        there.first = [Response(status_code=503, headers=LATER)]
        items = list(range(2_000))
        batch = await client.submit_batch("mail", items)
        assert there.items[batch.batch_id] == items
        assert len(there.asked) == 2


async def test_items_that_were_iterated_once_are_not_sent_in_part(opened: Open) -> None:
    async with opened() as (client, there):
        for status in (503, 429):
            there.first = [Response(status_code=status, headers=LATER)]
            with pytest.raises(ApiUnavailableError):
                await client.submit_batch("mail", iter(range(2_000)))
        assert len(there.asked) == 2


async def test_an_item_that_is_no_json_ends_the_upload(opened: Open) -> None:
    async with opened() as (client, there):
        with pytest.raises(ValueNotStorableError, match="The item 2 cannot be stored"):
            await client.submit_batch("mail", iter([0, 1, object()]))
        with pytest.raises(ValueNotStorableError):
            await client.submit_batch("mail", [object()])
        assert there.options == {}


async def test_an_error_of_the_items_own_ends_the_upload(opened: Open) -> None:
    def items() -> Iterator[int]:
        yield 1
        raise LookupError("no more")

    async with opened() as (client, there):
        with pytest.raises(LookupError, match="no more"):
            await client.submit_batch("mail", items())
        assert there.options == {}


async def test_a_batch_is_looked_at_and_changed(opened: Open) -> None:
    async with opened() as (client, _):
        for key in "abc":
            await client.submit_batch("mail", list(range(5)), idempotency_key=key)
        assert (await client.batch("a")).counts == {"COMPLETED": 5}
        assert [batch.batch_id async for batch in client.batches()] == ["a", "b", "c"]
        results = [(one.index, one.task_id, one.result) async for one in client.batch_results("b")]
        assert results == [(n, f"b-{n}", n) for n in range(5)]
        assert (await client.cancel_batch("a", reason="late")).batch_id == "a"
        assert (await client.retry_failed("a")).batch_id == "a"
        for call in (client.batch, client.cancel_batch, client.retry_failed):
            with pytest.raises(TaskNotFoundError) as told:
                await call("x")
            assert told.value.task_id == "x"
        with pytest.raises(TaskNotFoundError):
            [one async for one in client.batch_results("x")]


async def test_failed_items_are_not_queued_again_twice(opened: Open) -> None:
    async with opened() as (client, there):
        await client.submit_batch("mail", [1], idempotency_key="a")
        there.first = [Response(status_code=503, headers=LATER)]
        with pytest.raises(ApiUnavailableError):
            await client.retry_failed("a")
        there.first = [Response(status_code=503, headers=LATER)]
        await client.cancel_batch("a")
        assert there.asked == ["submit", "retry-failed", "cancel", "cancel"]


async def test_items_may_come_from_asyncio_and_are_sent_while_they_come() -> None:
    are_there = asyncio.Event()

    async def items() -> AsyncIterator[Any]:
        for n in range(2_000):
            yield {"n": n, "text": "x" * 100}
        await are_there.wait()
        yield "last"

    async with StandIn().serving() as there, TaskClient(there.address) as client:
        uploading = asyncio.create_task(client.submit_batch("mail", items()))
        await eventually(lambda: len(there.items.get("coming", ())) > 1_000)
        are_there.set()
        batch = await uploading
        assert len(there.items[batch.batch_id]) == 2_001


async def test_items_that_need_an_event_loop_are_not_for_the_blocking_client() -> None:
    async def items() -> AsyncIterator[int]:
        await asyncio.sleep(0)
        yield 1

    async with StandIn().serving() as there:
        with SyncTaskClient(there.address) as client, pytest.raises(TypeError, match="use TaskClient"):
            await asyncio.to_thread(client.submit_batch, "mail", cast("Any", items()))
