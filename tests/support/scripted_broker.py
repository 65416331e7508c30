"""A server that speaks just enough AMQP to be published to, and then says what it is told."""

from __future__ import annotations

import asyncio
from typing import Any, Self

from aiormq import spec
from aiormq.connection import FrameReceiver
from aiormq.exceptions import AMQPError
from pamqp import frame
from pamqp.header import ContentHeader

_CAPABILITIES = {"publisher_confirms": True, "basic.nack": True, "connection.blocked": True}
_ANSWERS: dict[type, Any] = {
    spec.Connection.StartOk: spec.Connection.Tune(channel_max=10, frame_max=131_072, heartbeat=0),
    spec.Connection.Open: spec.Connection.OpenOk(),
    spec.Connection.Close: spec.Connection.CloseOk(),
    spec.Channel.Open: spec.Channel.OpenOk(),
    spec.Channel.Close: spec.Channel.CloseOk(),
    spec.Confirm.Select: spec.Confirm.SelectOk(),
}


class ScriptedBroker:
    """Takes one connection after the other; the newest is the one that is spoken to."""

    def __init__(self) -> None:
        self.connections = 0
        #: The message ids of what was published on the newest connection.
        self.published: list[str] = []
        self._writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"amqp://guest:guest@127.0.0.1:{self._server.sockets[0].getsockname()[1]}/"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        if self._writer is not None:
            self._writer.close()
        await self._server.wait_closed()

    def says(self, *frames: bytes) -> None:
        assert self._writer is not None
        self._writer.write(b"".join(frames))

    def hangs_up(self) -> None:
        assert self._writer is not None
        self._writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer, self.published = writer, []
        self.connections += 1
        await reader.readexactly(8)
        start = spec.Connection.Start(server_properties={"capabilities": {**_CAPABILITIES}}, mechanisms="PLAIN")
        writer.write(frame.marshal(start, 0))
        receiver = FrameReceiver(reader)
        try:
            while True:
                _, channel, heard = await receiver.get_frame()
                if isinstance(heard, ContentHeader):
                    self.published.append(heard.properties.message_id or "")
                elif (answer := _ANSWERS.get(type(heard))) is not None:
                    writer.write(frame.marshal(answer, channel))
        except (AMQPError, StopAsyncIteration):
            writer.close()
