"""A subscriber's queue on an events exchange, so that the broker really routes what is published."""

from __future__ import annotations

import aio_pika

QUEUE = "bench.subscriber"
MAX_LENGTH = 10_000


async def bind_subscriber(url: str, exchange: str) -> None:
    """Bind a durable queue that keeps the newest messages; nobody reads them."""
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(QUEUE, durable=True, arguments={"x-max-length": MAX_LENGTH})
        await queue.bind(exchange)
