"""The proxy does to connections what the scenarios say it does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from taskframework.testing.eventually import eventually
from tests.chaos.proxy import Proxy


class Echo:
    """A server that answers with what it gets, and remembers it."""

    def __init__(self) -> None:
        self.got = b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1000):
                self.got += data
                writer.write(data)
        except ConnectionError:
            pass
        finally:
            writer.close()


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
async def proxy(echo: Echo) -> AsyncIterator[Proxy]:
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    async with Proxy("127.0.0.1", server.sockets[0].getsockname()[1]) as proxy:
        yield proxy
    server.close()


class Client:
    """One connection through the proxy."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, text: bytes, *, timeout: float = 5) -> bytes:
        self.writer.write(text)
        return await self.answer(len(text), timeout=timeout)

    async def answer(self, length: int, *, timeout: float = 5) -> bytes:
        async with asyncio.timeout(timeout):
            return await self.reader.readexactly(length)


Connect = Callable[[], Awaitable[Client]]


@pytest.fixture
async def connect(proxy: Proxy) -> AsyncIterator[Connect]:
    clients = []

    async def connect() -> Client:
        clients.append(Client(*await asyncio.open_connection("127.0.0.1", proxy.port)))
        return clients[-1]

    yield connect
    for client in clients:
        client.writer.transport.abort()


async def test_the_proxy_forwards_both_ways(proxy: Proxy, connect: Connect) -> None:
    clients = [await connect() for _ in range(3)]
    assert [await client.ask(b"hello") for client in clients] == [b"hello"] * 3
    assert proxy.connections == 3
    clients[0].writer.close()
    await eventually(lambda: proxy.connections == 2)


async def test_the_proxy_cuts_connections_and_takes_new_ones(proxy: Proxy, connect: Connect) -> None:
    client = await connect()
    await client.ask(b"hello")
    proxy.cut()
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await client.ask(b"again")
    assert await (await connect()).ask(b"again") == b"again"


async def test_the_proxy_refuses_connections_until_it_is_released(proxy: Proxy, connect: Connect) -> None:
    proxy.cut(refuse=True)
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await (await connect()).ask(b"hello")
    proxy.release()
    assert await (await connect()).ask(b"hello") == b"hello"


async def test_the_proxy_holds_one_direction_and_delivers_the_held_bytes_later(
    proxy: Proxy, connect: Connect, echo: Echo
) -> None:
    client = await connect()
    proxy.hold("down")
    client.writer.write(b"hello")
    await eventually(lambda: echo.got == b"hello")
    with pytest.raises(TimeoutError):
        await client.answer(5, timeout=0.1)
    proxy.release()
    assert await client.answer(5) == b"hello"


async def test_a_held_end_is_not_heard(proxy: Proxy, connect: Connect, echo: Echo) -> None:
    client = await connect()
    await client.ask(b"hello")
    proxy.hold()
    client.writer.write(b"unheard")
    client.writer.close()
    other = await connect()
    with pytest.raises(TimeoutError):
        await other.ask(b"hello", timeout=0.1)
    assert (echo.got, proxy.connections) == (b"hello", 2)


async def test_the_proxy_slows_a_connection_down(proxy: Proxy, connect: Connect) -> None:
    client = await connect()
    proxy.slow(0.2)
    with pytest.raises(TimeoutError):
        await client.ask(b"hello", timeout=0.1)
    assert await client.answer(5) == b"hello"


async def test_the_reply_is_lost_after_a_number_of_bytes(proxy: Proxy, connect: Connect, echo: Echo) -> None:
    client = await connect()
    proxy.cut_after("down", 7)
    assert await client.ask(b"hello") == b"hello"
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await client.ask(b"again")
    assert echo.got == b"helloagain"
    assert await (await connect()).ask(b"once more") == b"once more"
