"""Putting publications on a channel: those of one moment in one piece.

The driver's own call takes a lock, a time limit and a write to the socket for each message, and spells out the same
frame every time. Nobody else publishes on our channel, so the numbers of the confirms can be given here.
"""

from __future__ import annotations

import asyncio
from functools import lru_cache, partial
from typing import Any

import aiormq
from aiormq import spec
from aiormq.abc import ChannelFrame
from aiormq.exceptions import ChannelInvalidStateError
from pamqp import frame
from pamqp.body import ContentBody
from pamqp.header import ContentHeader

from taskframework.brokers.rabbitmq.messages import Publication


class PublicationWriter:
    """Writes publications to a channel that confirms, in the order of the calls."""

    def __init__(self, channel: aiormq.Channel) -> None:
        self._channel = channel
        self._frames: list[bytes] = []
        self._flushing: asyncio.Task[None] | None = None

    def write(self, publication: Publication) -> asyncio.Future[Any]:
        """Send a publication in this moment.

        Returns:
            Its confirm; an error of the driver if it comes back or is refused, or if the channel is closed before.

        Raises:
            TypeError, ValueError, OverflowError, struct.error: if it cannot be written.
            ChannelInvalidStateError: if the channel is closed; nothing would ever confirm.
        """
        channel, content = self._channel, publication.body
        if channel.is_closed:
            raise ChannelInvalidStateError("the channel is closed")
        header = ContentHeader(properties=publication.properties, body_size=len(content))
        size = channel.max_content_size
        bodies = [ContentBody(content[at : at + size]) for at in range(0, len(content), size)]
        parts: list[ContentHeader | ContentBody] = [header, *bodies]
        frames = [frame.marshal(part, channel.number) for part in parts]
        method = _method(channel.number, publication.exchange, publication.routing_key, publication.mandatory)

        channel.delivery_tag += 1
        tag = channel.delivery_tag
        confirm = channel.confirmations[tag] = channel.create_future()
        if publication.mandatory and (message_id := publication.properties.message_id):
            channel.message_id_delivery_tag[message_id] = tag  # so that a message that comes back is known again
            confirm.add_done_callback(partial(self._forget, message_id))
        self._frames += (method, *frames)
        if self._flushing is None:
            self._flushing = asyncio.create_task(self._flush())
        return confirm

    def close(self) -> None:
        """Write no more."""
        if self._flushing is not None:
            self._flushing.cancel()

    def _forget(self, message_id: str, _: asyncio.Future[Any]) -> None:
        self._channel.message_id_delivery_tag.pop(message_id, None)

    async def _flush(self) -> None:
        try:
            while self._frames:
                frames, self._frames = self._frames, []
                await self._channel.write_queue.put(ChannelFrame(payload=b"".join(frames), should_close=False))
        finally:
            self._flushing = None


@lru_cache(maxsize=1024)
def _method(channel: int, exchange: str, routing_key: str, mandatory: bool) -> bytes:
    return frame.marshal(spec.Basic.Publish(exchange=exchange, routing_key=routing_key, mandatory=mandatory), channel)
