"""A connection closes within its time, whatever the broker does."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from taskframework import background
from taskframework.brokers.rabbitmq import connection
from taskframework.brokers.rabbitmq.connection import BrokerConnection
from taskframework.brokers.rabbitmq.plain import PlainWire
from taskframework.testing.eventually import eventually


class SilentDriver:
    """The driver's connection to a broker that reads nothing more: it closes only with the second cancellation."""

    transport = None

    def __init__(self) -> None:
        self.close_callbacks = set[object]()
        self.cancellations = 0
        self.closing = asyncio.Event()

    async def ready(self) -> None: ...

    async def close(self) -> None:
        self.closing.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancellations += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.cancellations += 1


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_CANCEL_INTERVAL_SECONDS", 0.001)


@pytest.fixture
async def driver() -> SilentDriver:
    return SilentDriver()


def _closing(driver: SilentDriver) -> asyncio.Task[None]:
    return asyncio.create_task(BrokerConnection(cast(Any, driver), PlainWire(), None).close())


async def test_a_close_that_a_silent_broker_holds_up_is_given_up(
    driver: SilentDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_CLOSE_TIMEOUT_SECONDS", 0.001)
    closing = _closing(driver)
    await eventually(closing.done)
    assert (closing.result(), driver.cancellations) == (None, 2)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_close_after_a_cancellation_of_the_caller_ends_in_time(
    driver: SilentDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise an exit that a cancellation began would leave out what comes after this."""
    monkeypatch.setattr(connection, "_CLOSE_TIMEOUT_SECONDS", 0.001)

    async def exit_after_cancellation() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await BrokerConnection(cast(Any, driver), PlainWire(), None).close()
            done.append("the rest")

    done: list[str] = []
    exiting = asyncio.create_task(exit_after_cancellation())
    await asyncio.sleep(0)
    exiting.cancel()
    await eventually(exiting.done)
    assert (done, driver.cancellations) == (["the rest"], 2)


async def test_a_caller_that_is_ended_leaves_no_close_behind(driver: SilentDriver) -> None:
    closing = _closing(driver)
    await driver.closing.wait()
    ending = asyncio.create_task(background.end(closing))
    await eventually(ending.done)
    assert closing.cancelled()
    await eventually(lambda: asyncio.all_tasks() == {asyncio.current_task()})
    assert driver.cancellations == 2


async def test_a_caller_that_is_cancelled_once_still_ends(
    driver: SilentDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_CLOSE_TIMEOUT_SECONDS", 0.01)
    closing = _closing(driver)
    await driver.closing.wait()
    closing.cancel()
    await eventually(closing.done)
    assert (closing.cancelled(), driver.cancellations) == (True, 2)
