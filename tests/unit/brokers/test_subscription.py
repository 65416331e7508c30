"""A subscription that stops: what it has in hand goes back in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import cast

import pytest

from taskframework.brokers import subscription as subscription_module
from taskframework.brokers.base import Consumption, ExternalMessage
from taskframework.brokers.subscription import EventDelivery, Subscription
from taskframework.testing.eventually import eventually


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


class _Bench:
    """A subscription with three messages, whose handler stays with the first one."""

    def __init__(self) -> None:
        self.answers: list[str] = []
        self.consumption = _Consumption()
        self.begun, self.goes_on = asyncio.Event(), asyncio.Event()
        self.error: Exception | None = None
        self.subscription = Subscription(self._handle, self._consume)

    async def _handle(self, _: ExternalMessage) -> None:
        self.begun.set()
        await self.goes_on.wait()
        if self.error is not None:
            raise self.error

    def _consume(self, on_event: Callable[[EventDelivery], None]) -> Consumption:
        for name in ("1", "2", "3"):
            on_event(cast(EventDelivery, _Delivery(name, self.answers)))
        return cast(Consumption, self.consumption)


async def test_a_message_that_fails_during_the_stop_goes_back_first_and_only_once_no_more_come() -> None:
    """Put back earlier, the broker would deliver it here again, and it would go back behind the others."""
    bench = _Bench()
    bench.error = RuntimeError("nobody listens")
    await bench.begun.wait()
    stopping = asyncio.create_task(bench.subscription.stop())
    await asyncio.sleep(0)
    bench.goes_on.set()
    await bench.consumption.is_stopping.wait()
    assert bench.answers == []
    bench.consumption.may_stop.set()
    await stopping
    assert bench.answers == ["put back 1", "put back 2", "put back 3"]


async def test_a_stop_waits_for_the_running_handler_so_that_its_message_is_acknowledged() -> None:
    bench = _Bench()
    bench.consumption.may_stop.set()
    await bench.begun.wait()
    stopping = asyncio.create_task(bench.subscription.stop())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not bench.consumption.is_stopping.is_set()
    bench.goes_on.set()
    await stopping
    assert bench.answers == ["ack 1", "put back 2", "put back 3"]


async def test_a_stop_does_not_wait_long_for_a_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription_module, "_HANDLER_SECONDS", 0)
    bench = _Bench()
    bench.consumption.may_stop.set()
    await bench.begun.wait()
    await bench.subscription.stop()
    assert bench.answers == ["put back 2", "put back 3"]
    bench.goes_on.set()
    await eventually(lambda: bench.answers[2:] == ["ack 1"])


async def test_a_close_leaves_a_handler_behind_that_ignores_its_cancellation(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(subscription_module, "_HANDLER_SECONDS", 0)
    monkeypatch.setattr(subscription_module, "_CANCELLED_HANDLER_SECONDS", 0.01)
    bench = _Bench()
    bench.consumption.may_stop.set()
    cancelled = asyncio.Event()

    async def deaf(_: ExternalMessage) -> None:
        bench.begun.set()
        while not bench.goes_on.is_set():
            try:
                await bench.goes_on.wait()
            except asyncio.CancelledError:
                cancelled.set()

    bench.subscription._on_message = deaf
    await bench.begun.wait()
    closing = asyncio.create_task(bench.subscription.close())
    try:
        await eventually(closing.done, timeout=10)
        assert cancelled.is_set()
        assert caplog.messages == ["a handler of events ignores its cancellation and is left behind"]
    finally:
        bench.goes_on.set()
        await closing
