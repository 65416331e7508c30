"""The properties of deliveries: of the fourteen that there can be, two matter, and only they are decoded."""

from __future__ import annotations

import logging
import struct

from pamqp import decode
from pamqp.header import ContentHeader

from taskframework.brokers.rabbitmq.wire import Properties, readable

logger = logging.getLogger(__name__)

_CONTENT_TYPE, _ENCODING, _HEADERS, _MORE_FLAGS = (1 << bit for bit in (15, 14, 13, 0))
#: Where the flags stand in a content header, behind class, weight and size of the body, and where the values begin.
_FLAGS_AT, _VALUES_AT = 12, 14


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


def read_properties(header: bytes) -> Properties:
    """The properties in the payload of a content header. What cannot be read at all is as good as not there."""
    try:
        return _read(header)
    except Exception:
        # Whatever a stranger published: a message that comes back for ever would stop its queue.
        logger.warning("the properties of a message cannot be read; it is taken without them", exc_info=True)
        return Properties("", {})


def _read(header: bytes) -> Properties:
    (flags,) = struct.unpack_from(">H", header, _FLAGS_AT)
    if flags & (_MORE_FLAGS | _ENCODING):  # rare: something else stands before what is wanted
        read = ContentHeader()
        read.unmarshal(header)
        return readable(read.properties.content_type, read.properties.headers)
    at, content_type = _VALUES_AT, ""
    if flags & _CONTENT_TYPE:
        at, content_type = at + 1 + header[at], header[at + 1 : at + 1 + header[at]].decode()
    return readable(content_type, decode.field_table(header[at:])[1] if flags & _HEADERS else None)
