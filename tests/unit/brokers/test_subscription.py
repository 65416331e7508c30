"""A subscription that stops: what it has in hand goes back in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import cast

from taskframework.brokers.base import Consumption, ExternalMessage
from taskframework.brokers.subscription import EventDelivery, Subscription
from tests.support.eventually import eventually


class _Delivery:
    is_void = False
    content_type = "application/cloudevents+json"
    headers: Mapping[str, str] = {}

    def __init__(self, name: str, answers: list[str]) -> None:
        self.body = name.encode()
        self._answers = answers

    async def ack(self) -> None:
        self._answers.append(f"ack {self.body.decode()}")

    async def put_back(self) -> None:
        self._answers.append(f"put back {self.body.decode()}")


class _Consumption:
    is_live = True

    def __init__(self) -> None:
        self.is_stopping = asyncio.Event()
        self.may_stop = asyncio.Event()

    async def stop(self) -> None:
        self.is_stopping.set()
        await self.may_stop.wait()


async def test_a_message_that_fails_during_the_stop_goes_back_first_and_only_once_no_more_come() -> None:
    """Put back earlier, the broker would deliver it here again, and it would go back behind the others."""
    answers: list[str] = []
    consumption, begun, fails = _Consumption(), asyncio.Event(), asyncio.Event()

    async def handle(_: ExternalMessage) -> None:
        begun.set()
        await fails.wait()
        raise RuntimeError("nobody listens")

    def consume(on_event: Callable[[EventDelivery], None]) -> Consumption:
        for name in ("1", "2", "3"):
            on_event(cast(EventDelivery, _Delivery(name, answers)))
        return cast(Consumption, consumption)

    subscription = Subscription(handle, consume)
    await begun.wait()
    stopping = asyncio.create_task(subscription.stop())
    await consumption.is_stopping.wait()
    fails.set()
    await eventually(lambda: not subscription._is_handling)
    assert answers == []
    consumption.may_stop.set()
    await stopping
    assert answers == ["put back 1", "put back 2", "put back 3"]
