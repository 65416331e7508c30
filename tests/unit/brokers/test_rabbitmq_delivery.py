"""Answers to deliveries: each is given once, none fails its caller, and no channel is closed that still owes one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import aiormq.abc
import pytest
from aio_pika.abc import AbstractChannel
from aiormq import spec
from aiormq.exceptions import ChannelAccessRefused, ChannelInvalidStateError, ChannelPreconditionFailed

from taskframework.background import Background
from taskframework.brokers.rabbitmq import consumer as consumer_module
from taskframework.brokers.rabbitmq import delivery as delivery_module
from taskframework.brokers.rabbitmq.connection import BrokerConnection
from taskframework.brokers.rabbitmq.consumer import QueueConsumer, Source, Troubles
from taskframework.brokers.rabbitmq.delivery import ConsumerChannel, RabbitDelivery
from taskframework.brokers.rabbitmq.supervision import Supervised
from taskframework.brokers.rabbitmq.wire import OnMessage, Properties, Wire, header_text
from taskframework.errors import BrokerError, BrokerUnavailableError
from taskframework.model.status import Priority
from taskframework.testing.eventually import eventually

TIMED_OUT = (
    "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: {} ms. "
    "This timeout value can be configured, see consumers doc guide to learn more"
)


@pytest.fixture(autouse=True)
def _no_lingering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery_module, "_LINGER_SECONDS", 0)
    monkeypatch.setattr(delivery_module, "_SHORT_LINGER_SECONDS", 0)


class FakeChannel:
    """Stands in for the driver's channel, the one inside it, and what carries its messages."""

    def __init__(self) -> None:
        self.take: OnMessage | None = None
        self.close_callbacks: set[Callable[..., None]] = set()
        self.on_consumer_cancel_callbacks: set[Callable[..., None]] = set()
        self.is_closed = False
        #: Verb, tag, and whether it is for all before it.
        self.answers: list[tuple[str, int, bool]] = []
        self.error: BaseException | None = None
        self.is_consumed = False
        self.is_cancelled = False
        self.prefetch: tuple[int, bool] | None = None
        self.arguments: Mapping[str, int] = {}
        self.registered = asyncio.Event()
        self.registered.set()

    async def set_qos(self, prefetch_count: int, *, global_: bool) -> None:
        self.prefetch = (prefetch_count, global_)

    async def consume(self, _: object, queue: str, take: OnMessage, arguments: Mapping[str, int] | None) -> str:
        self.is_consumed, self.arguments, self.take = True, {**(arguments or {})}, take
        await self.registered.wait()
        return "tag"

    async def get_underlay_channel(self) -> FakeChannel:
        return self

    async def basic_cancel(self, consumer_tag: str) -> None:
        assert consumer_tag == "tag"
        self.is_cancelled = True

    async def basic_ack(self, delivery_tag: int, *, multiple: bool, wait: bool) -> None:
        await self._answer("ack", delivery_tag, multiple)

    async def basic_nack(self, delivery_tag: int, *, multiple: bool, requeue: bool, wait: bool) -> None:
        await self._answer("put back" if requeue else "reject", delivery_tag, multiple)

    async def queue_declare(self, *_: object, **__: object) -> SimpleNamespace:
        """Answer that there is a consumer and no message, as RabbitMQ does for one that it serves no longer."""
        return SimpleNamespace(consumer_count=1, message_count=0)

    async def close(self) -> None:
        self.is_closed = True
        for callback in self.close_callbacks:
            callback(None, None)

    async def _answer(self, verb: str, tag: int, flag: bool) -> None:
        if self.is_closed:
            raise ChannelInvalidStateError("closed")
        if (error := self.error) is not None:
            await asyncio.sleep(0)
            raise error
        self.answers.append((verb, tag, flag))

    async def deliver(self, tag: int) -> None:
        assert self.take is not None
        self.take(tag, b"body", lambda: Properties("text/plain", {"task_id": f"t{tag}"}))
        await asyncio.sleep(0)  # what is put back is put back by a task


class FakeConnection:
    """A connection, and what carries the messages of its channels."""

    def __init__(self, make_channel: Callable[[], FakeChannel]) -> None:
        self.lost = asyncio.Event()
        self.wire = self
        self._make_channel = make_channel

    async def channel(self) -> FakeChannel:
        return self._make_channel()

    async def consume(self, channel: FakeChannel, *arguments: Any) -> str:
        return await channel.consume(channel, *arguments)


class Bench:
    """A consumer on a fake channel."""

    def __init__(self, *, keeps_order: bool = False) -> None:
        self.fake = FakeChannel()
        self.deliveries: list[RabbitDelivery] = []
        self.channel = ConsumerChannel(
            cast(AbstractChannel, self.fake),
            cast(aiormq.abc.AbstractChannel, self.fake),
            cast(Wire, self.fake),
            Priority.LOW,
            keeps_order=keeps_order,
        )

    async def consume(self, *tags: int) -> None:
        await self.channel.consume("tasks.a.low", 5, self.deliveries.append)
        for tag in tags:
            await self.fake.deliver(tag)


async def test_a_delivery_tells_what_it_is_and_prefetch_is_never_global() -> None:
    bench = Bench()
    await bench.consume(1)
    [delivery] = bench.deliveries
    assert (delivery.body, delivery.queue, delivery.lane) == (b"body", "tasks.a.low", Priority.LOW)
    assert (delivery.headers, delivery.content_type) == ({"task_id": "t1"}, "text/plain")
    assert bench.fake.prefetch == (5, False)


async def test_a_channel_that_was_closed_for_a_late_delivery_tells_the_timeout() -> None:
    told: list[timedelta] = []
    fake = FakeChannel()
    ConsumerChannel(
        cast(AbstractChannel, fake),
        cast(aiormq.abc.AbstractChannel, fake),
        cast(Wire, fake),
        Priority.LOW,
        on_timeout=told.append,
    )
    for reason in (
        None,
        ChannelPreconditionFailed("PRECONDITION_FAILED - unknown delivery tag 7"),
        ChannelPreconditionFailed(TIMED_OUT.format(-1)),
        ChannelPreconditionFailed(TIMED_OUT.format(20000)),
    ):
        for callback in fake.close_callbacks:
            callback(fake, reason)
    assert told == [timedelta(seconds=20)]


async def test_consumer_arguments_reach_the_broker() -> None:
    bench = Bench()
    await bench.channel.consume("tasks.a.low", 5, bench.deliveries.append, {"x-consumer-timeout": 1000})
    assert bench.fake.arguments == {"x-consumer-timeout": 1000}


async def test_each_delivery_is_answered_only_once() -> None:
    bench = Bench()
    await bench.consume(1, 2, 3)
    for delivery in bench.deliveries:
        await (delivery.ack() if delivery is not bench.deliveries[1] else delivery.reject())
        await delivery.ack()
        await delivery.reject()
    await bench.channel.close_when_answered()
    assert bench.fake.answers == [("ack", 1, False), ("reject", 2, False), ("ack", 3, False)]


async def test_the_same_answer_to_neighbours_in_one_moment_is_one_frame() -> None:
    bench = Bench()
    await bench.consume(*range(1, 9))
    *neighbours, last, _ = bench.deliveries
    for delivery, verb in zip(neighbours, ("ack", "ack", "reject", "reject", "reject", "put_back"), strict=True):
        await getattr(delivery, verb)()
    await eventually(lambda: len(bench.fake.answers) == 3)
    assert bench.fake.answers == [("ack", 2, True), ("reject", 5, True), ("put back", 6, False)]
    await last.reject()
    await eventually(lambda: bench.fake.answers[3:] == [("reject", 7, False)])


@pytest.mark.parametrize(
    "error",
    [ChannelInvalidStateError("closed"), ConnectionResetError(), asyncio.CancelledError(), Exception()],
    ids=lambda error: type(error).__name__,
)
async def test_an_answer_on_a_dead_channel_is_no_error(error: BaseException) -> None:
    bench = Bench()
    await bench.consume(1, 2)
    bench.fake.error = error
    await bench.deliveries[0].ack()
    await bench.deliveries[1].reject()
    await bench.channel.close_when_answered()


async def test_an_answer_that_a_slow_connection_does_not_take_in_time_is_sent_later() -> None:
    """Without it, the broker would count the delivery against the prefetch until the channel ends."""
    bench = Bench()
    await bench.consume(1, 2)
    bench.fake.error = TimeoutError()
    await bench.deliveries[1].reject()
    closing = asyncio.create_task(bench.channel.close_when_answered())
    for _ in range(5):
        await asyncio.sleep(0)
    bench.fake.error = None
    await bench.deliveries[0].ack()
    await closing
    assert bench.fake.answers == [("reject", 2, False), ("ack", 1, False)]


async def test_an_answer_is_not_sent_any_more_once_the_slow_connection_is_lost() -> None:
    bench = Bench()
    await bench.consume(1)
    bench.fake.error = TimeoutError()
    await bench.deliveries[0].ack()
    closing = asyncio.create_task(bench.channel.close_when_answered())
    for _ in range(5):
        await asyncio.sleep(0)
    await bench.fake.close()
    await closing
    assert bench.fake.answers == []


async def test_a_retired_channel_stays_open_until_the_last_answer() -> None:
    bench = Bench()
    await bench.consume(1, 2)
    await bench.channel.cancel()
    assert bench.channel.lost.is_set()
    closing = asyncio.create_task(bench.channel.close_when_answered())
    await bench.deliveries[0].ack()
    await asyncio.sleep(0)
    assert not bench.fake.is_closed
    await bench.deliveries[1].ack()
    await closing
    assert bench.fake.is_closed


async def test_a_retired_channel_lingers_so_that_the_broker_can_pass_on_the_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delivery_module, "_LINGER_SECONDS", 60)
    bench = Bench()
    await bench.consume(1)
    closing = asyncio.create_task(bench.channel.close_when_answered())
    await bench.deliveries[0].ack()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not bench.fake.is_closed
    for callback in bench.fake.close_callbacks:  # the connection is gone: nothing to wait for
        callback(None, None)
    await closing


async def test_a_channel_that_keeps_the_order_puts_nothing_back_before_its_end() -> None:
    """RabbitMQ puts more than 32 messages back in any order, and puts those that come late before them."""
    bench = Bench(keeps_order=True)
    await bench.consume(1, 2, 3)
    await bench.deliveries[0].put_back()
    await bench.deliveries[1].ack()
    bench.channel.put_back_later_deliveries()
    await bench.deliveries[2].put_back()
    await bench.fake.deliver(4)
    await bench.channel.close_when_answered()
    assert bench.fake.answers == [("ack", 2, False)]


async def test_the_silence_of_a_consumer_begins_with_its_last_answer() -> None:
    bench = Bench()
    await bench.consume(1)
    bench.channel._active_at -= 3600  # the task ran for an hour
    assert bench.channel.silence_seconds == 0
    await bench.deliveries[0].ack()
    await eventually(lambda: bench.fake.answers == [("ack", 1, False)])
    assert bench.channel.silence_seconds < 60


@contextlib.asynccontextmanager
async def consumer_of(
    make_channel: Callable[[], FakeChannel],
    take: Callable[[RabbitDelivery], None],
    troubles: Troubles | None = None,
    **options: Any,
) -> AsyncIterator[QueueConsumer]:
    async def connect() -> BrokerConnection:
        return cast(BrokerConnection, FakeConnection(make_channel))

    async def queue(_: AbstractChannel) -> str:
        return "tasks.a.low"

    background = Background()
    connection = Supervised("connection", connect, lambda _: None)
    connection.start()
    source = Source("tasks.a.low", 5, **{"declare": queue, **options})
    consumer = QueueConsumer(connection, source, take, background, troubles or Troubles())
    yield consumer
    await background.finished()
    await connection.stop()


@pytest.mark.parametrize("is_registered", [True, False])
async def test_a_consumer_that_keeps_the_order_closes_its_channel_and_puts_nothing_back_itself(
    is_registered: bool,
) -> None:
    """After a cancel, RabbitMQ puts messages that are on their way back first, before those that are put back here."""
    fake, deliveries = FakeChannel(), list[RabbitDelivery]()
    if not is_registered:
        fake.registered.clear()
    async with consumer_of(lambda: fake, deliveries.append, keeps_order=True) as consumer:
        await eventually(lambda: fake.is_consumed)
        await fake.deliver(1)
        stopping = asyncio.create_task(consumer.stop())
        await asyncio.sleep(0)
        fake.registered.set()
        await stopping
        assert fake.is_closed
        await deliveries[0].put_back()
    assert (fake.is_cancelled, fake.answers) == (False, [])


async def test_a_consumer_that_gets_nothing_registers_again_and_then_waits_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """RabbitMQ 3.10 may list a consumer of a queue that was declared again, and never send it anything."""
    monkeypatch.setattr(consumer_module, "_WATCH_INTERVAL_SECONDS", 0.001)
    monkeypatch.setattr(consumer_module, "_FIRST_SILENCE_SECONDS", 0.002)
    channels, deliveries = list[FakeChannel](), list[RabbitDelivery]()

    def make_channel() -> FakeChannel:
        channels.append(FakeChannel())
        return channels[-1]

    async with consumer_of(make_channel, deliveries.append, declare=None) as consumer:
        await eventually(lambda: consumer._max_silence > 0.1)
        assert len(channels) >= 6
        doubled = [0.002 * 2**times for times in range(20)]
        assert consumer._max_silence not in doubled, "by chance it is less, so that not all consumers register at once"
        assert all(channel.is_cancelled for channel in channels[:-1])
        await eventually(lambda: channels[-1].is_consumed and not channels[-1].is_cancelled)
        last = channels[-1]
        await last.deliver(1)
        await eventually(lambda: consumer._max_silence == 0.002)
        await asyncio.sleep(0.02)
        assert channels[-1] is last, "a consumer with an open delivery is not silent"
        await deliveries[0].ack()
        await consumer.stop()


async def test_a_subscriber_that_gets_nothing_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue without a durable name ends with its consumer."""
    monkeypatch.setattr(consumer_module, "_WATCH_INTERVAL_SECONDS", 0.001)
    monkeypatch.setattr(consumer_module, "_FIRST_SILENCE_SECONDS", 0)
    fake = FakeChannel()
    async with consumer_of(lambda: fake, lambda _: None) as consumer:
        await eventually(lambda: fake.is_consumed)
        await asyncio.sleep(0.02)
        assert not fake.is_cancelled
        await consumer.stop()


async def test_stopping_while_the_consumer_registers_hands_over_what_has_come() -> None:
    fake, deliveries = FakeChannel(), list[RabbitDelivery]()
    fake.registered.clear()
    async with consumer_of(lambda: fake, deliveries.append) as consumer:
        await eventually(lambda: fake.is_consumed)
        await fake.deliver(1)
        stopping = asyncio.create_task(consumer.stop())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await fake.deliver(2)
        fake.registered.set()
        await stopping
        await fake.deliver(3)
        assert [delivery.headers["task_id"] for delivery in deliveries] == ["t1", "t2"]
        await eventually(lambda: len(fake.answers) == 1)
        assert fake.answers == [("put back", 3, False)]
        assert not fake.is_closed
        for delivery in deliveries:
            await delivery.ack()
    assert fake.is_closed


async def test_a_closed_channel_waits_for_no_answers() -> None:
    bench = Bench()
    await bench.consume(1)
    closing = asyncio.create_task(bench.channel.close_when_answered())
    await asyncio.sleep(0)
    for callback in bench.fake.close_callbacks:
        callback(None, None)
    await closing
    assert bench.channel.lost.is_set()


async def test_a_delivery_that_comes_after_the_cancel_goes_back_to_the_queue() -> None:
    bench = Bench()
    await bench.consume(1)
    await bench.channel.cancel()
    await bench.fake.deliver(2)
    assert len(bench.deliveries) == 1
    await eventually(lambda: bench.fake.answers == [("put back", 2, False)])


async def test_a_cancel_by_the_broker_ends_the_consumer() -> None:
    bench = Bench()
    await bench.consume()
    assert not bench.channel.lost.is_set()
    for callback in bench.fake.on_consumer_cancel_callbacks:
        callback(spec.Basic.Cancel(consumer_tag="tag"))
    assert bench.channel.lost.is_set()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "plain"),
        (b"\xff\x41", "�A"),
        (3, "3"),
        (True, "true"),
        (None, "null"),
        (
            [{"queue": "q", "time": datetime(2026, 1, 1, tzinfo=UTC)}],
            '[{"queue":"q","time":"2026-01-01T00:00:00+00:00"}]',
        ),
    ],
)
def test_headers_are_text(value: Any, text: str) -> None:
    assert header_text(value) == text


def test_a_header_of_bytes_inside_a_table_is_text_too() -> None:
    assert header_text({"reason": bytearray(b"x")}) == '{"reason":"bytearray(b\'x\')"}'


def _access_refused() -> BrokerError:
    error = BrokerError("access refused")
    error.__cause__ = ChannelAccessRefused()
    return error


@pytest.mark.parametrize(
    ("error", "warnings"),
    [
        (BrokerError("no permission"), 1),
        (_access_refused(), 0),  # the other consumers have the same cause
        (BrokerUnavailableError("no answer in time"), 0),
    ],
)
async def test_beside_other_consumers_in_trouble_only_a_refusal_is_a_warning(
    error: BrokerError, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "taskframework.brokers.rabbitmq")

    async def refuse(_: object) -> str:
        raise error

    troubles = Troubles()
    troubles.begin("another consumer")
    async with consumer_of(FakeChannel, lambda _: None, troubles, declare=refuse) as consumer:
        await eventually(lambda: any(error.message in text for text in caplog.messages))
        await consumer.stop()
    told = [record for record in caplog.records if "Trying again" in record.message]
    assert [record.levelname for record in told if record.levelname == "WARNING"] == ["WARNING"] * warnings


async def test_trouble_that_is_noted_while_a_consumer_stops_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    troubles = Troubles()
    async with consumer_of(FakeChannel, lambda _: None, troubles) as consumer:
        await eventually(lambda: consumer.is_live)
        stop = consumer._channel.stop

        async def fail_and_stop() -> ConsumerChannel | None:
            consumer._note_trouble()
            return await stop()

        monkeypatch.setattr(consumer._channel, "stop", fail_and_stop)
        await consumer.stop()
    assert troubles.begin("another consumer"), "nobody else is in trouble"
