"""Timers of one mailbox: which firings count, and what is kept of a timer."""

from __future__ import annotations

import asyncio

import pytest

from taskframework.actors.mailbox import Firing, MailboxTimers
from taskframework.testing.clock import FakeClock
from taskframework.testing.eventually import eventually


class Timers:
    """Timers with the firings that came of them."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.firings: list[Firing] = []
        self.timers = MailboxTimers(self.clock, self.firings.append)

    async def fired(self, count: int) -> Firing:
        """Let time pass until so many have fired; return the last firing."""
        self.clock.advance(10)
        await eventually(lambda: len(self.firings) == count)
        return self.firings[-1]

    @property
    def is_anything_kept(self) -> bool:
        return bool(self.timers._timers)


@pytest.fixture
def actor_timers() -> Timers:
    return Timers()


async def test_a_timer_that_fired_is_forgotten(actor_timers: Timers) -> None:
    for number in range(100):
        actor_timers.timers.set(f"utterance {number}", 1)
    await actor_timers.fired(100)
    assert all(map(actor_timers.timers.take, actor_timers.firings))
    assert not actor_timers.is_anything_kept
    assert not actor_timers.timers.take(actor_timers.firings[0]), "it counts once"


async def test_a_cancelled_timer_is_forgotten_at_its_time(actor_timers: Timers) -> None:
    actor_timers.timers.set("pause", 1)
    await asyncio.sleep(0)
    actor_timers.timers.cancel("pause")
    actor_timers.clock.advance(10)
    await eventually(lambda: not actor_timers.is_anything_kept)
    assert actor_timers.firings == []


async def test_a_timer_that_is_cancelled_after_it_fired_is_forgotten(actor_timers: Timers) -> None:
    actor_timers.timers.set("pause", 1)
    firing = await actor_timers.fired(1)
    actor_timers.timers.cancel("pause")
    assert not actor_timers.is_anything_kept
    assert not actor_timers.timers.take(firing)


async def test_an_old_firing_is_not_taken_for_that_of_a_new_timer_of_the_name(actor_timers: Timers) -> None:
    actor_timers.timers.set("pause", 1)
    old = await actor_timers.fired(1)
    actor_timers.timers.cancel("pause")
    actor_timers.timers.set("pause", 1)
    assert not actor_timers.timers.take(old)
    assert actor_timers.timers.take(await actor_timers.fired(2))


async def test_a_cancelled_timer_that_is_set_again_fires_once(actor_timers: Timers) -> None:
    actor_timers.timers.set("pause", 1)
    await asyncio.sleep(0)
    actor_timers.timers.cancel("pause")
    actor_timers.timers.set("pause", 2)
    assert actor_timers.timers.take(await actor_timers.fired(1))
    await actor_timers.timers.stop()
    assert len(actor_timers.firings) == 1
