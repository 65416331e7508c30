"""What RabbitMQ sends, as bytes, and what it reads of ours."""

from __future__ import annotations

import struct
from typing import Any

from aiormq import spec
from pamqp import frame
from pamqp.base import Frame
from pamqp.body import ContentBody
from pamqp.header import ContentHeader


def delivery_frames(
    channel: int, tag: int, properties: spec.Basic.Properties, body: bytes, frame_max: int = 131_072
) -> list[bytes]:
    """The frames of one delivery: method, header, and as many for the body as it takes."""
    method = spec.Basic.Deliver(
        consumer_tag="ctag1.0", delivery_tag=tag, exchange="tasks.exchange", routing_key="a.low"
    )
    return _content_frames(channel, method, properties, body, frame_max)


def returned_frames(channel: int, message_id: str | None, body: bytes = b"{}", frame_max: int = 131_072) -> list[bytes]:
    """The frames of one message that no queue takes."""
    method = spec.Basic.Return(312, "NO_ROUTE", "tasks.exchange", "reports.normal")
    return _content_frames(channel, method, spec.Basic.Properties(message_id=message_id), body, frame_max)


def confirm_frame(channel: int, tag: int, *, multiple: bool = False, is_taken: bool = True) -> bytes:
    """A confirm, good or bad."""
    kind = spec.Basic.Ack if is_taken else spec.Basic.Nack
    return frame.marshal(kind(delivery_tag=tag, multiple=multiple), channel)


def read_properties_as_driver(properties: bytes) -> spec.Basic.Properties:
    """Message properties, as they stand in a content header, in the eyes of the driver."""
    read = ContentHeader()
    read.unmarshal(struct.pack(">HHQ", 60, 0, 0) + properties)
    return read.properties


def read_frames(data: bytes) -> list[Any]:
    """Whole frames, one after the other, in the eyes of the driver."""
    frames = []
    while data:
        size, _, decoded = frame.unmarshal(data)
        frames.append(decoded)
        data = data[size:]
    return frames


def _content_frames(
    channel: int, method: Frame, properties: spec.Basic.Properties, body: bytes, frame_max: int
) -> list[bytes]:
    header = ContentHeader(properties=properties, body_size=len(body))
    size = frame_max - 8
    bodies = [ContentBody(body[at : at + size]) for at in range(0, len(body), size)]
    parts: list[frame.FrameTypes] = [method, header, *bodies]
    return [frame.marshal(part, channel) for part in parts]
