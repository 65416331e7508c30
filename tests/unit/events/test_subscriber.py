"""A subscriber that is left in the middle of a message has not heard the rest of it."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from taskframework.brokers.base import Broker, ExternalMessage
from taskframework.errors import ConfigurationError, NotRunningError
from taskframework.events.external import TYPES, ExternalEvent, to_message
from taskframework.events.requests import address_of
from taskframework.events.subscriber import EventSubscriber
from taskframework.testing.eventually import eventually
from taskframework.wiring.subscriber import event_subscriber


class StubBroker:
    """Hands one message over, as often as it is asked to."""

    is_live = True

    def subscribe(self, receive: Any, *, durable_name: str | None) -> StubBroker:
        self.receive = receive
        return self

    async def stop(self) -> None:
        """Nothing to stop."""


@pytest.fixture
def broker() -> StubBroker:
    return StubBroker()


@pytest.fixture
def subscriber(broker: StubBroker) -> EventSubscriber:
    return EventSubscriber(cast(Broker, broker), queue="durable")


BATCH: ExternalMessage = to_message(
    [ExternalEvent(f"t-{n}", "task.started", "test", "t", n, datetime.now(UTC), {}) for n in (1, 2, 3)]
)


async def test_the_rest_of_a_batch_waits_for_the_next_loop(subscriber: EventSubscriber, broker: StubBroker) -> None:
    heard = []
    async with subscriber:
        first = asyncio.create_task(broker.receive(BATCH))
        async with contextlib.aclosing(aiter(subscriber)) as events:
            async for event in events:
                heard.append(event.sequence)
                if event.sequence == 2:
                    break
        with pytest.raises(ConnectionError):  # so the broker delivers it again
            await first
        again = asyncio.create_task(broker.receive(BATCH))
        async with contextlib.aclosing(aiter(subscriber)) as events:
            async for event in events:
                heard.append(event.sequence)
                if event.sequence == 3:
                    break
        again.cancel()
    assert heard == [1, 2, 2, 3]


async def test_a_loop_that_is_cancelled_takes_nothing_with_it(subscriber: EventSubscriber, broker: StubBroker) -> None:
    async with subscriber:
        loop = asyncio.create_task(_iterate(subscriber))
        await asyncio.sleep(0)
        loop.cancel()
        await asyncio.wait([loop])
        receiving = asyncio.create_task(broker.receive(BATCH))
        await asyncio.sleep(0)
        assert not receiving.done(), "it is not handled, so it may not be acknowledged"
    with pytest.raises(ConnectionError):
        await receiving


async def test_a_loop_whose_event_was_taken_back_goes_on(subscriber: EventSubscriber, broker: StubBroker) -> None:
    """Whoever ends the subscription cancels the handing over of an event, and the body of the loop may still run."""
    heard = []
    async with subscriber:
        receiving = asyncio.create_task(broker.receive(BATCH))
        async with contextlib.aclosing(aiter(subscriber)) as events:
            async for event in events:
                heard.append(event.sequence)
                if len(heard) == 2:
                    break
                receiving.cancel()
                await asyncio.wait([receiving])
                receiving = asyncio.create_task(broker.receive(BATCH))
    with pytest.raises(ConnectionError):
        await receiving
    assert heard == [1, 1]


async def test_a_loop_that_is_left_while_a_handler_has_the_event_holds_up_nobody(
    subscriber: EventSubscriber, broker: StubBroker
) -> None:
    heard, go_on = list[int](), asyncio.Event()

    @subscriber.on()
    async def slow(event: ExternalEvent) -> None:
        heard.append(event.sequence)
        await go_on.wait()

    async with subscriber:
        loop = asyncio.create_task(_iterate(subscriber))
        await asyncio.sleep(0)
        receiving = asyncio.create_task(broker.receive(BATCH))
        await eventually(lambda: heard == [1])
        loop.cancel()
        await asyncio.wait([loop])
        go_on.set()
        await asyncio.wait_for(receiving, 10)
    assert heard == [1, 2, 3]


async def test_events_wait_for_the_first_listener(subscriber: EventSubscriber, broker: StubBroker) -> None:
    async with subscriber:
        receiving = asyncio.create_task(broker.receive(BATCH))
        await asyncio.sleep(0)
        heard: list[int] = []
        subscriber.on()(lambda event: heard.append(event.sequence))
        await eventually(lambda: receiving.done())
    assert heard == [1, 2, 3]


async def test_a_task_with_the_id_of_a_deleted_one_is_heard_and_a_late_duplicate_of_the_deleted_one_is_not(
    subscriber: EventSubscriber, broker: StubBroker
) -> None:
    heard = []
    subscriber.on()(lambda event: heard.append(event.data["created_at"]))
    async with subscriber:
        for created_at in ("2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z", "2026-01-01T00:00:00Z"):
            data = {"created_at": created_at}
            event = ExternalEvent("t-1", "task.submitted", "test", "t", 1, datetime.now(UTC), data)
            await broker.receive(to_message([event]))
    assert heard == ["2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"]


async def _iterate(subscriber: EventSubscriber) -> None:
    async for _ in subscriber:
        pass


async def test_a_subscriber_that_is_entered_again_waits_for_a_listener(
    subscriber: EventSubscriber, broker: StubBroker
) -> None:
    async with subscriber:
        pass
    async with subscriber:
        receiving = asyncio.create_task(broker.receive(BATCH))
        done, _ = await asyncio.wait([receiving], timeout=0.05)
        assert not done, "nobody listens yet, which is no failure"
        heard: list[int] = []
        subscriber.on()(lambda event: heard.append(event.sequence))
        await receiving
        assert heard == [1, 2, 3]


async def test_a_loop_outside_the_subscription_is_refused(subscriber: EventSubscriber) -> None:
    """It would wait for ever."""
    with pytest.raises(NotRunningError, match="receives nothing"):
        await _iterate(subscriber)
    async with subscriber:
        pass
    with pytest.raises(NotRunningError) as refused:
        await _iterate(subscriber)
    assert refused.value.hint == "Iterate inside `async with subscriber:`."


async def test_a_loop_in_another_task_ends_with_the_subscription(subscriber: EventSubscriber) -> None:
    async with subscriber:
        loops = [asyncio.create_task(_iterate(subscriber)) for _ in range(2)]
        await asyncio.sleep(0)
    await asyncio.wait_for(asyncio.gather(*loops), 10)


async def test_a_type_that_does_not_exist_is_refused_at_once(subscriber: EventSubscriber) -> None:
    """Its handler would never be called, and nothing would tell."""
    for types in (*([name] for name in TYPES), ["task.completed", "failed"], []):
        subscriber.on(*types)
    with pytest.raises(ConfigurationError, match=r"no event 'complete'; there are submitted, .*progress\.") as refused:
        subscriber.on("failed", "complete")
    assert str(refused.value.hint).startswith("Did you mean 'completed'? ")
    with pytest.raises(ConfigurationError, match=r"no event 'task\.x'"):
        subscriber.on("task.x")


async def test_a_decorator_without_brackets_is_refused_at_once(subscriber: EventSubscriber) -> None:
    with pytest.raises(ConfigurationError, match="is a text, not <function") as refused:

        @subscriber.on  # type: ignore[arg-type]
        def hear(event: ExternalEvent) -> None: ...

    assert "@subscriber.on() for all events" in str(refused.value.hint)


@pytest.mark.parametrize("address", ["localhost:8431", "ftp://localhost:8431"])
def test_an_address_of_another_kind_is_refused_with_what_to_give(address: str) -> None:
    with pytest.raises(ConfigurationError, match=r"8431 is not an address.*http://localhost:8000"):
        event_subscriber(address)


def test_the_address_of_the_interface_is_the_address_of_its_server() -> None:
    assert address_of("http://localhost:8000/api/v1/") == address_of("http://localhost:8000") == "http://localhost:8000"
    assert address_of("https://example.com/tasks/api/v1") == "https://example.com/tasks"
    with pytest.raises(ConfigurationError, match="'None' is not the address of an API"):
        address_of(None)  # type: ignore[arg-type]
