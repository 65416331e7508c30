"""The properties of messages as bytes: those of our own publications written, those of deliveries read.

The driver's encoder and decoder ask for the type of every field by its name, which takes a third of the time of a
publication. What we send is always the same five properties with a few texts and integers as headers; of what we
receive, two properties matter.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import orjson
from pamqp.header import ContentHeader

logger = logging.getLogger(__name__)

_CONTENT_TYPE, _ENCODING, _HEADERS, _DELIVERY_MODE, _CORRELATION_ID, _MESSAGE_ID, _MORE_FLAGS = (
    1 << bit for bit in (15, 14, 13, 12, 10, 7, 0)
)
_flags = struct.Struct(">H").pack
_length = struct.Struct(">I").pack
_integer = struct.Struct(">ci").pack
_PERSISTENT = b"\x02"
#: Class, weight and size of the body come before the flags.
_FLAGS = 12
_read_flags = struct.Struct(">H").unpack_from
_read_length = struct.Struct(">I").unpack_from
#: How the integers of a header table are laid out; the broker knows one more name for some.
_INTEGERS = {
    ord(kind): struct.Struct(layout)
    for kind, layout in (("b", ">b"), ("B", ">B"), ("s", ">h"), ("u", ">H"), ("I", ">i"), ("i", ">I"), ("l", ">q"))
}


def own_properties(
    content_type: str, headers: Mapping[str, str | int], *, correlation_id: str | None, message_id: str
) -> bytes:
    """The properties of a persistent message, as the AMQP specification lays them out: flags, then values in its order.

    Raises:
        TypeError, ValueError, OverflowError, struct.error: for what does not fit into its field.
    """
    table = b"".join([_name(name) + _value(value) for name, value in headers.items()])
    flags = _CONTENT_TYPE | _HEADERS | _DELIVERY_MODE | _MESSAGE_ID
    parts = [_name(content_type), _length(len(table)), table, _PERSISTENT]
    if correlation_id:
        flags |= _CORRELATION_ID
        parts.append(_text(correlation_id))
    return b"".join([_flags(flags), *parts, _text(message_id)])


def _text(value: str) -> bytes:
    encoded = value.encode()
    return bytes((len(encoded),)) + encoded


_name = lru_cache(maxsize=1024)(_text)


def _value(value: object) -> bytes:
    if isinstance(value, str):
        encoded = value.encode()
        return b"S" + _length(len(encoded)) + encoded
    if isinstance(value, int):
        return _integer(b"I", value) if -(2**31) <= value < 2**31 else b"l" + value.to_bytes(8, "big", signed=True)
    raise TypeError(f"a header of type {type(value).__name__}")


class Received(NamedTuple):
    """What a delivery tells of its message."""

    content_type: str
    headers: Mapping[str, str]


def read_properties(header: bytes) -> Received:
    """The properties in the payload of a content header. What cannot be read at all is as good as not there."""
    try:
        return _read_usual(header) or _read_any(header)
    except Exception:
        # Whatever a stranger published: a message that comes back for ever would stop its queue.
        logger.warning("the properties of a message cannot be read; it is taken without them", exc_info=True)
        return Received("", {})


def read_message_id(header: bytes) -> str:
    """The message id in the payload of a content header; empty if there is none.

    Raises:
        ValueError: if the driver cannot read the header.
    """
    read = ContentHeader()
    try:
        read.unmarshal(header)
    except Exception as error:  # the driver's decoder raises all kinds
        raise ValueError(f"a content header that cannot be read: {error!r}") from error
    return read.properties.message_id or ""


def _read_usual(header: bytes) -> Received | None:
    """The same for headers that are texts and integers, which takes a tenth of the time; None for all others."""
    (flags,) = _read_flags(header, _FLAGS)
    if flags & (_MORE_FLAGS | _ENCODING):
        return None
    at, content_type, headers = _FLAGS + 2, "", {}
    if flags & _CONTENT_TYPE:
        begin, at = at + 1, at + 1 + header[at]
        content_type = header[begin:at].decode()
    if flags & _HEADERS:
        (size,) = _read_length(header, at)
        if at + 4 + size > len(header):
            return None
        found = _read_table(header, at + 4, at + 4 + size)
        if found is None:
            return None
        headers = found
    return Received(content_type, headers)


def _read_table(data: bytes, at: int, end: int) -> dict[str, str] | None:
    headers: dict[str, str] = {}
    try:
        while at < end:
            value = at + 2 + data[at]
            name, kind = data[at + 1 : value - 1].decode(), data[value - 1]
            if kind == 0x53:  # "S", a text
                at = value + 4 + _read_length(data, value)[0]
                headers[name] = data[value + 4 : at].decode(errors="replace")
            elif (integer := _INTEGERS.get(kind)) is not None:
                headers[name] = str(integer.unpack_from(data, value)[0])
                at = value + integer.size
            else:
                return None
    except (struct.error, IndexError):
        return None
    return headers


def _read_any(header: bytes) -> Received:
    read = ContentHeader()
    read.unmarshal(header)
    headers = read.properties.headers or {}
    return Received(read.properties.content_type or "", {name: header_text(value) for name, value in headers.items()})


def header_text(value: Any) -> str:
    """A header's value as text; tables and lists, such as x-death, as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode(errors="replace")
    return orjson.dumps(value, default=str).decode()
