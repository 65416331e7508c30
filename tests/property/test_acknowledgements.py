"""Joint answers against a small model of RabbitMQ: each delivery gets its own answer, and one only."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import aiormq.abc
import pytest
from aio_pika.abc import AbstractChannel
from hypothesis import given
from hypothesis import strategies as st

from taskframework.brokers.rabbitmq.delivery import ConsumerChannel, RabbitDelivery
from taskframework.brokers.rabbitmq.wire import OnMessage, Properties, Wire
from taskframework.model.status import Priority

#: Frames that the driver keeps for the socket; the next one waits.
_BUFFER = 3


class ModelChannel:
    """The driver's channel, what carries its messages, and the broker's end; frames arrive when `pass_on` says so."""

    def __init__(self) -> None:
        self.close_callbacks: set[Any] = set()
        self.on_consumer_cancel_callbacks: set[Any] = set()
        self.is_closed = False
        self._frames: asyncio.Queue[tuple[str, int, bool]] = asyncio.Queue(_BUFFER)
        self._outstanding: list[int] = []
        self._delivered = 0
        #: What the driver refuses to send.
        self.refused = ""
        #: What the broker made of each delivery.
        self.answers: dict[int, str] = {}

    async def set_qos(self, prefetch_count: int, *, global_: bool) -> None:
        pass

    async def consume(self, _: object, queue: str, take: OnMessage, arguments: object) -> str:
        self._take = take
        return "tag"

    async def basic_ack(self, tag: int, *, multiple: bool, wait: bool) -> None:
        assert not wait
        await self._frames.put(("ack", tag, multiple))

    async def basic_nack(self, tag: int, *, multiple: bool, requeue: bool, wait: bool) -> None:
        assert not wait
        verb = "put back" if requeue else "reject"
        if verb == self.refused:
            raise ConnectionResetError
        await self._frames.put((verb, tag, multiple))

    async def deliver(self) -> None:
        self._delivered += 1
        self._outstanding.append(self._delivered)
        self._take(self._delivered, b"", lambda: Properties("", {}))

    def pass_on(self) -> None:
        """Let one frame arrive, and read it as the broker does."""
        if self._frames.empty():
            return
        verb, tag, multiple = self._frames.get_nowait()
        assert tag in self._outstanding, f"PRECONDITION_FAILED - unknown delivery tag {tag}"
        for answered in [other for other in self._outstanding if other == tag or (multiple and other < tag)]:
            self._outstanding.remove(answered)
            self.answers[answered] = verb


_STEPS = st.one_of(
    st.just("deliver"),
    st.just("turn"),
    st.just("pass on"),
    st.tuples(st.sampled_from(["ack", "ack", "ack", "reject", "put back"]), st.integers(0, 40)),
)


async def _open_channel() -> tuple[ModelChannel, ConsumerChannel, list[RabbitDelivery]]:
    model, deliveries = ModelChannel(), list[RabbitDelivery]()
    channel = ConsumerChannel(
        cast(AbstractChannel, model), cast(aiormq.abc.AbstractChannel, model), cast(Wire, model), Priority.NORMAL
    )
    await channel.consume("tasks.a.normal", 100, deliveries.append)
    return model, channel, deliveries


async def _arrived(model: ModelChannel, count: int) -> None:
    for _ in range(20 * count + 20):
        model.pass_on()
        await asyncio.sleep(0)


def _answer(delivery: RabbitDelivery, verb: str) -> asyncio.Task[None]:
    answers = {"ack": delivery.ack, "reject": delivery.reject, "put back": delivery.put_back}
    return asyncio.create_task(answers[verb]())


@given(steps=st.lists(_STEPS, max_size=120))
async def test_every_delivery_gets_its_own_answer_in_whatever_order_they_are_given(steps: list[Any]) -> None:
    model, channel, deliveries = await _open_channel()
    given_answers: dict[int, str] = {}
    answering = []
    for step in steps:
        match step:
            case "deliver":
                await model.deliver()
            case "turn":
                await asyncio.sleep(0)
            case "pass on":
                model.pass_on()
            case (verb, number) if deliveries:
                place = number % len(deliveries)
                given_answers.setdefault(place + 1, verb)
                answering.append(_answer(deliveries[place], verb))
    for place, delivery in enumerate(deliveries):
        given_answers.setdefault(place + 1, "ack")
        answering.append(_answer(delivery, "ack"))
    await _arrived(model, len(deliveries))
    await asyncio.gather(*answering)
    assert model.answers == given_answers
    assert not channel._answers._open, "nothing of what was answered is kept"
    assert channel._all_answered.is_set() == bool(deliveries)


async def test_an_acknowledgement_of_many_does_not_overtake_those_that_wait_for_the_socket() -> None:
    model, _, deliveries = await _open_channel()
    for _ in range(3 * _BUFFER):
        await model.deliver()
    for delivery in deliveries[1:-1]:
        await delivery.ack()
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # as many as there is room for are under way, the others wait
    await deliveries[0].ack()
    await deliveries[-1].ack()
    await _arrived(model, len(deliveries))
    assert model.answers == dict.fromkeys(range(1, 3 * _BUFFER + 1), "ack")


async def test_answered_deliveries_take_no_memory_beside_one_that_takes_long() -> None:
    model, channel, deliveries = await _open_channel()
    await model.deliver()
    for _ in range(50):
        await model.deliver()
        await deliveries[-1].ack()
        await _arrived(model, 1)
    assert list(channel._answers._open) == [1]


@pytest.mark.parametrize("is_one_moment", [True, False])
async def test_a_reject_that_could_not_be_sent_is_not_swallowed_by_a_later_acknowledgement(is_one_moment: bool) -> None:
    model, _, deliveries = await _open_channel()
    for _ in range(5):
        await model.deliver()
    model.refused = "reject"
    await deliveries[0].ack()
    await deliveries[1].reject()
    await deliveries[2].reject()
    if not is_one_moment:
        await _arrived(model, 3)
        model.refused = ""
    for delivery in deliveries[3:]:
        await delivery.ack()
    await _arrived(model, 5)
    assert model.answers == {1: "ack", 4: "ack", 5: "ack"}, "the others come again with the end of the channel"
