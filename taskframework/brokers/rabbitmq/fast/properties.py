"""The properties of deliveries: of the fourteen possible ones, two matter, and only these two are decoded."""

from __future__ import annotations

import logging
import struct

from pamqp import decode
from pamqp.header import ContentHeader

from taskframework.brokers.rabbitmq.wire import Properties, to_properties

logger = logging.getLogger(__name__)

_CONTENT_TYPE, _ENCODING, _HEADERS, _MORE_FLAGS = (1 << bit for bit in (15, 14, 13, 0))
#: Where the flags of a content header begin, after class, weight and size of the body, and where the values begin.
_FLAGS_OFFSET, _VALUES_OFFSET = 12, 14
#: A text or a table follows its length in bytes; a value follows its kind.
_LENGTH = struct.Struct(">I")
_TEXT, _INTEGER, _INTEGER_SIZE = ord("S"), ord("I"), 4


def read_message_id(header: bytes) -> str:
    """Return the message id in the payload of a content header; empty if there is none.

    Raises:
        ValueError: if the driver cannot read the header.
    """
    parsed = ContentHeader()
    try:
        parsed.unmarshal(header)
    except Exception as error:  # the driver's decoder raises errors of many types
        raise ValueError(f"a content header that cannot be read: {error!r}") from error
    return parsed.properties.message_id or ""


def read_properties(header: bytes) -> Properties:
    """Return the properties in the payload of a content header. Properties that cannot be read count as missing."""
    try:
        return _parse_header(header)
    except Exception:
        # Take the message, whatever another program published: if it came back for ever, it would stop its queue.
        logger.warning("the properties of a message cannot be read; it is taken without them", exc_info=True)
        return Properties("", {})


def _parse_header(header: bytes) -> Properties:
    (flags,) = struct.unpack_from(">H", header, _FLAGS_OFFSET)
    if flags & (_MORE_FLAGS | _ENCODING):  # rare: another field comes before the two that matter
        parsed = ContentHeader()
        parsed.unmarshal(header)
        return to_properties(parsed.properties.content_type, parsed.properties.headers)
    offset, content_type = _VALUES_OFFSET, ""
    if flags & _CONTENT_TYPE:
        offset, content_type = offset + 1 + header[offset], header[offset + 1 : offset + 1 + header[offset]].decode()
    if not flags & _HEADERS:
        return Properties(content_type, {})
    table = _read_table(header, offset)
    return (
        to_properties(content_type, decode.field_table(header[offset:])[1])
        if table is None
        else Properties(content_type, table)
    )


def _read_table(header: bytes, offset: int) -> dict[str, str] | None:
    """Read a table of texts and 32-bit integers, as the framework sends it, in a third of the driver's time.

    Returns:
        The table; None if it has values of other types.
    """
    table: dict[str, str] = {}
    (size,) = _LENGTH.unpack_from(header, offset)
    offset, end = offset + _LENGTH.size, offset + _LENGTH.size + size
    while offset < end:
        value_offset = offset + 2 + header[offset]
        name, kind = header[offset + 1 : value_offset - 1].decode(), header[value_offset - 1]
        if kind == _TEXT:
            (size,) = _LENGTH.unpack_from(header, value_offset)
            offset = value_offset + _LENGTH.size + size
            table[name] = header[value_offset + _LENGTH.size : offset].decode(errors="replace")
        elif kind == _INTEGER:
            offset = value_offset + _INTEGER_SIZE
            table[name] = str(int.from_bytes(header[value_offset:offset], "big", signed=True))
        else:
            return None
    return table if offset == end <= len(header) else None
