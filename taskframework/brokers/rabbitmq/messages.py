"""The wire format: which exchange, key, headers and properties a publication has. This module does not connect.

The properties are encoded here and not by the driver, for two reasons. Values that do not fit are refused before
anything is sent. And the driver's encoder takes three times as long: it looks up the type of each field by its name.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from datetime import timedelta
from functools import lru_cache
from typing import NamedTuple

import uuid_utils

from taskframework.brokers.base import ExternalMessage
from taskframework.brokers.rabbitmq.topology import Names, routing_key
from taskframework.errors import PublishRefusedError
from taskframework.model.message import TaskMessage

#: The most bytes of all properties of a message. They are one frame, and a frame larger than the broker allows (by
#: default 131,072 bytes, but the limit may be lower) ends the whole connection.
MAX_HEADER_BYTES = 4096
#: The largest message that RabbitMQ 4 takes by default, in bytes; a larger message ends the channel with all
#: publications on it.
MAX_BODY_BYTES = 16 * 1024**2
#: Longest delay the plugin can count, in milliseconds.
_MAX_DELAY_MS = 2**32 - 1
_CONTENT_TYPE, _HEADERS, _DELIVERY_MODE, _CORRELATION_ID, _MESSAGE_ID = (1 << bit for bit in (15, 13, 12, 10, 7))
_FLAGS, _LENGTH, _INTEGER = struct.Struct(">H"), struct.Struct(">I"), struct.Struct(">ci")
_PERSISTENT = b"\x02"


class Publication(NamedTuple):  # made for each message, in a third of the time of a frozen dataclass
    """One attempt to publish a message."""

    exchange: str
    routing_key: str
    body: bytes
    content_type: str
    headers: Mapping[str, str | int]
    correlation_id: str | None
    message_id: str
    #: The four fields above and the delivery mode (persistent), encoded.
    properties: bytes
    #: Whether the broker returns the message when no queue takes it.
    mandatory: bool
    #: The failpoint after the confirm.
    failpoint: str = "dispatch.reply"


def task_publication(names: Names, message: TaskMessage, delay: timedelta | None) -> Publication:
    """Return the publication of a task message, now or after a delay that the delayed-message plugin holds.

    A delayed publication is never mandatory: when the broker answers, the plugin has not routed the message yet, so the
    broker would return each message as unroutable.

    Raises:
        PublishRefusedError: if the message is too large or cannot be written.
    """
    headers: dict[str, str | int] = {"x-retry-count": 0, **(message.headers or {})}
    # The id of this dispatch, the same in all attempts to publish it; the message id is new in each attempt.
    headers["dispatch_id"] = f"{message.task_id}-{message.dispatch_epoch}"
    headers["task_id"] = message.task_id
    headers["task_type"] = message.task_type
    key = routing_key(message.task_type, message.lane)
    body = message.to_body()
    if delay is None:
        return _make_publication(names.tasks, key, body, "application/json", headers, mandatory=True)
    # Rounded up, because a message that comes too early is refused by the claim.
    milliseconds = -(-delay // timedelta(milliseconds=1))
    headers["x-delay"] = min(max(milliseconds, 0), _MAX_DELAY_MS)
    return _make_publication(names.delayed, key, body, "application/json", headers, mandatory=False)


def event_publication(names: Names, event: ExternalMessage) -> Publication:
    """Return the publication of an external event, which needs no listener.

    Raises:
        PublishRefusedError: if the event is too large or cannot be written.
    """
    headers = {**event.headers}
    return _make_publication(
        names.events, "", event.body, event.content_type, headers, mandatory=False, failpoint="relay.reply"
    )


def _make_publication(
    exchange: str,
    routing_key: str,
    body: bytes,
    content_type: str,
    headers: Mapping[str, str | int],
    *,
    mandatory: bool,
    failpoint: str = "dispatch.reply",
) -> Publication:
    if len(body) > MAX_BODY_BYTES:
        raise PublishRefusedError(f"The body has {len(body):,} bytes; the limit is {MAX_BODY_BYTES:,}.")
    given = headers.get("correlation_id")
    correlation_id = None if given is None else str(given)
    # New in each attempt, because it identifies returned messages.
    message_id = uuid_utils.uuid4().hex
    try:
        properties = encode_properties(content_type, headers, correlation_id=correlation_id, message_id=message_id)
    except (TypeError, ValueError, OverflowError, struct.error) as error:
        raise PublishRefusedError(f"The message cannot be written: {error}.") from error
    if len(properties) > MAX_HEADER_BYTES:
        raise PublishRefusedError(f"The headers have {len(properties):,} bytes; the limit is {MAX_HEADER_BYTES:,}.")
    return Publication(
        exchange, routing_key, body, content_type, headers, correlation_id, message_id, properties, mandatory, failpoint
    )


def encode_properties(
    content_type: str, headers: Mapping[str, str | int], *, correlation_id: str | None, message_id: str
) -> bytes:
    """Encode the properties of a persistent message as the AMQP specification says: flags, then values in its order.

    Raises:
        TypeError, ValueError, OverflowError, struct.error: if a value does not fit into its field.
    """
    table = b"".join([_encode_name(name) + _encode_value(value) for name, value in headers.items()])
    flags = _CONTENT_TYPE | _HEADERS | _DELIVERY_MODE | _MESSAGE_ID
    parts = [_encode_name(content_type), _LENGTH.pack(len(table)), table, _PERSISTENT]
    if correlation_id:
        flags |= _CORRELATION_ID
        parts.append(_encode_text(correlation_id))
    return b"".join([_FLAGS.pack(flags), *parts, _encode_text(message_id)])


def _encode_text(value: str) -> bytes:
    encoded = value.encode()
    return bytes((len(encoded),)) + encoded


_encode_name = lru_cache(maxsize=1024)(_encode_text)


def _encode_value(value: object) -> bytes:
    if isinstance(value, str):
        encoded = value.encode()
        return b"S" + _LENGTH.pack(len(encoded)) + encoded
    if isinstance(value, int):
        return _INTEGER.pack(b"I", value) if -(2**31) <= value < 2**31 else b"l" + value.to_bytes(8, "big", signed=True)
    raise TypeError(f"a header of type {type(value).__name__}")
