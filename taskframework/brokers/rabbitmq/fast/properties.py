"""The properties of a message, read when somebody asks for them, by the driver's own decoder."""

from __future__ import annotations

import logging

from pamqp.commands import Basic
from pamqp.header import ContentHeader

from taskframework.brokers.rabbitmq.wire import Properties, readable

logger = logging.getLogger(__name__)


def read_message_id(header: bytes) -> str:
    """The message id in the payload of a content header; empty if there is none.

    Raises:
        ValueError: if the driver cannot read the header.
    """
    try:
        return _read(header).message_id or ""
    except Exception as error:  # the driver's decoder raises all kinds
        raise ValueError(f"a content header that cannot be read: {error!r}") from error


def read_properties(header: bytes) -> Properties:
    """The properties in the payload of a content header. What cannot be read at all is as good as not there."""
    try:
        properties = _read(header)
        return readable(properties.content_type, properties.headers)
    except Exception:
        # Whatever a stranger published: a message that comes back for ever would stop its queue.
        logger.warning("the properties of a message cannot be read; it is taken without them", exc_info=True)
        return Properties("", {})


def _read(header: bytes) -> Basic.Properties:
    read = ContentHeader()
    read.unmarshal(header)
    return read.properties
