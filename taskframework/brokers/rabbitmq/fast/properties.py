"""The properties of deliveries, read from their bytes.

The driver's decoder copies the rest of a header for each of its fields. Of what we receive two properties matter, and
most messages are ours: a few texts and integers.
"""

from __future__ import annotations

import contextlib
import logging
import struct

from pamqp.header import ContentHeader

from taskframework.brokers.rabbitmq.wire import Properties, readable

logger = logging.getLogger(__name__)

_CONTENT_TYPE, _ENCODING, _HEADERS, _MORE_FLAGS = (1 << bit for bit in (15, 14, 13, 0))
_FLAGS, _LENGTH = struct.Struct(">H"), struct.Struct(">I")
#: Where the flags stand in a content header: behind class, weight and size of the body.
_FLAGS_AT = 12
#: How the values of a header table are laid out that we send ourselves: a text, and integers of 32 and 64 bits.
_TEXT, _INTEGERS = ord("S"), {ord("I"): struct.Struct(">i"), ord("l"): struct.Struct(">q")}


def read_message_id(header: bytes) -> str:
    """The message id in the payload of a content header; empty if there is none.

    Raises:
        ValueError: if the driver cannot read the header.
    """
    try:
        return _by_driver(header).properties.message_id or ""
    except Exception as error:  # the driver's decoder raises all kinds
        raise ValueError(f"a content header that cannot be read: {error!r}") from error


def _by_driver(header: bytes) -> ContentHeader:
    read = ContentHeader()
    read.unmarshal(header)
    return read


def read_properties(header: bytes) -> Properties:
    """The properties in the payload of a content header. What cannot be read at all is as good as not there."""
    try:
        with contextlib.suppress(struct.error, IndexError):  # shorter than it says; the driver may be less strict
            if (usual := _read_usual(header)) is not None:
                return usual
        properties = _by_driver(header).properties
        return readable(properties.content_type, properties.headers)
    except Exception:
        # Whatever a stranger published: a message that comes back for ever would stop its queue.
        logger.warning("the properties of a message cannot be read; it is taken without them", exc_info=True)
        return Properties("", {})


def _read_usual(header: bytes) -> Properties | None:
    """Content type and headers of messages like ours; None for all others."""
    (flags,) = _FLAGS.unpack_from(header, _FLAGS_AT)
    if flags & (_MORE_FLAGS | _ENCODING):
        return None
    at, content_type, headers = _FLAGS_AT + 2, "", dict[str, str]()
    if flags & _CONTENT_TYPE:
        begin, at = at + 1, at + 1 + header[at]
        content_type = header[begin:at].decode()
    if not flags & _HEADERS:
        return Properties(content_type, headers)
    end = at + 4 + _LENGTH.unpack_from(header, at)[0]
    at += 4
    while at < end <= len(header):
        value = at + 2 + header[at]
        name, kind = header[at + 1 : value - 1].decode(), header[value - 1]
        if kind == _TEXT:
            at = value + 4 + _LENGTH.unpack_from(header, value)[0]
            headers[name] = header[value + 4 : at].decode(errors="replace")
        elif (integer := _INTEGERS.get(kind)) is not None:
            headers[name] = str(integer.unpack_from(header, value)[0])
            at = value + integer.size
        else:
            return None
    return Properties(content_type, headers) if at == end else None
