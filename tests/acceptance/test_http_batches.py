"""Uploads of batches on a real socket: cut off, repeated, two at once."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from taskframework.model.batch_status import BatchResult
from taskframework.submission.uploads import Item, SubtaskContent
from taskframework.testing.eventually import eventually
from tests.acceptance.http_support import BATCHES, Api, serve

PATH = f"{BATCHES}?task_type=count-words"
NDJSON = {"Content-Type": "application/x-ndjson", "Idempotency-Key": "the upload"}
ITEMS = 3_000


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with serve(tmp_path, worker=False) as api:
        yield api


def content(first: int = 0, last: int = ITEMS) -> bytes:
    return b"".join(json.dumps({"text": f"word {n}"}).encode() + b"\n" for n in range(first, last))


async def cut_off(api: Api, sent: bytes, *, key: bool = True) -> None:
    """Begin an upload, send so much of it, and close the connection when that is stored."""
    _, writer = await asyncio.open_connection(api.base_url.host, api.base_url.port)
    names = [f"{name}: {value}" for name, value in NDJSON.items() if key or name != "Idempotency-Key"]
    head = [f"POST {PATH} HTTP/1.1", "Host: localhost", *names, f"Content-Length: {10**9}"]
    writer.write("\r\n".join([*head, "", ""]).encode() + sent)
    await writer.drain()
    lines = sent.count(b"\n")

    async def is_stored() -> bool:
        return bool((await newest(api)).get("total", 0) >= lines)

    await eventually(is_stored)
    writer.transport.abort()


async def newest(api: Api) -> dict[str, Any]:
    items = (await api.get(BATCHES)).json()["items"]
    found: dict[str, Any] = items[0] if items else {}
    return found


async def test_an_upload_that_was_cut_off_is_continued_by_repeating_it(api: Api) -> None:
    for lines in (700, 1_500, 2_999):
        await cut_off(api, content(0, lines) + b'{"text": "wo')
        assert (await newest(api))["is_sealed"] is False
    answer = await api.post(PATH, content=content(), headers=NDJSON)
    assert answer.status_code == 202, answer.text
    batch = answer.json()
    assert (batch["total"], batch["is_sealed"]) == (ITEMS, True)

    counts = (await api.get(f"{BATCHES}/{batch['batch_id']}")).json()["counts"]
    assert counts == {"QUEUED": ITEMS}, "exactly as many as the upload has lines"
    assert len((await api.get(BATCHES)).json()["items"]) == 1


async def test_the_tasks_of_an_upload_begin_before_its_end(tmp_path: Path) -> None:
    async with serve(tmp_path) as api:
        await cut_off(api, content(0, 100))
        batch = await newest(api)

        async def are_done() -> bool:
            return bool((await api.get(f"{BATCHES}/{batch['batch_id']}")).json()["counts"] == {"COMPLETED": 100})

        await eventually(are_done)
        found = (await api.get(f"{BATCHES}/{batch['batch_id']}")).json()
        assert (found["status"], found["percent"]) == ("WAITING", None)

        answer = await api.post(PATH, content=content(0, 101), headers=NDJSON)
        assert (answer.status_code, answer.json()["batch_id"]) == (202, batch["batch_id"])
        handle = api.framework.batch(batch["batch_id"])
        assert (await handle.finished(timeout=60)).status == "COMPLETED"


async def test_two_uploads_with_one_key_at_once_are_one_batch(api: Api) -> None:
    uploads = [api.post(PATH, content=content(), headers=NDJSON) for _ in range(2)]
    answers = await asyncio.gather(*uploads)
    assert sorted(answer.status_code for answer in answers) == [200, 202]
    [batch] = (await api.get(BATCHES)).json()["items"]
    assert {answer.json()["batch_id"] for answer in answers} == {batch["batch_id"]}
    assert (await api.get(f"{BATCHES}/{batch['batch_id']}")).json()["counts"] == {"QUEUED": ITEMS}


async def test_two_different_uploads_with_one_key_store_no_item_after_the_seal(api: Api) -> None:
    sizes = (1_000, ITEMS)
    answers = await asyncio.gather(*(api.post(PATH, content=content(0, size), headers=NDJSON) for size in sizes))
    done = [answer for answer in answers if answer.status_code in (200, 202)]
    assert {answer.status_code for answer in answers if answer not in done} <= {409}
    [batch] = (await api.get(BATCHES)).json()["items"]
    stored = sum((await api.get(f"{BATCHES}/{batch['batch_id']}")).json()["counts"].values())
    if batch["is_sealed"]:
        assert stored == batch["total"] == done[0].json()["total"]
    else:  # the short one came to its end when the other had more already, which ended first itself
        assert stored <= batch["total"]


async def test_an_upload_without_a_key_is_cancelled_when_it_breaks_off(api: Api) -> None:
    await cut_off(api, content(0, 100), key=False)

    async def is_cancelled() -> bool:
        return bool((await newest(api))["status"] == "CANCELLED")

    await eventually(is_cancelled)


async def test_results_come_as_lines_while_the_batch_runs(tmp_path: Path) -> None:
    async with serve(tmp_path) as api:
        body = {"task_type": "count-words", "items": [{"text": "one two"}] * 50}
        batch = (await api.post(BATCHES, json=body)).json()
        address = f"{BATCHES}/{batch['batch_id']}/results"
        async with api.stream("GET", address, headers={"Accept": "application/x-ndjson"}) as answer:
            results = [json.loads(line) async for line in answer.aiter_lines()]
        assert [result["index"] for result in results] == list(range(50))
        assert all(result["result"] == {"words": 2} for result in results)


def in_memory(*kinds: type) -> int:
    """How many objects of these classes there are."""
    return sum(type(one) in kinds for one in gc.get_objects())


async def test_neither_an_upload_nor_its_results_are_ever_in_memory_as_a_whole(api: Api) -> None:
    items, together = 10_000, 500
    most_items, most_results = 0, 0

    async def lines() -> AsyncIterator[bytes]:
        nonlocal most_items
        for first in range(0, items, together):
            yield b"".join(b'{"text": "%s %d"}\n' % (b"x" * 300, n) for n in range(first, first + together))
            most_items = max(most_items, in_memory(Item, SubtaskContent))

    answer = await api.post(f"{PATH}&chunk_size=100", content=lines(), headers=NDJSON)
    batch = answer.json()
    assert batch["total"] == items
    await api.post(f"{BATCHES}/{batch['batch_id']}/cancel")
    address, read = f"{BATCHES}/{batch['batch_id']}/results", 0
    async with api.stream("GET", address, headers={"Accept": "application/x-ndjson"}) as results:
        async for _ in results.aiter_lines():
            read += 1
            if read % together == 0:
                most_results = max(most_results, in_memory(BatchResult))
    assert read == items
    assert 0 < most_items <= 5 * together, "as many as fit into what a socket gives at once"
    assert 0 < most_results <= 5 * together, "as many as are read together"


async def test_lines_that_wait_are_cut_off_when_the_server_stops(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import httpx

    async with serve(tmp_path, worker=False) as api:
        batch = (await api.post(BATCHES, json={"task_type": "waits", "items": [None]})).json()
        address = f"{api.base_url}{BATCHES}/{batch['batch_id']}/results"
        client = httpx.AsyncClient(trust_env=False, timeout=20)
        stream = client.stream("GET", address, headers={"Accept": "application/x-ndjson"})
        answer = await stream.__aenter__()
    with pytest.raises(httpx.RemoteProtocolError):
        await answer.aread()
    await stream.__aexit__(None, None, None)
    await client.aclose()
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
