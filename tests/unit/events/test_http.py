"""Reading an event stream: what is an event of it, and what is not."""

from __future__ import annotations

import asyncio
import traceback
from datetime import UTC, datetime

import httpx
import pytest

from taskframework.brokers.base import ExternalMessage
from taskframework.events import http
from taskframework.events.external import ExternalEvent, to_message
from taskframework.events.http import EventsUnavailableError, HttpEvents, NobodyListensError
from taskframework.events.subscriber import EventSubscriber
from taskframework.testing.eventually import eventually

STREAM = b"""event: resync
data: {}

id: t-1
event: task.started
data: {"n": 1}

: heartbeat

id: t-2
event: task.completed
data: {"n": 2}

: heartbeat

"""


async def test_heartbeats_and_gaps_are_no_events(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"Content-Type": "text/event-stream"}, content=STREAM)

    heard: list[bytes] = []
    told: list[str] = []

    async def hear(message: ExternalMessage) -> None:
        heard.append(message.body)

    events = HttpEvents("http://api", tell=told.append)
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        monkeypatch.setattr(events, "_client", client)
        listening = events.subscribe(hear)
        await eventually(lambda: len(told) == 2)
        await listening.stop()
    assert heard == [b'{"n": 1}', b'{"n": 2}']
    assert "missed" in told[0]
    assert "ended" in told[1]


async def test_a_subscription_is_not_live_after_its_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hear(_: ExternalMessage) -> None:
        await asyncio.Event().wait()

    stream = httpx.Response(200, headers={"Content-Type": "text/event-stream"}, content=STREAM)
    async with httpx.AsyncClient(transport=httpx.MockTransport(lambda _: stream)) as client:
        events = HttpEvents("http://api")
        monkeypatch.setattr(events, "_client", client)
        listening = events.subscribe(hear)
        await eventually(lambda: listening.is_live)
        await listening.stop()
        assert not listening.is_live


async def test_an_address_of_another_program_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, html="<p>Hello</p>"))
    client = httpx.AsyncClient(transport=transport)
    monkeypatch.setattr(httpx, "AsyncClient", lambda **_: client)
    with pytest.raises(EventsUnavailableError, match=r"http://elsewhere: the answer is text/html.*, not a stream"):
        await HttpEvents("http://elsewhere").open()


@pytest.mark.parametrize(
    ("user", "key", "said"),
    [
        ("ada:secret@", None, "http://ada:***@elsewhere: it needs an API key."),
        ("", "tfk_wrong", "http://elsewhere: the API key is not valid."),
    ],
)
async def test_a_missing_or_wrong_api_key_is_an_error_without_the_password(
    monkeypatch: pytest.MonkeyPatch, user: str, key: str | None, said: str
) -> None:
    client = httpx.AsyncClient(transport=httpx.MockTransport(lambda _: httpx.Response(401)))
    monkeypatch.setattr(httpx, "AsyncClient", lambda **_: client)
    with pytest.raises(EventsUnavailableError) as told:
        await HttpEvents(f"http://{user}elsewhere", api_key=key).open()
    assert told.value.message == f"No events at {said}"
    assert "--key" in told.value.hint


async def test_a_listener_hears_once_why_there_is_no_new_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = httpx.Response(200, headers={"Content-Type": "text/event-stream"}, content=STREAM)
    statuses = [401, 503, 401, 503]
    told: list[str] = []

    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(statuses.pop(0)) if statuses and told else stream

    async def hear(_: ExternalMessage) -> None:
        pass

    monkeypatch.setattr(http, "_RETRY_PAUSE_SECONDS", 0)
    events = HttpEvents("http://api", tell=told.append)
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        monkeypatch.setattr(events, "_client", client)
        listening = events.subscribe(hear)
        await eventually(lambda: len(told) >= 5)
        await listening.stop()
    assert "missed" in told[0]
    assert "ended" in told[1]
    assert told[2].startswith("No events at http://api: it needs an API key. Give a key")
    assert told[2].endswith(" Trying again.")
    assert "503" in told[3]
    assert "missed" in told[4]


async def test_an_event_that_failed_comes_again_and_only_a_bug_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answer = httpx.Response(200, headers={"Content-Type": "text/event-stream"}, content=STREAM)
    monkeypatch.setattr(http, "_RETRY_PAUSE_SECONDS", 0)
    in_the_way: list[Exception] = [NobodyListensError(), ValueError("a bug")]
    heard: list[bytes] = []

    async def hear(message: ExternalMessage) -> None:
        if in_the_way:
            raise in_the_way.pop(0)
        heard.append(message.body)

    events = HttpEvents("http://api", tell=lambda _: None)
    async with httpx.AsyncClient(transport=httpx.MockTransport(lambda _: answer)) as client:
        monkeypatch.setattr(events, "_client", client)
        listening = events.subscribe(hear)
        await eventually(lambda: len(heard) >= 2)
        await listening.stop()
    assert heard[:2] == [b'{"n": 1}', b'{"n": 2}']
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["a bug"]


async def test_the_log_names_the_event_and_the_handler_that_failed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    message = to_message([ExternalEvent("t-7", "task.started", "test", "t", 7, datetime.now(UTC), {})])
    stream = b"id: t-7\nevent: task.started\ndata: " + message.body + b"\n\n"
    answer = httpx.Response(200, headers={"Content-Type": "text/event-stream"}, content=stream)
    events = HttpEvents("http://api", tell=lambda _: None)
    subscriber = EventSubscriber(events)

    @subscriber.on()
    def notify(_: ExternalEvent) -> None:
        raise ValueError("a secret")

    async with httpx.AsyncClient(transport=httpx.MockTransport(lambda _: answer)) as client:
        monkeypatch.setattr(events, "_client", client)
        async with subscriber:
            await eventually(lambda: caplog.messages)
    [said] = caplog.messages
    assert said.startswith("an event could not be handled and is retried: test_the_log_names")
    assert said.endswith("notify failed for task.started t-7")
    info = caplog.records[0].exc_info
    assert info is not None
    assert [frame.name for frame in traceback.extract_tb(info[2])] == ["notify"], "not how the framework came there"
    assert isinstance(info[1], ValueError)
