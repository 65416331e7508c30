"""A proxy before several instances of a server: each connection goes to the next one that takes it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Self

_CHUNK = 65_536


class RoundRobin:
    """Forwards connections as they are; a context manager.

    A client that keeps no connection has each request answered by another instance. Like the proxies in use, it tries
    the next instance where one refuses, and tells nobody when an instance dies in the middle: the connection breaks.
    """

    def __init__(self, ports: Sequence[int], *, first: int = 0) -> None:
        """Prepare; the first connection goes to the instance of this number."""
        self._ports = ports
        self._next = first
        #: The port of each connection so far.
        self.taken: list[int] = []
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for serving in self._serving:
            serving.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(serving)
        serving.add_done_callback(self._serving.discard)

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        with contextlib.closing(to_client):
            instance, to_instance = await self._connected()
            with contextlib.closing(to_instance):
                ways = {
                    asyncio.create_task(_forward(client, to_instance)),
                    asyncio.create_task(_forward(instance, to_client)),
                }
                try:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for way in ways:
                        way.cancel()

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        for _ in self._ports:
            port = self._ports[self._next % len(self._ports)]
            self._next += 1
            with contextlib.suppress(OSError):
                connection = await asyncio.open_connection("127.0.0.1", port)
                self.taken.append(port)
                return connection
        raise ConnectionError("no instance takes a connection")


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
