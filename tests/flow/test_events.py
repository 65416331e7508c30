"""Other programs hear every event of every task, in sequence, whatever they are written with."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

import aio_pika
import pytest
from aio_pika.abc import AbstractIncomingMessage

from taskframework import ExternalEvent, TaskFramework, event_subscriber
from taskframework.model.drivers import OUTBOX
from taskframework.model.scope import EVERYONE
from taskframework.testing.eventually import eventually
from tests.flow.conftest import Run

Heard = dict[str, list[str]]


async def make_every_event_happen(framework: TaskFramework) -> dict[str, list[str]]:
    """One task for each way; returns what must be heard of each."""
    completed = await framework.submit("count-words", {"text": "a b"})
    retried = await framework.submit("flaky", {"succeed_at": 2, "delay": 0.05})
    failed = await framework.submit("broken")
    dead = await framework.submit("flaky", {"succeed_at": 9}, max_attempts=1)
    cancelled = await framework.submit("counts", not_before=datetime.now(UTC) + timedelta(hours=1))
    await framework.services.tasks.cancel(cancelled.task_id, EVERYONE, by="ada")
    for handle in (completed, retried, failed, dead):
        await handle.finished(timeout=60)
    return {
        completed.task_id: ["submitted", "started", "completed"],
        retried.task_id: ["submitted", "started", "retrying", "started", "completed"],
        failed.task_id: ["submitted", "started", "failed"],
        dead.task_id: ["submitted", "started", "dead_letter"],
        cancelled.task_id: ["submitted", "cancelled"],
    }


def note(heard: Heard, last: dict[str, int], task_id: str, sequence: int, event_type: str) -> None:
    """What the guide asks of a subscriber: drop what is not above the last sequence."""
    if sequence > last.get(task_id, 0):
        assert sequence == last.get(task_id, 0) + 1, f"a gap before {event_type} of {task_id}"
        last[task_id] = sequence
        heard[task_id].append(event_type.removeprefix("task."))


async def test_event_subscriber_hears_all_in_sequence(run: Run) -> None:
    heard: Heard = defaultdict(list)
    last: dict[str, int] = {}
    progress: list[ExternalEvent] = []
    async with run() as framework, framework.event_subscriber() as subscriber:

        @subscriber.on()
        def hear(event: ExternalEvent) -> None:
            if event.type == "task.progress":
                progress.append(event)
            else:
                note(heard, last, event.task_id, event.sequence, event.type)

        await subscriber.listening()
        expected = await make_every_event_happen(framework)
        await eventually(lambda: dict(heard) == expected)
        assert [event.data["progress"] for event in progress] == [{"percent": 50}]
        assert await eventually(lambda: _all_marked(framework))


@pytest.mark.parametrize("urls", ["servers", "servers, plain"], indirect=True)
async def test_a_plain_amqp_client_hears_all_in_sequence(run: Run, urls: dict[str, str]) -> None:
    heard: Heard = defaultdict(list)
    last: dict[str, int] = {}

    def hear(event: dict[str, Any]) -> None:
        assert event["specversion"] == "1.0"
        assert event["source"] == "taskframework"
        assert event["data"]["task_id"] == event["subject"]
        if "progressrevision" not in event:
            assert event["id"] == f"{event['subject']}-{event['sequence']}"
            note(heard, last, event["subject"], event["sequence"], event["type"])

    async def take(message: AbstractIncomingMessage) -> None:
        content = json.loads(message.body)
        if message.content_type == "application/cloudevents-batch+json":
            for event in content:
                hear(event)
        else:
            assert message.content_type == "application/cloudevents+json"
            hear(content)
        await message.ack()

    async with run() as framework:
        connection = await aio_pika.connect(urls["broker"])
        async with connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(exclusive=True)
            await queue.bind("tasks.events")
            await queue.consume(take)
            expected = await make_every_event_happen(framework)
            await eventually(lambda: dict(heard) == expected)


@pytest.mark.parametrize("urls", ["servers", "servers, plain"], indirect=True)
async def test_a_durable_subscriber_hears_what_happened_while_it_was_away(run: Run, urls: dict[str, str]) -> None:
    async with run() as framework:
        async with event_subscriber(urls["broker"], queue="billing") as subscriber:
            await subscriber.listening()
        expected = await make_every_event_happen(framework)
        heard: Heard = defaultdict(list)
        async with event_subscriber(urls["broker"], queue="billing") as subscriber, asyncio.timeout(20):
            async for event in subscriber:
                if event.progress_revision is None:
                    heard[event.task_id].append(event.type.removeprefix("task."))
                if dict(heard) == expected:
                    break


async def _all_marked(framework: TaskFramework) -> bool:
    return not await framework.services.store.due(OUTBOX, 10)
