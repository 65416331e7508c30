"""Publishing without a server: what is written, which outcome each answer has, and what it means for the channel."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
from aiormq.exceptions import AMQPConnectionError, ChannelNotFoundEntity

from taskframework import failpoint
from taskframework.brokers.base import ExternalMessage
from taskframework.brokers.rabbitmq.messages import event_publication
from taskframework.brokers.rabbitmq.publisher import is_about_topology
from taskframework.brokers.rabbitmq.topology import Names
from taskframework.errors import BrokerError, BrokerUnavailableError, PublishRefusedError
from tests.support.amqp import read_properties_as_driver
from tests.support.publishing import LONG, Bench, publication, settle


async def _failure(sending: asyncio.Task[None]) -> BrokerError:
    with pytest.raises(BrokerError) as caught:
        await sending
    return caught.value


async def test_everything_of_the_publication_reaches_the_broker() -> None:
    bench, one = Bench(), publication()
    (sending,) = await bench.sends(one)
    method, header, *bodies = bench.sent
    assert (method.exchange, method.routing_key, method.mandatory) == ("tasks.exchange", "reports.normal", True)
    assert header.body_size == len(one.body)
    assert header.properties.message_id == one.message_id
    assert header.properties.headers == read_properties_as_driver(one.properties).headers
    assert b"".join(body.value for body in bodies) == one.body
    bench.confirms(1)
    await sending


@pytest.mark.parametrize(
    ("size", "pieces"),
    [(0, []), (1, [1]), (99, [99]), (100, [100]), (101, [100, 1]), (200, [100, 100]), (250, [100, 100, 50])],
)
async def test_a_body_is_written_in_the_pieces_the_broker_takes(size: int, pieces: list[int]) -> None:
    bench, long = Bench(max_content_size=100), publication()._replace(body=bytes(range(size)))
    sending = await bench.sends(long, publication("next"))
    _, header, *bodies = bench.sent[: 2 + len(pieces)]
    assert header.body_size == size
    assert [len(body.value) for body in bodies] == pieces
    assert b"".join(body.value for body in bodies) == long.body
    assert bench.sent[2 + len(pieces)].routing_key == "reports.normal", "the next one follows"
    bench.confirms(2, multiple=True)
    await asyncio.gather(*sending)


async def test_a_broker_without_a_limit_of_frames_gets_the_body_in_one() -> None:
    bench, long = Bench(max_content_size=-8), publication()._replace(body=b"x" * 200_000)
    (sending,) = await bench.sends(long)
    assert [len(body.value) for body in bench.sent[2:]] == [200_000]
    bench.confirms(1)
    await sending


async def test_publications_of_one_moment_are_written_together_in_order() -> None:
    bench = Bench()
    sending = await bench.sends(*(publication(f"t{number}") for number in range(5)))
    assert [(header.properties.headers or {})["task_id"] for header in bench.sent_headers] == [
        f"t{number}" for number in range(5)
    ]
    assert len(bench.connection.pieces) == 1
    assert bench.unconfirmed == [1, 2, 3, 4, 5]
    bench.confirms(5, multiple=True)
    await asyncio.gather(*sending)
    assert bench.unconfirmed == []


@pytest.mark.parametrize(("is_returned", "words"), [(True, "No queue takes"), (False, "refused a message")])
async def test_a_refusal_says_nothing_against_the_channel(is_returned: bool, words: str) -> None:
    bench, one = Bench(), publication()
    (sending,) = await bench.sends(one)
    if is_returned:
        bench.returns(one.message_id)
    bench.confirms(1, is_taken=is_returned)
    refusal = await _failure(sending)
    assert type(refusal) is PublishRefusedError
    assert words in str(refusal)
    assert is_about_topology(refusal) is is_returned
    assert not bench.channel.lost.is_set()
    assert bench.unconfirmed == []


@pytest.mark.parametrize("names", [{"exchange": "x" * 256}, {"routing_key": "ä" * 128}], ids=str)
async def test_a_publication_that_cannot_be_written_takes_no_confirm_number(names: dict[str, Any]) -> None:
    bench = Bench()
    bad, good = await bench.sends(publication()._replace(**names), publication())
    refusal = await _failure(bad)
    assert type(refusal) is PublishRefusedError
    assert "cannot be written" in str(refusal)
    assert not bench.channel.lost.is_set()
    assert len(bench.sent_headers) == 1
    bench.confirms(1)
    await good


@pytest.mark.parametrize(
    "reason",
    [
        ChannelNotFoundEntity("NOT_FOUND - no exchange"),
        AMQPConnectionError("reset"),
        ConnectionResetError("reset"),
        TimeoutError("of the socket"),
        ValueError("a frame that was not expected"),
        asyncio.CancelledError(),
        Exception(),
        None,
    ],
    ids=lambda reason: type(reason).__name__,
)
async def test_an_unknown_outcome_ends_the_channel(reason: BaseException | None) -> None:
    bench = Bench()
    sending = await bench.sends(publication(), publication())
    bench.closes(reason)
    for one in sending:
        failure = await _failure(one)
        assert type(failure) is BrokerUnavailableError
        assert is_about_topology(failure) is isinstance(reason, ChannelNotFoundEntity)
    assert bench.channel.lost.is_set()
    assert bench.unconfirmed == []


async def test_the_error_of_a_publication_has_the_reason_of_the_broker() -> None:
    bench = Bench()
    (sending,) = await bench.sends(publication())
    bench.closes(ChannelNotFoundEntity("NOT_FOUND - no exchange 'tasks.exchange'"))
    assert "no exchange 'tasks.exchange'" in str(await _failure(sending))


async def test_a_publication_on_a_closed_channel_fails_at_once() -> None:
    bench = Bench()
    bench.fake.is_closed = True
    (sending,) = await bench.sends(publication())
    assert type(await _failure(sending)) is BrokerUnavailableError
    assert bench.channel.lost.is_set()


@pytest.mark.parametrize("is_blocked", [False, True])
async def test_a_cancelled_publication_ends_the_channel_unless_an_alarm_holds_it(is_blocked: bool) -> None:
    bench = Bench()
    bench.connection.is_blocked = is_blocked
    cancelled, other = await bench.sends(publication(), publication())
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert bench.channel.lost.is_set() is not is_blocked
    bench.confirms(1)
    bench.confirms(2)
    await other
    assert bench.unconfirmed == []


@pytest.mark.parametrize("is_blocked", [False, True])
async def test_a_late_publication_ends_the_channel_unless_an_alarm_holds_it(is_blocked: bool) -> None:
    bench = Bench()
    bench.connection.is_blocked = is_blocked
    (late,) = await bench.sends(publication(), seconds=0.01)
    (other,) = await bench.sends(publication())
    with pytest.raises(TimeoutError):
        await late
    assert bench.channel.lost.is_set() is not is_blocked
    assert not other.done()
    bench.confirms(2)
    await other


@pytest.mark.parametrize("ends", ["ack", "nack", "return", "close"])
@pytest.mark.parametrize("gives_up", ["late", "cancelled"])
async def test_an_answer_to_a_publication_that_was_given_up_is_not_logged(
    gives_up: str, ends: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    said: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
    bench, one = Bench(), publication()
    (sending,) = await bench.sends(one, seconds=0.01 if gives_up == "late" else LONG)
    if gives_up == "cancelled":
        sending.cancel()
    (outcome,) = await asyncio.gather(sending, return_exceptions=True)
    assert isinstance(outcome, TimeoutError if gives_up == "late" else asyncio.CancelledError)
    if ends == "close":
        bench.closes(ChannelNotFoundEntity("gone"))
    else:
        if ends == "return":
            bench.returns(one.message_id)
        bench.confirms(1, is_taken=ends != "nack")
    await settle()
    del sending, outcome
    gc.collect()
    await settle()
    assert bench.unconfirmed == []
    assert said == []
    assert [record for record in caplog.records if record.name != "asyncio"] == []


async def test_a_publication_cancelled_at_its_confirm_leaves_no_error_behind() -> None:
    said: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
    bench = Bench()
    (sending,) = await bench.sends(publication())
    bench.confirms(1, is_taken=False)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    del sending
    gc.collect()
    await settle()
    assert said == []


async def test_a_retired_channel_closes_after_the_last_confirm() -> None:
    bench = Bench()
    sending = await bench.sends(*[publication()] * 3)
    sending[0].cancel()
    closing = asyncio.create_task(bench.channel.close())
    await asyncio.wait([sending[0]])
    await settle()
    assert not bench.connection.is_closed
    bench.confirms(2)
    await settle()
    assert not bench.connection.is_closed
    bench.confirms(3)
    await closing
    assert bench.connection.is_closed
    assert [task.exception() for task in sending[1:]] == [None, None]


async def test_a_retired_channel_waits_no_longer_than_the_time_limits() -> None:
    bench = Bench()
    (sending,) = await bench.sends(publication(), seconds=0.02)
    await bench.channel.close()
    assert bench.connection.is_closed
    assert type(sending.exception()) is TimeoutError


async def test_a_publication_is_not_written_after_the_end_of_its_channel() -> None:
    bench = Bench()
    deadline = asyncio.get_running_loop().time() + LONG
    sending = asyncio.create_task(bench.channel.send(publication(), deadline))
    await asyncio.sleep(0)
    bench.closes(AMQPConnectionError("reset"))
    await settle()
    assert bench.connection.pieces == []
    assert type(await _failure(sending)) is BrokerUnavailableError


@pytest.mark.parametrize("point", ["dispatch.reply", "relay.reply"])
async def test_a_confirm_that_is_lost_looks_like_a_broken_connection(point: str) -> None:
    bench = Bench()
    one = publication()
    if point == "relay.reply":
        one = event_publication(Names("tasks"), ExternalMessage(b"{}", "application/cloudevents+json", {}))
    failpoint.arm_from({"TASKFRAMEWORK_FAILPOINTS": f"{point}=drop"})
    try:
        (sending,) = await bench.sends(one)
        bench.confirms(1)
        failure = await _failure(sending)
    finally:
        failpoint.disarm(point)
    assert type(failure) is BrokerUnavailableError
    assert "connection lost" in str(failure)
    assert bench.channel.lost.is_set()
