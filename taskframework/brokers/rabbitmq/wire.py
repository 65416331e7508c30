"""How messages get on and off a connection: two protocols, and the types that they use.

`plain.py` implements them with the driver's public calls; read it first. `fast/` does the same in a fraction of the
time, and uses the plain way wherever it cannot prove that it fits the driver. Nothing else depends on this choice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import orjson
from aio_pika.abc import AbstractChannel

from taskframework.brokers.rabbitmq.messages import Publication


class Properties(NamedTuple):
    """The properties of a message that are used. Properties that cannot be read count as missing."""

    content_type: str
    headers: Mapping[str, str]


#: Called for a delivery with its tag, its body, and a function that reads its properties, which are not always needed.
#: It is called while the connection is being read, so it may only hand the delivery over.
OnMessage = Callable[[int, bytes, Callable[[], Properties]], None]


class ReturnedError(Exception):
    """No queue takes the message: it came back."""


class RefusedError(Exception):
    """The broker confirmed that it did not take the message."""


class PublicationWriter(Protocol):
    """Publishes on one channel, in the order of the calls."""

    async def send(self, publication: Publication, deadline: float) -> None:
        """Publish and wait for the confirm, until a time of the event loop's clock.

        Raises:
            PublishRefusedError: if the message cannot be written; nothing was sent.
            ReturnedError, RefusedError: if the broker does not take the message.
            TimeoutError: if the message is not confirmed by then.
            The driver's errors.
        """
        ...


class Wire(Protocol):
    """Consumes and publishes messages on one connection."""

    async def consume(
        self, channel: AbstractChannel, queue: str, on_message: OnMessage, arguments: Mapping[str, int] | None
    ) -> str:
        """Register a consumer on a channel that is open; deliveries may come before this returns.

        Returns:
            The consumer's tag.

        Raises:
            The driver's errors.
        """
        ...

    async def writer(self, channel: AbstractChannel) -> PublicationWriter:
        """Return the writer of a fresh channel that confirms, and on which nobody else publishes."""
        ...


def to_properties(content_type: str | None, headers: Mapping[str, Any] | None) -> Properties:
    """Return the properties that the driver read, with texts for all headers."""
    return Properties(content_type or "", {name: header_text(value) for name, value in (headers or {}).items()})


def header_text(value: Any) -> str:
    """Return a header's value as text; tables and lists, such as x-death, as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode(errors="replace")
    try:
        return orjson.dumps(value, default=str).decode()
    except TypeError:  # the table of another program may be deeper than JSON can be
        return str(value)
