"""Which connections a client uses: none of another event loop, and none of the process that it was forked from."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from taskframework.client import SyncTaskClient, TaskClient, transport
from taskframework.errors import ApiUnavailableError, ConfigurationError
from taskframework.events.http import HttpEvents
from tests.support.certificates import Authority
from tests.unit.client.conftest import task_view


class _Api(BaseHTTPRequestHandler):
    """Answers each request with a task, and keeps the connection. The task tells by its owner who is connected."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = json.dumps(task_view(user_id=str(self.client_address[1]))).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def url() -> Iterator[str]:
    with _served(_Api) as url:
        yield url


@contextmanager
def _served(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("spelling", ["https", "HTTPS"])
def test_a_certificate_that_is_not_trusted_is_refused_on_this_machine_too(tmp_path: Path, spelling: str) -> None:
    certificate, key, _ = Authority(tmp_path).signed("server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(10)
        url = f"{spelling}://127.0.0.1:{listening.getsockname()[1]}"

        def shake_hands() -> None:
            for _ in range(2):
                with suppress(OSError), context.wrap_socket(listening.accept()[0], server_side=True):
                    pass

        with ThreadPoolExecutor(1) as thread:
            done = thread.submit(shake_hands)
            with closing(SyncTaskClient(url)) as client, pytest.raises(ApiUnavailableError, match="SSL_CERT_FILE"):
                client.get("t")
            with pytest.raises(ApiUnavailableError, match="SSL_CERT_FILE"):
                asyncio.run(TaskClient(url).get("t"))
            done.result()


async def test_hundreds_of_calls_at_once_are_sent_in_their_turn() -> None:
    unanswered = most = 0
    body = json.dumps(task_view()).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal unanswered, most
        with closing(writer), suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                unanswered += 1
                most = max(most, unanswered)
                for _ in range(20):  # so that others come meanwhile
                    await asyncio.sleep(0)
                unanswered -= 1
                writer.write(head + body)

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        async with TaskClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as client:
            assert len(await asyncio.gather(*(client.get("t") for _ in range(300)))) == 300
        assert 1 < most <= transport._MAX_CONCURRENT_CALLS


async def test_a_call_that_waits_too_long_for_its_turn_fails_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_MAX_CONCURRENT_CALLS", 1)

    async def stay_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(ConnectionError, asyncio.CancelledError):
            await reader.read()

    async with await asyncio.start_server(stay_silent, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with TaskClient(url, timeout=0.2, patience=0) as client:
            replies = await asyncio.gather(client.get("t"), client.get("t"), return_exceptions=True)
    [silent, waited] = map(str, replies)
    assert "ReadTimeout" in silent
    assert "too many calls at once. Submit many tasks with `submit_many`" in waited


@pytest.mark.parametrize("wrong", [{"patience": -1}, {"timeout": 0}, {"timeout": timedelta(seconds=-1)}])
@pytest.mark.parametrize("client", [TaskClient, SyncTaskClient])
def test_a_time_that_cannot_be_meant_is_refused(client: type[Any], wrong: dict[str, Any]) -> None:
    [(name, value)] = wrong.items()
    with pytest.raises(ConfigurationError, match=re.escape(f"{name}={value!r}")):
        client("http://127.0.0.1:1", **wrong)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("SSL_CERT_FILE", "nope.pem", "SSL_CERT_FILE is 'nope.pem': "),
        ("ALL_PROXY", "socks5://127.0.0.1:1", "socksio"),
        ("ALL_PROXY", "foo://127.0.0.1:1", "foo"),
    ],
)
@pytest.mark.parametrize("kind", ["asyncio", "blocking", "events"])
async def test_a_wrong_variable_of_the_environment_is_named(
    monkeypatch: pytest.MonkeyPatch, kind: str, name: str, value: str, said: str
) -> None:
    monkeypatch.setenv(name, value)
    address = "https://api.example"
    client, blocking, events = TaskClient(address), SyncTaskClient(address), HttpEvents(address)
    calls: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
        "asyncio": lambda: client.get("t"),
        "blocking": lambda: asyncio.to_thread(blocking.get, "t"),
        "events": lambda: events.open(),
    }
    for _ in range(2):  # a client that could not be made leaves nothing behind
        with pytest.raises(ConfigurationError, match=said) as refused:
            await calls[kind]()
    assert name in refused.value.hint


def test_more_threads_share_a_client_than_httpx_has_connections_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams of a hundred threads took all connections, and every further call failed."""
    threads = 101
    all_there = threading.Barrier(threads, timeout=60)

    class Api(_Api):
        def do_GET(self) -> None:
            all_there.wait()
            super().do_GET()

    monkeypatch.setattr(ThreadingHTTPServer, "request_queue_size", threads)
    with _served(Api) as url, closing(SyncTaskClient(url, timeout=60)) as client, ThreadPoolExecutor(threads) as pool:
        assert len([task.task_id for task in pool.map(client.get, ["t"] * threads)]) == threads


def test_a_process_that_was_forked_opens_its_own_connections(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(SyncTaskClient(url)) as client:
        connections = [client.get("t").user_id for _ in range(2)]
        with monkeypatch.context() as patched:
            patched.setattr(os, "getpid", lambda: 1)  # as in a child
            connections += [client.get("t").user_id for _ in range(2)]
            client.close()
            with pytest.raises(RuntimeError, match="The client is closed"):
                client.get("t")
    assert connections[0] == connections[1] != connections[2] == connections[3]


def test_a_client_has_other_connections_for_each_event_loop(url: str) -> None:
    client = TaskClient(url)

    async def ask_twice() -> list[str]:
        return [(await client.get("t")).user_id for _ in range(2)]

    async def ask_and_close() -> None:
        async with client:
            await client.get("t")
        with pytest.raises(RuntimeError, match="The client is closed"):
            await client.get("t")

    first, second = asyncio.run(ask_twice()), asyncio.run(ask_twice())
    assert first[0] == first[1] != second[0] == second[1]
    asyncio.run(ask_and_close())


def test_the_client_imports_neither_settings_nor_a_store() -> None:
    """They would double the time until a script has asked its first question."""
    code = "import sys; from taskframework import SyncTaskClient, TaskClient; print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = ("settings", "stores", "wiring", "worker", "api", "runtime")
    assert not [name for name in heavy if f"taskframework.{name}" in ended.stdout.split()]
