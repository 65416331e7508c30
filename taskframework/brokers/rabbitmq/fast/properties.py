"""The properties of deliveries: of the fourteen possible ones, two matter, and only these two are decoded."""

from __future__ import annotations

import logging
import struct

from pamqp import decode
from pamqp.header import ContentHeader

from taskframework.brokers.rabbitmq.wire import Properties, readable

logger = logging.getLogger(__name__)

_CONTENT_TYPE, _ENCODING, _HEADERS, _MORE_FLAGS = (1 << bit for bit in (15, 14, 13, 0))
#: Where the flags of a content header begin, after class, weight and size of the body, and where the values begin.
_FLAGS_AT, _VALUES_AT = 12, 14
#: A text or a table follows its length in bytes; a value follows its kind.
_LENGTH = struct.Struct(">I")
_TEXT, _INTEGER, _INTEGER_SIZE = ord("S"), ord("I"), 4


def read_message_id(header: bytes) -> str:
    """Return the message id in the payload of a content header; empty if there is none.

    Raises:
        ValueError: if the driver cannot read the header.
    """
    read = ContentHeader()
    try:
        read.unmarshal(header)
    except Exception as error:  # the driver's decoder raises errors of many types
        raise ValueError(f"a content header that cannot be read: {error!r}") from error
    return read.properties.message_id or ""


def read_properties(header: bytes) -> Properties:
    """Return the properties in the payload of a content header. Properties that cannot be read count as missing."""
    try:
        return _read(header)
    except Exception:
        # Take the message, whatever another program published: if it came back for ever, it would stop its queue.
        logger.warning("the properties of a message cannot be read; it is taken without them", exc_info=True)
        return Properties("", {})


def _read(header: bytes) -> Properties:
    (flags,) = struct.unpack_from(">H", header, _FLAGS_AT)
    if flags & (_MORE_FLAGS | _ENCODING):  # rare: another field comes before the two that matter
        read = ContentHeader()
        read.unmarshal(header)
        return readable(read.properties.content_type, read.properties.headers)
    at, content_type = _VALUES_AT, ""
    if flags & _CONTENT_TYPE:
        at, content_type = at + 1 + header[at], header[at + 1 : at + 1 + header[at]].decode()
    if not flags & _HEADERS:
        return Properties(content_type, {})
    ours = _read_table(header, at)
    return (
        readable(content_type, decode.field_table(header[at:])[1]) if ours is None else Properties(content_type, ours)
    )


def _read_table(header: bytes, at: int) -> dict[str, str] | None:
    """Read a table of texts and 32-bit integers, as the framework sends it, in a third of the driver's time.

    Returns:
        The table; None if it has values of other types.
    """
    table: dict[str, str] = {}
    (size,) = _LENGTH.unpack_from(header, at)
    at, end = at + _LENGTH.size, at + _LENGTH.size + size
    while at < end:
        value_at = at + 2 + header[at]
        name, kind = header[at + 1 : value_at - 1].decode(), header[value_at - 1]
        if kind == _TEXT:
            (size,) = _LENGTH.unpack_from(header, value_at)
            at = value_at + _LENGTH.size + size
            table[name] = header[value_at + _LENGTH.size : at].decode(errors="replace")
        elif kind == _INTEGER:
            at = value_at + _INTEGER_SIZE
            table[name] = str(int.from_bytes(header[value_at:at], "big", signed=True))
        else:
            return None
    return table if at == end <= len(header) else None
