"""What RabbitMQ sends for a delivery, as bytes."""

from __future__ import annotations

from aiormq import spec
from pamqp import frame
from pamqp.body import ContentBody
from pamqp.header import ContentHeader


def delivery_frames(
    channel: int, tag: int, properties: spec.Basic.Properties, body: bytes, frame_max: int = 131_072
) -> list[bytes]:
    """The frames of one delivery: method, header, and as many for the body as it takes."""
    method = spec.Basic.Deliver(
        consumer_tag="ctag1.0", delivery_tag=tag, exchange="tasks.exchange", routing_key="a.low"
    )
    header = ContentHeader(properties=properties, body_size=len(body))
    size = frame_max - 8
    bodies = [ContentBody(body[at : at + size]) for at in range(0, len(body), size)]
    parts: list[frame.FrameTypes] = [method, header, *bodies]
    return [frame.marshal(part, channel) for part in parts]
