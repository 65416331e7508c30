"""Writes publications to a channel, all of one turn of the event loop in one piece, and receives their confirms.

The driver's own call takes a lock, a time limit and a write to the socket for each message, encodes the same frame
every time, and walks through all unconfirmed messages for each confirm. Nobody else publishes on this channel, so the
numbers of the confirms can be counted here.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from functools import lru_cache
from itertools import takewhile

import aiormq
from aio_pika.abc import AbstractChannel
from aiormq import spec
from aiormq.exceptions import AMQPConnectionError, AMQPError, ChannelInvalidStateError
from pamqp import frame

from taskframework.background import Deadlines
from taskframework.brokers.rabbitmq.fast.properties import read_message_id
from taskframework.brokers.rabbitmq.fast.transport import FrameTransport
from taskframework.brokers.rabbitmq.messages import MAX_BODY_BYTES, Publication
from taskframework.brokers.rabbitmq.wire import RefusedError, ReturnedError
from taskframework.errors import PublishRefusedError

logger = logging.getLogger(__name__)

#: A frame is kind, channel and size, then as many bytes as the size says, then the end mark; a header is class, weight
#: and body size.
_pack_header = struct.Struct(">BHIHHQ").pack
_pack_body = struct.Struct(">BHI").pack
_BASIC, _HEADER_BYTES = 60, 12
_END = b"\xce"


class FastWriter:
    """Writes publications to a channel that confirms, in the order of the calls."""

    def __init__(self, channel: AbstractChannel, inner: aiormq.Channel, transport: FrameTransport) -> None:
        """Take a fresh channel, and its inner channel, of a connection that this transport serves."""
        self._channel = inner
        self._transport = transport
        #: How many bytes of a body go into one frame. For a broker without a limit the driver has a negative number: 0
        #: minus the frame's own bytes.
        self._max_content_bytes = inner.max_content_size if inner.max_content_size > 0 else MAX_BODY_BYTES
        self._frames: list[bytes] = []
        self._flushing: asyncio.Handle | None = None
        self._last_tag = 0
        #: The publications that are not confirmed yet: message id and confirm, by their number, the oldest first.
        self._unconfirmed: dict[int, tuple[str, asyncio.Future[None]]] = {}
        self._deadlines = Deadlines()
        channel.close_callbacks.add(lambda _, reason: self._fail_all(reason))
        transport.incoming.register_confirms(inner.number, self._on_confirm, self._on_return)

    async def send(self, publication: Publication, deadline: float) -> None:
        confirm = self._write(publication)
        self._deadlines.limit(confirm, deadline)
        await confirm

    def _fail_all(self, reason: BaseException | None) -> None:
        if self._flushing is not None:
            self._flushing.cancel()
        error = reason if isinstance(reason, AMQPError) else AMQPConnectionError("the channel was closed")
        if error is not reason:  # an error inside the driver, which does not help the caller
            error.__cause__ = reason
        unconfirmed, self._unconfirmed = self._unconfirmed, {}
        for _, confirm in unconfirmed.values():
            _resolve(confirm, error)

    def _write(self, publication: Publication) -> asyncio.Future[None]:
        channel, content = self._channel, publication.body
        if channel.is_closed:  # a confirm would never come
            raise ChannelInvalidStateError("the channel is closed")
        number, size = channel.number, self._max_content_bytes
        method = _encode_method(number, publication.exchange, publication.routing_key, publication.mandatory)
        properties = publication.properties
        header = _pack_header(2, number, _HEADER_BYTES + len(properties), _BASIC, 0, len(content))
        self._frames += (method, header, properties, _END)
        for offset in range(0, len(content), size):
            piece = content[offset : offset + size]
            self._frames += (_pack_body(3, number, len(piece)), piece, _END)
        self._last_tag += 1
        confirm: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unconfirmed[self._last_tag] = publication.message_id, confirm
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().call_soon(self._flush)
        return confirm

    def _flush(self) -> None:
        self._flushing = None
        frames, self._frames = self._frames, []
        try:
            self._transport.write(b"".join(frames))
        except AMQPError as error:
            self._fail_all(error)

    def _on_confirm(self, tag: int, is_multiple: bool, is_taken: bool) -> None:
        error = None if is_taken else RefusedError()
        if not is_multiple:
            if (found := self._unconfirmed.pop(tag, None)) is not None:
                _resolve(found[1], error)
            return
        for other in list(takewhile(lambda number: number <= tag, self._unconfirmed)):
            _resolve(self._unconfirmed.pop(other)[1], error)

    def _on_return(self, header: bytes) -> None:
        # The confirm of this message still follows; `_resolve` ignores it.
        message_id = read_message_id(header)
        for sent_id, confirm in self._unconfirmed.values():
            if sent_id == message_id:
                _resolve(confirm, ReturnedError())
                return
        logger.warning("a message came back that is not under way here: %r", message_id)


def _resolve(confirm: asyncio.Future[None], error: Exception | None) -> None:
    if confirm.done():  # nobody waits any more, or the message came back
        return
    if error is None:
        confirm.set_result(None)
    else:
        confirm.set_exception(error)


@lru_cache(maxsize=1024)
def _encode_method(channel: int, exchange: str, routing_key: str, mandatory: bool) -> bytes:
    try:
        method = spec.Basic.Publish(exchange=exchange, routing_key=routing_key, mandatory=mandatory)
        return frame.marshal(method, channel)
    except (TypeError, ValueError) as error:
        raise PublishRefusedError(f"The message cannot be written: {error}.") from error
