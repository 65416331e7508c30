"""The largest upload there may be, cut off three times and repeated, while workers take what is there already."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import motor.motor_asyncio  # noqa: F401 - see below
import pytest

# Adapters are imported when first needed, which is on the loop; reading a module blocks it, and here that counts.
import taskframework.brokers.rabbitmq.broker
import taskframework.stores.mongo.store  # noqa: F401
from taskframework.model.subtasks import MAX_SUBTASKS
from taskframework.testing.eventually import eventually
from tests.acceptance.http_support import Api, serve

BATCHES = "/api/v1/batches"
QUERY = {"task_type": "count-words"}
NDJSON = {"Content-Type": "application/x-ndjson", "Idempotency-Key": "the upload"}
#: Lines that are sent together.
_TOGETHER = 1_000


def pieces(last: int) -> Iterator[bytes]:
    for first in range(0, last, _TOGETHER):
        lines = range(first, min(first + _TOGETHER, last))
        yield b"".join(json.dumps({"text": f"word {n}"}).encode() + b"\n" for n in lines)


async def whole() -> AsyncIterator[bytes]:
    for piece in pieces(MAX_SUBTASKS):
        yield piece


async def cut_off(api: Api, lines: int) -> None:
    """Send so many lines and half a line more, and break off as soon as the last of them is announced."""

    async def is_announced() -> bool:
        [*batches] = (await api.get(BATCHES)).json()["items"]
        return bool(batches and batches[0]["total"] >= lines)

    async def breaks_off() -> AsyncIterator[bytes]:
        for piece in pieces(lines):
            yield piece
        yield b'{"text": "wo'
        await eventually(is_announced, timeout=120)
        raise ConnectionError

    with pytest.raises((ConnectionError, httpx.TransportError)):
        await api.post(BATCHES, content=breaks_off(), headers=NDJSON, params=QUERY, timeout=300)


@pytest.mark.chaos_long
@pytest.mark.timeout(1800)
async def test_the_largest_upload_cut_off_three_times_has_each_item_once(
    tmp_path: Path, amqp_url: str, mongo_url: str
) -> None:
    async with serve(tmp_path, broker={"url": amqp_url}, store={"url": mongo_url}) as api:
        for lines in (20_000, 50_500, 99_999):
            await cut_off(api, lines)
        one_too_many = b'{"text": "one too many"}\n'

        async def too_much() -> AsyncIterator[bytes]:
            async for piece in whole():
                yield piece
            yield one_too_many

        refused = await api.post(BATCHES, content=too_much(), headers=NDJSON, params=QUERY, timeout=600)
        assert (refused.status_code, refused.json()["code"]) == (413, "batch_too_large")
        answers = await asyncio.gather(
            *(api.post(BATCHES, content=whole(), headers=NDJSON, params=QUERY, timeout=600) for _ in range(2))
        )
        assert sorted(answer.status_code for answer in answers) == [200, 202], [answer.text for answer in answers]
        [batch] = {answer.json()["batch_id"] for answer in answers}

        status = await api.framework.batch(batch).finished(timeout=900)
        assert status.counts == {"COMPLETED": MAX_SUBTASKS}
        assert len((await api.get(BATCHES)).json()["items"]) == 1
