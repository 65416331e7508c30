"""The properties of our own publications as bytes.

The driver's encoder asks for the type of every field by its name. It takes a third of the time of a publication, and
what we send is always the same five properties with a few texts and integers as headers.
"""

from __future__ import annotations

import struct

from aiormq import spec

_CONTENT_TYPE, _HEADERS, _DELIVERY_MODE, _CORRELATION_ID, _MESSAGE_ID = (1 << bit for bit in (15, 13, 12, 10, 7))
_flags = struct.Struct(">H").pack
_length = struct.Struct(">I").pack
_integer = struct.Struct(">ci").pack


class OwnProperties(spec.Basic.Properties):
    """Content type, headers, delivery mode, correlation id and message id; the others are not sent."""

    def marshal(self) -> bytes:
        """The properties as the AMQP specification lays them out: flags, then the values in its order.

        Raises:
            ValueError, struct.error: for what does not fit into its field.
        """
        headers = b"".join([_text(name) + _value(value) for name, value in (self.headers or {}).items()])
        flags = _CONTENT_TYPE | _HEADERS | _DELIVERY_MODE | _MESSAGE_ID
        parts = [_text(self.content_type or ""), _length(len(headers)), headers, bytes((self.delivery_mode or 1,))]
        if self.correlation_id:
            flags |= _CORRELATION_ID
            parts.append(_text(self.correlation_id))
        return b"".join([_flags(flags), *parts, _text(self.message_id or "")])


def _text(value: str) -> bytes:
    encoded = value.encode()
    return bytes((len(encoded),)) + encoded


def _value(value: object) -> bytes:
    if isinstance(value, str):
        encoded = value.encode()
        return b"S" + _length(len(encoded)) + encoded
    if isinstance(value, int):
        return _integer(b"I", value) if -(2**31) <= value < 2**31 else b"l" + value.to_bytes(8, "big", signed=True)
    raise TypeError(f"a header of type {type(value).__name__}")
