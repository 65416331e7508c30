"""Clients that send what is no HTTP, or send it slowly, or are too many."""

from __future__ import annotations

import asyncio
import json
import resource
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from taskframework.api import connections, receiving
from taskframework.testing.eventually import eventually
from tests.acceptance.http_support import COUNT_WORDS, TASKS, Api, serve

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST /api/v1/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
TASK = json.dumps(COUNT_WORDS).encode()


class Wire:
    """A connection that sends bytes as they are."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def send(self, content: bytes) -> None:
        self.writer.write(content)

    async def status(self) -> int:
        """The status of the next answer, which is read whole."""
        async with asyncio.timeout(20):
            head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
            [length] = [line for line in head.split(b"\r\n") if line.startswith(b"content-length:")]
            self.body = await self.reader.readexactly(int(length.partition(b":")[2]))
        if head.split()[1] >= b"400":
            assert b"application/problem+json" in head
        return int(head.split()[1])

    async def rest(self) -> bytes:
        """What comes until the server closes; a connection that was reset is closed too."""
        async with asyncio.timeout(20):
            try:
                return await self.reader.read()
            except ConnectionError:
                return b""


@asynccontextmanager
async def connected(api: Api) -> AsyncIterator[Wire]:
    reader, writer = await asyncio.open_connection(api.base_url.host, api.base_url.port)
    try:
        yield Wire(reader, writer)
    finally:
        writer.close()


REFUSED = {
    "no HTTP": (b"\x16\x03\x01\x02\x00 garbage\r\n\r\n", 400),
    "NUL in a header": (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n", 400),
    "bare CR in a header": (b"GET / HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: a\rb\r\n\r\n", 400),
    "space before the colon": (b"GET /healthz HTTP/1.1\r\nHost : x\r\n\r\n", 400),
    "another version": (b"GET /healthz HTTP/9.9\r\n\r\n", 400),
    "8-bit path": (b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    "negative length": (POST + b"Content-Length: -1\r\n\r\n" + TASK, 400),
    "length that is no number": (POST + b"Content-Length: ten\r\n\r\n" + TASK, 400),
    "two lengths": (POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n" + TASK, 400),
    "length and chunks": (POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "length too short": (POST + b"Content-Length: 10\r\nConnection: close\r\n\r\n" + TASK, 400),
    "8-bit key": (POST + b"Idempotency-Key: schl\xfcssel\r\nContent-Length: %d\r\n\r\n" % len(TASK) + TASK, 422),
    "path of 200,000": (b"GET /" + b"x" * 200_000 + b" HTTP/1.1\r\n\r\n", 431),
    "header without end": (b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 100_000, 431),
    "headers without end": (b"GET /healthz HTTP/1.1\r\n" + b"X: y\r\n" * 20_000, 431),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
async def test_bytes_that_are_no_http_request_are_refused_and_harm_nothing(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    content, status = REFUSED[name]
    async with serve(tmp_path, worker=False) as api:
        async with connected(api) as wire:
            wire.send(content)
            assert await wire.status() == status
        assert (await api.get("/healthz")).status_code == 200
        assert (await api.get(TASKS)).json()["items"] == []
    assert [record for record in caplog.records if record.name.startswith("uvicorn")] == [], "no way to fill the log"


@pytest.mark.parametrize(
    "part",
    [
        b"Content-Length: 1000\r\n\r\n" + TASK,
        b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"Transfer-Encoding: chunked\r\n\r\nffffff",
    ],
)
async def test_a_body_broken_off_leaves_nothing_behind(tmp_path: Path, part: bytes) -> None:
    async with serve(tmp_path, worker=False) as api:
        async with connected(api) as wire:
            wire.send(POST + part)
            await eventually(lambda: api.server.server_state.tasks)
        await eventually(lambda: not api.server.server_state.tasks)
        assert (await api.get(TASKS)).json()["items"] == []


async def test_bad_chunks_are_refused(tmp_path: Path) -> None:
    async with serve(tmp_path, worker=False) as api, connected(api) as wire:
        wire.send(POST + b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n")
        assert await wire.status() == 400


async def test_a_client_that_does_not_read_its_answer_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "READ_TIMEOUT_SECONDS", 0.2)
    large = COUNT_WORDS | {"parameters": {"text": "x" * 1_000_000}}
    async with serve(tmp_path, worker=False) as api, connected(api) as wire:
        for _ in range(20):  # more than the kernel takes for a client that does not read
            assert (await api.post(TASKS, json=large)).status_code == 202
        others = len(api.server.server_state.connections) - 1
        wire.writer.transport.pause_reading()  # type: ignore[attr-defined]  # that of a socket
        wire.send(b"GET /api/v1/tasks HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await eventually(lambda: len(api.server.server_state.connections) == others)
        await eventually(lambda: not api.server.server_state.tasks)


async def test_headers_have_a_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve(tmp_path, worker=False) as api, connected(api) as second, AsyncExitStack() as stack:
        second.send(HEALTH)
        assert await second.status() == 200
        monkeypatch.setattr(connections, "HEAD_TIMEOUT_SECONDS", 2)
        half, silent = [await stack.enter_async_context(connected(api)) for _ in range(2)]
        half.send(HEALTH[:20])
        second.send(HEALTH[:20])
        for wire in (half, second):
            assert await wire.status() == 408
            assert json.loads(wire.body)["code"] == "request_timeout"
            assert await wire.rest() == b""
        assert await silent.rest() == b"", "who sent nothing is told nothing"
        await eventually(lambda: not api.server.server_state.connections)


async def test_a_request_under_way_and_a_stream_have_all_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve(tmp_path, worker=False) as api, connected(api) as stream, connected(api) as idle:
        idle.send(HEALTH)
        assert await idle.status() == 200
        stream.send(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await stream.reader.readuntil(b": heartbeat")
        monkeypatch.setattr(connections, "HEAD_TIMEOUT_SECONDS", 2)
        async with connected(api) as silent:
            assert await silent.rest() == b"", "the time is over"
        idle.send(HEALTH)
        assert await idle.status() == 200, "an idle connection is kept"
        await api.submit(COUNT_WORDS)
        async with asyncio.timeout(20):
            await stream.reader.readuntil(b"task.submitted")


@pytest.mark.parametrize(("limit", "value"), [("_PIECE_SECONDS", 0.1), ("_MIN_BYTES_PER_SECOND", 10**9)])
async def test_a_body_has_a_time_limit_and_a_least_pace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: float
) -> None:
    monkeypatch.setattr(receiving, "_PIECE_SECONDS", 0.3)
    monkeypatch.setattr(receiving, limit, value)
    async with serve(tmp_path, worker=False) as api, connected(api) as wire:
        wire.send(POST + b"Content-Length: 1000000\r\n\r\n" + TASK)

        async def drip() -> None:
            while True:  # each piece comes in time; only all of them together do not
                wire.send(b" ")
                await asyncio.sleep(0.05)

        dripping = asyncio.create_task(drip()) if limit == "_MIN_BYTES_PER_SECOND" else None
        try:
            assert await wire.status() == 408
        finally:
            if dripping is not None:
                dripping.cancel()
        assert await wire.rest() == b""
        await eventually(lambda: not api.server.server_state.connections)


async def test_the_rest_of_an_answered_request_has_a_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve(tmp_path, worker=False) as api, connected(api) as wire:
        wire.send(b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n")
        assert await wire.status() == 404
        monkeypatch.setattr(connections, "HEAD_TIMEOUT_SECONDS", 0.2)
        wire.send(b"x" * 200_000)
        assert await wire.rest() == b""


async def test_connections_beyond_the_bound_are_refused_and_the_others_go_on(tmp_path: Path) -> None:
    async with serve(tmp_path, worker=False, api={"max_connections": 4}) as api, AsyncExitStack() as stack:
        first, second, third = [await stack.enter_async_context(connected(api)) for _ in range(3)]
        await eventually(lambda: len(api.server.server_state.connections) == 3)
        async with api.stream("GET", "/api/v1/events"):
            for _ in range(20):
                async with connected(api) as surplus:
                    assert await surplus.status() == 503
                    assert json.loads(surplus.body)["code"] == "too_many_connections"
            for wire in (first, second, third):
                wire.send(HEALTH)
                assert await wire.status() == 200
        await eventually(lambda: len(api.server.server_state.connections) == 3)
        assert (await api.get("/healthz")).status_code == 200


@pytest.mark.parametrize(
    ("descriptors", "most"), [(1024, 768), (8, 6), (2**20, 10_000), (resource.RLIM_INFINITY, 10_000)]
)
def test_the_bound_follows_the_file_descriptors(monkeypatch: pytest.MonkeyPatch, descriptors: int, most: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (descriptors, descriptors))
    assert connections.default_max_connections() == most
