"""The live feed: one subscription for all who watch, and nobody's slowness is anybody else's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from taskframework.api import feed as feed_module
from taskframework.api.feed import Feed, event_frame
from taskframework.api.refusals import RequestRefusedError
from taskframework.brokers.base import Consumption, OnExternalMessage
from taskframework.brokers.embedded import EmbeddedBroker
from taskframework.events.external import ExternalEvent, to_message
from taskframework.model.scope import EVERYONE, Scope
from taskframework.testing.eventually import eventually


class CountingBroker(EmbeddedBroker):
    """Tells how many subscriptions it was asked for."""

    subscriptions = 0

    def subscribe(self, on_message: OnExternalMessage, *, durable_name: str | None = None) -> Consumption:
        assert durable_name is None, "what nobody watches is not collected"
        self.subscriptions += 1
        return super().subscribe(on_message, durable_name=durable_name)


def event(sequence: int, task_id: str = "t", **changes: Any) -> ExternalEvent:
    fields: dict[str, Any] = {"id": f"{task_id}-{sequence}", "type": "task.started", "data": {}} | changes
    return ExternalEvent(
        source="here", task_id=task_id, sequence=sequence, time=datetime(2027, 1, 31, tzinfo=UTC), **fields
    )


@pytest.fixture
async def broker() -> AsyncIterator[CountingBroker]:
    broker = CountingBroker()
    await broker.open()
    yield broker
    await broker.close()


@pytest.fixture
async def feed(broker: CountingBroker) -> AsyncIterator[Feed]:
    feed = Feed(lambda: broker)
    yield feed
    await feed.close()


async def publish(broker: EmbeddedBroker, *events: ExternalEvent) -> None:
    for one in events:
        await broker.publish_event(to_message([one]))


async def test_a_watcher_of_one_task_hears_that_task_and_a_watcher_of_all_hears_all(
    feed: Feed, broker: CountingBroker
) -> None:
    everything, mine, other = await feed.join(EVERYONE), await feed.join(EVERYONE, "a"), await feed.join(EVERYONE, "c")
    assert broker.subscriptions == 1
    await publish(broker, event(1, "a"), event(1, "b"))
    heard = await everything.take(5) + await everything.take(0.01)
    assert [one.event.task_id for one in heard] == ["a", "b"]
    assert [one.event.task_id for one in await mine.take(5)] == ["a"]
    assert await other.take(0.01) == []


async def test_a_watcher_hears_the_events_of_its_scope(feed: Feed, broker: CountingBroker) -> None:
    everything, mine = await feed.join(EVERYONE), await feed.join(Scope.of("alice"))
    foreign = await feed.join(Scope.of("bob"), "a")
    await publish(
        broker, event(1, "a", data={"user_id": "alice"}), event(1, "b", data={"user_id": "bob"}), event(1, "c")
    )
    heard = [*await everything.take(5), *await everything.take(0.01), *await everything.take(0.01)]
    assert [one.event.task_id for one in heard] == ["a", "b", "c"]
    assert [one.event.task_id for one in await mine.take(5)] == ["a"]
    assert await foreign.take(0.01) == []


async def test_the_subscription_lasts_as_long_as_somebody_watches(feed: Feed, broker: CountingBroker) -> None:
    first, second = await feed.join(EVERYONE, "a"), await feed.join(EVERYONE)
    await feed.leave(first)
    assert broker._consumptions
    await feed.leave(second)
    assert not broker._consumptions
    assert feed.watcher_count == 0
    third = await feed.join(EVERYONE, "a")
    await publish(broker, event(1, "a"))
    assert len(await third.take(5)) == 1
    assert broker.subscriptions == 2


async def test_a_watcher_that_is_too_slow_is_cut_off_and_the_others_continue(
    feed: Feed, broker: CountingBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "MAX_WAITING_BYTES", 2 * len(event_frame(event(1))))
    slow, quick = await feed.join(EVERYONE, "t"), await feed.join(EVERYONE, "t")
    for sequence in range(1, 6):
        await publish(broker, event(sequence))
        assert [one.event.sequence for one in await quick.take(5)] == [sequence]
    assert slow.is_over
    assert slow.has_missed_events
    assert [one.event.sequence for one in await slow.take(5)] == [1, 2], "in order, as far as it goes"
    assert await slow.take(5) == []
    assert not quick.is_over


async def test_one_event_larger_than_the_limit_still_fits(
    feed: Feed, broker: CountingBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "MAX_WAITING_BYTES", 10)
    watcher = await feed.join(EVERYONE)
    await publish(broker, event(1))
    assert len(await watcher.take(5)) == 1
    assert not watcher.has_missed_events


async def test_closing_the_feed_ends_all_watchers_and_refuses_new_ones(feed: Feed, broker: CountingBroker) -> None:
    watcher = await feed.join(EVERYONE)
    waiting = asyncio.create_task(watcher.take(60))
    await publish(broker, event(1))
    await eventually(waiting.done)
    await feed.close()
    assert watcher.is_over
    assert not watcher.has_missed_events
    assert await watcher.take(60) == []
    with pytest.raises(RequestRefusedError) as refused:
        await feed.join(EVERYONE)
    assert refused.value.code == "stopping"
    await feed.leave(watcher)


async def test_there_is_a_limit_of_watchers(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "MAX_WATCHERS", 2)
    first, _ = await feed.join(EVERYONE), await feed.join(EVERYONE, "a")
    with pytest.raises(RequestRefusedError) as refused:
        await feed.join(EVERYONE)
    assert refused.value.code == "too_many_streams"
    await feed.leave(first)
    await feed.join(EVERYONE)


async def test_one_caller_has_a_limited_number_of_event_streams(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "MAX_WATCHERS_PER_CALLER", 2)
    first, _ = await feed.join(EVERYONE, caller="tf_1"), await feed.join(EVERYONE, "a", caller="tf_1")
    with pytest.raises(RequestRefusedError, match="of this caller") as refused:
        await feed.join(EVERYONE, caller="tf_1")
    assert refused.value.code == "too_many_streams"
    for other in ("tf_2", None, None, None):
        await feed.join(EVERYONE, caller=other)
    await feed.leave(first)
    await feed.join(EVERYONE, caller="tf_1")


async def test_a_watcher_of_one_task_may_join_without_the_broker_and_hears_events_when_it_is_back(
    feed: Feed, broker: CountingBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "_JOIN_TIMEOUT_SECONDS", 0.01)
    broker.interrupt()
    watcher = await feed.join(EVERYONE, "t")
    broker.restore()
    await asyncio.sleep(2 * feed_module._CHECK_SECONDS)  # the check that ends the streams of all tasks leaves it
    await publish(broker, event(1))
    assert len(await watcher.take(5)) == 1


async def test_a_watcher_of_all_tasks_hears_of_the_gap_when_the_broker_is_back(
    feed: Feed, broker: CountingBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything, mine = await feed.join(EVERYONE), await feed.join(EVERYONE, "t")
    await asyncio.sleep(2 * feed_module._CHECK_SECONDS)
    assert not everything.is_over, "the first connection is no gap"
    monkeypatch.setattr(feed_module, "_JOIN_TIMEOUT_SECONDS", 0.05)
    broker.interrupt()
    late, late_of_one = await feed.join(EVERYONE), await feed.join(EVERYONE, "t")
    assert not everything.is_over, "the client would come again for nothing"
    broker.restore()
    await eventually(lambda: everything.is_over and late.is_over)
    assert everything.has_missed_events
    assert late.has_missed_events
    assert not mine.is_over, "it asks the store"
    assert not late_of_one.is_over
    again = await feed.join(EVERYONE)
    await publish(broker, event(1))
    assert len(await again.take(5)) == 1
    await asyncio.sleep(2 * feed_module._CHECK_SECONDS)
    assert not again.is_over


async def test_a_watcher_that_joins_just_before_the_broker_is_back_has_missed_nothing(
    feed: Feed, broker: CountingBroker
) -> None:
    broker.interrupt()
    joining = asyncio.create_task(feed.join(EVERYONE))
    await asyncio.sleep(2 * feed_module._CHECK_SECONDS)
    broker.restore()
    watcher = await joining
    await asyncio.sleep(2 * feed_module._CHECK_SECONDS)
    assert not watcher.is_over


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "x\nevent: task.completed"},
        {"type": "task.started\ndata: {}"},
        {"id": "\r"},
        {"type": ""},
        {"id": "x" * 301},
    ],
)
async def test_an_event_cannot_forge_fields(feed: Feed, broker: CountingBroker, changes: dict[str, str]) -> None:
    watcher = await feed.join(EVERYONE)
    await publish(broker, event(1, **changes), event(2))
    assert [one.event.sequence for one in await watcher.take(5)] == [2]


def test_a_frame_is_one_event_whatever_the_data() -> None:
    text = "line\nevent: forged\r\ndata: x\u2028"
    frame = event_frame(event(1, data={"result": text}))
    lines = frame.decode().split("\n")
    assert [line.partition(":")[0] for line in lines] == ["id", "event", "data", "", ""]
