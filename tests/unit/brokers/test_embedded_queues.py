"""What comes back to a queue finds its place."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator

import pytest

from taskframework.brokers.embedded_queues import Consumer, EmbeddedDelivery, Message, Queue


class Backlog(deque[Message]):
    """Nobody may go through all of it for one delivery."""

    def __iter__(self) -> Iterator[Message]:
        raise AssertionError("the whole backlog was looked at")


def message(number: int) -> Message:
    return Message(number, b"", {}, "")


@pytest.mark.parametrize("back", [[0], [2], [2, 0, 1], [1, 9], [9, 5, 0, 7]])
async def test_messages_that_come_back_to_a_queue_find_their_old_place(back: list[int]) -> None:
    queue = Queue("queue")
    queue.ready = Backlog(message(number) for number in range(10) if number not in back)
    arrived: list[EmbeddedDelivery] = []
    consumer = Consumer(queue, 0, arrived.append)
    deliveries = [EmbeddedDelivery(message(number), consumer) for number in back]
    queue.unacked.update(deliveries)
    queue.put_back(deliveries)
    assert [queue.ready.popleft().number for _ in range(10)] == list(range(10))
    assert not queue.unacked


async def test_a_consumer_that_puts_a_message_back_has_a_place_for_the_next_one() -> None:
    queue, arrived = Queue("queue"), list[EmbeddedDelivery]()
    Consumer(queue, 1, arrived.append)
    queue.put(message(0))
    await asyncio.sleep(0)
    await arrived[0].put_back()
    await asyncio.sleep(0)
    assert [delivery.message.number for delivery in arrived] == [0, 0]
    queue.take_back()
    await asyncio.sleep(0)
    assert len(arrived) == 3
