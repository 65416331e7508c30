"""What strangers publish to our queues, read from a real RabbitMQ: any size, any headers, none of it stops a queue."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import aiormq
from aiormq import spec

from taskframework.brokers.base import ConsumeRequest
from taskframework.brokers.rabbitmq.wire import header_text
from taskframework.testing.eventually import eventually
from tests.integration.rabbitmq_helpers import MakeBroker, Recorder, message, opened, rabbit_broker

_MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
HEADERS: list[dict[str, Any]] = [
    {},
    {"text": "ä", "small": 3, "large": 2**40, "negative": -7, "yes": True, "nothing": None},
    {"share": 0.5, "at": _MOMENT, "list": [1, "a", [_MOMENT]], "table": {"a": {"b": 1}}, "bytes": bytearray(b"\xff")},
]


class LatinHeaders(spec.Basic.Properties):
    """A header whose name is not UTF-8, which the broker does not mind."""

    def marshal(self) -> bytes:
        return b"\x20\0" + b"\0\0\0\x08\x01\xe4S\0\0\0\x01v"


async def test_messages_of_any_form_by_other_programs_are_delivered(make_broker: MakeBroker, amqp_url: str) -> None:
    bodies = [b"", b"{", bytes(range(256)) * 8192]
    async with opened(make_broker(), "reports") as broker:
        received = Recorder()
        broker.consume(ConsumeRequest(["reports"], 10), received)
        await broker.publish(message("t1"))
        await received.has("t1")
        async with aiormq.connect(amqp_url) as connection:
            channel = await connection.channel()
            for body in bodies:
                for headers in HEADERS:
                    properties = spec.Basic.Properties(headers=headers)
                    await channel.basic_publish(
                        body, exchange="", routing_key="tasks.reports.normal", properties=properties
                    )
        await broker.publish(message("t2"))
        await eventually(lambda: len(received.deliveries) == 3 * 3 + 2)
    _, *strange, last = received.deliveries
    assert [(delivery.body, delivery.headers) for delivery in strange] == [
        (body, {name: header_text(value) for name, value in headers.items()}) for body in bodies for headers in HEADERS
    ]
    assert last.headers["task_id"] == "t2"


async def test_properties_that_end_the_driver_s_connection_are_left_out(amqp_url: str) -> None:
    async with opened(rabbit_broker(amqp_url, fast_path="auto"), "reports") as broker:
        received = Recorder()
        broker.consume(ConsumeRequest(["reports"], 10), received)
        async with aiormq.connect(amqp_url) as connection:
            channel = await connection.channel()
            await channel.basic_publish(b"x", routing_key="tasks.reports.normal", properties=LatinHeaders())
        await broker.publish(message("t1"))
        await eventually(lambda: len(received.deliveries) == 2)
    latin, last = received.deliveries
    assert (latin.body, latin.headers) == (b"x", {})
    assert last.headers["task_id"] == "t1"
