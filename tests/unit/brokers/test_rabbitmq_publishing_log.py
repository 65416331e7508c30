"""The log of a publisher that fails: one line at the beginning, one at the end, and none that another part writes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from aiormq.exceptions import AMQPConnectionError, ChannelNotFoundEntity

from taskframework.brokers.rabbitmq import publishing_log
from taskframework.brokers.rabbitmq.publishing_log import PublishingLog
from taskframework.errors import BrokerError, BrokerUnavailableError
from taskframework.testing.eventually import eventually
from tests.support.publishing import FedPublisher

LATE = BrokerUnavailableError("RabbitMQ at here:5672 confirmed nothing within 5 s.")


@pytest.fixture(autouse=True)
def caught(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(publishing_log, "_CALM_SECONDS", 0.0)


@pytest.fixture
async def publisher() -> AsyncIterator[FedPublisher]:
    publisher = FedPublisher(0.05)
    publisher.open()
    yield publisher
    await publisher.close()


def _lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records]


async def _fails(publisher: FedPublisher, count: int = 1) -> None:
    sending = await publisher.begins(count)
    outcomes = await asyncio.gather(*sending, return_exceptions=True)
    assert all(isinstance(outcome, BrokerError) for outcome in outcomes)


async def _works(publisher: FedPublisher) -> None:
    await eventually(lambda: publisher.is_connected)
    (sending,) = await publisher.begins()
    bench = publisher.benches[-1]
    bench.confirms(bench.unconfirmed[-1])
    await sending


async def test_messages_without_a_confirm_are_one_warning_until_one_is_confirmed(
    publisher: FedPublisher, caplog: pytest.LogCaptureFixture
) -> None:
    await _fails(publisher, 3)
    await eventually(lambda: publisher.is_connected)
    await _fails(publisher)
    [(level, text)] = _lines(caplog)
    assert level == "WARNING"
    assert text.startswith("publishing to RabbitMQ fails: RabbitMQ at here:5672 confirmed nothing within 0.05 s. ")
    assert text.endswith(
        " Nothing is lost: tasks and events are in the store, and their messages are sent again automatically."
    )
    await _works(publisher)
    await _works(publisher)
    [_, (level, text)] = _lines(caplog)
    assert level == "INFO"
    assert text.startswith("publishing to RabbitMQ works again after ")


async def test_an_alarm_is_one_warning(publisher: FedPublisher, caplog: pytest.LogCaptureFixture) -> None:
    await _works(publisher)
    publisher.benches[0].connection.is_blocked = True
    await _fails(publisher, 2)
    publisher.benches[0].connection.is_blocked = False
    await _works(publisher)
    assert [level for level, _ in _lines(caplog)] == ["WARNING", "INFO"]
    assert "memory or disk alarm. Give it more memory or disk." in caplog.text


async def test_a_channel_that_the_broker_closes_is_a_warning(
    publisher: FedPublisher, caplog: pytest.LogCaptureFixture
) -> None:
    sending = await publisher.begins(2)
    publisher.benches[0].closes(ChannelNotFoundEntity("NOT_FOUND - no exchange 'tasks.exchange'"))
    await asyncio.gather(*sending, return_exceptions=True)
    [(level, text)] = _lines(caplog)
    assert level == "WARNING"
    assert "no exchange 'tasks.exchange'" in text


async def test_a_lost_connection_is_left_to_the_lines_of_the_connection(
    publisher: FedPublisher, caplog: pytest.LogCaptureFixture
) -> None:
    sending = await publisher.begins(2)
    publisher.may_connect.clear()
    publisher.benches[0].closes(AMQPConnectionError("reset"))
    await asyncio.gather(*sending, return_exceptions=True)
    await _fails(publisher)  # it waits in vain for the next connection
    publisher.may_connect.set()
    await _works(publisher)
    assert _lines(caplog) == []


async def test_a_refused_message_says_nothing_about_the_others(
    publisher: FedPublisher, caplog: pytest.LogCaptureFixture
) -> None:
    (sending,) = await publisher.begins()
    publisher.benches[0].confirms(1, is_taken=False)
    with pytest.raises(BrokerError, match="refused a message"):
        await sending
    assert _lines(caplog) == []


def test_failures_that_alternate_with_confirms_are_one_warning(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing_log, "_CALM_SECONDS", 2.0)
    log = PublishingLog()
    for now in (10.0, 11.0, 12.0):
        log.note_failure(LATE, now)
        log.note_confirmed(now - 1, now + 0.1)  # it began before the failure
        log.note_confirmed(now + 0.5, now + 0.6)
    assert [level for level, _ in _lines(caplog)] == ["WARNING"]
    log.note_confirmed(14.1, 14.2)
    log.note_confirmed(14.3, 14.4)
    assert _lines(caplog)[1:] == [("INFO", "publishing to RabbitMQ works again after 4.2 s")]
    log.note_failure(LATE, 60.0)
    assert [level for level, _ in _lines(caplog)] == ["WARNING", "INFO", "WARNING"]
