"""Things that come back."""

from __future__ import annotations

import asyncio
import logging

import pytest

from taskframework.brokers.rabbitmq.supervision import Supervised
from taskframework.errors import BrokerUnavailableError
from taskframework.testing.eventually import eventually


class Thing:
    """Something that can be lost."""

    def __init__(self) -> None:
        self.lost = asyncio.Event()


class Workshop:
    """Makes things when it is open; each attempt waits for `go`."""

    def __init__(self) -> None:
        self.is_open = True
        self.go = asyncio.Event()
        self.go.set()
        self.attempts = 0
        self.made: list[Thing] = []
        self.forgotten: list[Thing] = []
        self.kept = Supervised("thing", self._make, self.forgotten.append)

    async def _make(self) -> Thing:
        self.attempts += 1
        await self.go.wait()
        if not self.is_open:
            raise BrokerUnavailableError("closed today")
        self.made.append(Thing())
        return self.made[-1]


async def test_a_lost_thing_is_made_again_and_forgotten_once() -> None:
    workshop = Workshop()
    workshop.kept.start()
    workshop.kept.start()
    first = await workshop.kept.get()
    first.lost.set()
    assert workshop.kept.value is None
    second = await workshop.kept.get()
    assert second is not first
    assert workshop.forgotten == [first]
    assert await workshop.kept.stop() is second
    assert workshop.forgotten == [first]


async def test_get_waits_for_the_attempt_under_way_and_not_for_a_thing_known_to_be_away() -> None:
    workshop = Workshop()
    workshop.go.clear()
    workshop.is_open = False
    workshop.kept.start()
    getting = asyncio.create_task(workshop.kept.get())
    await eventually(lambda: workshop.attempts == 1)
    assert not getting.done()
    workshop.go.set()
    with pytest.raises(BrokerUnavailableError, match="closed today"):
        await getting
    with pytest.raises(BrokerUnavailableError, match="closed today"):
        await workshop.kept.get()
    waiting = asyncio.create_task(workshop.kept.wait())
    workshop.is_open = True
    assert await waiting is await workshop.kept.get()
    await workshop.kept.stop()


async def test_a_kept_thing_exists_only_between_start_and_stop_and_can_start_again() -> None:
    workshop = Workshop()
    with pytest.raises(BrokerUnavailableError, match="not open"):
        await workshop.kept.get()
    workshop.kept.start()
    first = await workshop.kept.get()
    await workshop.kept.stop()
    with pytest.raises(BrokerUnavailableError, match="closed"):
        await workshop.kept.get()
    assert await workshop.kept.stop() is None
    workshop.kept.start()
    assert await workshop.kept.get() is not first
    await workshop.kept.stop()


async def test_an_unexpected_error_is_logged_and_does_not_end_the_supervision(caplog: pytest.LogCaptureFixture) -> None:
    errors = [KeyError("a bug"), BrokerUnavailableError("away")]

    async def make() -> Thing:
        if errors:
            raise errors.pop(0)
        return Thing()

    kept = Supervised("thing", make, lambda _: None)
    kept.start()
    await kept.wait()
    await kept.stop()
    assert [(record.levelno, bool(record.exc_info)) for record in caplog.records] == [(logging.ERROR, True)]


async def test_a_stop_during_an_attempt_ends_the_supervision() -> None:
    workshop = Workshop()
    workshop.go.clear()
    workshop.kept.start()
    await eventually(lambda: workshop.attempts == 1)
    assert await workshop.kept.stop() is None
