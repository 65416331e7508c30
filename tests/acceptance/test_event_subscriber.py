"""`event_subscriber` on the embedded default: over HTTP, from outside the process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path

import pytest

from taskframework import BrokerUnavailableError, ConfigurationError, EventSubscriber, ExternalEvent, event_subscriber
from taskframework.events import http as http_events
from taskframework.testing.eventually import eventually
from tests.acceptance.http_support import COUNT_WORDS, serve

LIFE = ["task.submitted", "task.started", "task.completed"]


async def life_of_one(subscriber: EventSubscriber) -> list[str]:
    """The types of the events until a task is done, without progress."""
    types: list[str] = []
    async with asyncio.timeout(20), contextlib.aclosing(aiter(subscriber)) as events:
        async for event in events:
            if event.progress_revision is None:
                types.append(event.type)
            if event.type == "task.completed":
                break
    return types


async def test_the_events_of_another_process_are_heard_in_a_loop_and_by_functions(tmp_path: Path) -> None:
    async with serve(tmp_path) as api, event_subscriber(api.server.url + "/") as subscriber:
        done: list[ExternalEvent] = []
        subscriber.on("completed")(done.append)
        await subscriber.listening()
        task = await api.submit(COUNT_WORDS)
        assert await life_of_one(subscriber) == LIFE
        await eventually(lambda: done)
    assert (done[0].task_id, done[0].sequence, done[0].data["result"]) == (task["task_id"], 3, {"words": 3})


async def test_a_subscriber_waits_for_a_process_that_went_away_and_hears_of_the_gap(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_events, "_RETRY_PAUSE_SECONDS", 0.01)
    caplog.set_level(logging.WARNING, logger=http_events.__name__)
    async with contextlib.AsyncExitStack() as stack:
        async with serve(tmp_path) as first:
            subscriber = await stack.enter_async_context(event_subscriber(first.server.url))
            await subscriber.listening()
            port = first.server.address[1]
        await eventually(lambda: not subscriber.is_live)
        async with serve(tmp_path, api={"port": port}) as second:
            await eventually(lambda: "may have been missed" in caplog.text)
            await second.submit(COUNT_WORDS)
            assert await life_of_one(subscriber) == LIFE
            assert caplog.text.count("trying again") == 1


async def test_an_event_comes_again_when_its_handler_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_events, "_RETRY_PAUSE_SECONDS", 0.01)
    heard: list[str] = []

    async with serve(tmp_path, worker=False) as api, event_subscriber(api.server.url) as subscriber:

        @subscriber.on()
        async def stumble(event: ExternalEvent) -> None:
            heard.append(event.type)
            if len(heard) < 3:
                raise RuntimeError("not yet")

        await subscriber.listening()
        await api.submit(COUNT_WORDS)
        await eventually(lambda: len(heard) == 3)
    assert heard == ["task.submitted"] * 3


@pytest.mark.parametrize("path", ["", "/elsewhere"])
async def test_an_address_without_a_process_is_an_error_that_says_what_to_start(tmp_path: Path, path: str) -> None:
    async with serve(tmp_path, worker=False) as api:
        url = (api.server.url if path else "http://127.0.0.1:1") + path
        with pytest.raises(BrokerUnavailableError, match=f"No events at {url}.*taskframework dev"):
            async with event_subscriber(url):
                pass


def test_a_queue_needs_rabbitmq_and_the_embedded_broker_needs_http() -> None:
    with pytest.raises(ConfigurationError, match=r"'billing' keeps events.*RabbitMQ"):
        event_subscriber("http://localhost:8000", queue="billing")
    with pytest.raises(ConfigurationError, match=r"event_subscriber\(\"http://localhost:8000\"\)"):
        event_subscriber("embedded://")
