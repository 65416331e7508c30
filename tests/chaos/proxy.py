"""A TCP proxy between a process and a server, whose connections can be cut, held and slowed."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Literal, Self

#: `up` is from the client to the server.
Direction = Literal["up", "down"]
BOTH: tuple[Direction, ...] = ("up", "down")
_CHUNK = 65_536


class Proxy:
    """Forwards connections to one address; a context manager.

    What is held is kept, not lost: TCP knows no loss. A held connection looks half-open to both ends, for no end of it
    is announced either.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self._open: dict[Direction, asyncio.Event] = {direction: asyncio.Event() for direction in BOTH}
        self._delay = 0.0
        self._budget: dict[Direction, int | None] = {"up": None, "down": None}
        self._refuses = False
        self.release()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.gather(*(link.ended() for link in list(self._links)))

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    @property
    def connections(self) -> int:
        return len(self._links)

    def cut(self, *, refuse: bool = False) -> None:
        """Abort all connections; with `refuse`, new ones as well until `release`."""
        self._refuses = refuse
        for link in list(self._links):
            link.abort()

    def hold(self, *directions: Direction) -> None:
        """Let nothing through, in these directions or in both, until `release`; new connections are held as well."""
        for direction in directions or BOTH:
            self._open[direction].clear()

    def release(self) -> None:
        """Let everything through again, what was held first."""
        self._refuses = False
        for gate in self._open.values():
            gate.set()

    def slow(self, seconds: float) -> None:
        """Delay each piece of data, both ways; 0 ends it."""
        self._delay = seconds

    def cut_after(self, direction: Direction, count: int) -> None:
        """Let `count` more bytes pass in this direction, over all connections, and cut them all before the next.

        With `down` the server gets the request, and the client never its reply.
        """
        self._budget[direction] = count

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._refuses:
            writer.transport.abort()
            return
        link = _Link(self, writer)
        self._links.add(link)
        try:
            await link.run(reader, *self._target)
        finally:
            self._links.discard(link)

    async def pass_on(self, direction: Direction, data: bytes) -> bytes:
        """Wait as long as data has to; what of it may go on."""
        if self._delay:
            await asyncio.sleep(self._delay)
        await self._open[direction].wait()
        budget = self._budget[direction]
        if budget is None:
            return data
        self._budget[direction] = budget - len(data)
        if len(data) > budget:
            self._budget[direction] = None
            self.cut()
            return data[:budget]
        return data


class _Link:
    """One connection from a client to the server."""

    def __init__(self, proxy: Proxy, client: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._writers = [client]
        self._pumps: list[asyncio.Task[None]] = []
        self._over = asyncio.Event()

    async def run(self, reader: asyncio.StreamReader, host: str, port: int) -> None:
        [client] = self._writers
        try:
            server_reader, server = await asyncio.open_connection(host, port)
        except OSError:
            client.transport.abort()
            self._over.set()
            return
        self._writers.append(server)
        self._pumps = [
            asyncio.create_task(self._pump("up", reader, server)),
            asyncio.create_task(self._pump("down", server_reader, client)),
        ]
        try:
            # The end of one direction ends both: neither AMQP nor MongoDB closes half of a connection.
            await asyncio.wait(self._pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.abort()
            await asyncio.wait(self._pumps)
            self._over.set()

    def abort(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        for pump in self._pumps:
            pump.cancel()

    async def ended(self) -> None:
        await self._over.wait()

    async def _pump(self, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                allowed = await self._proxy.pass_on(direction, data)
                writer.write(allowed)
                await writer.drain()
            # An end is held like data.
            await self._proxy.pass_on(direction, b"")
