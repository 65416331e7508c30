"""Actors: one writer a key, order, back-pressure, timers that cannot come late, one end, and a new beginning."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any

import pytest

from taskframework.actors import ActorsStoppedError, KeyedActor, KeyedActors, Timers
from taskframework.testing import FakeClock, eventually

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)


class Log(KeyedActor[str, str]):
    """Writes down what it is called with; `wait` waits for the gate, `fail` fails, `3s` sets a timer."""

    seen: list[tuple[str, str]]
    gate: asyncio.Event
    busy: set[str]

    def __init__(self, key: str, timers: Timers) -> None:
        super().__init__(key, timers)
        self.seen.append((key, "begin"))

    async def receive(self, event: str) -> None:
        assert self.key not in self.busy, "a second call while one is under way"
        self.busy.add(self.key)
        self.seen.append((self.key, event))
        try:
            await self._do(event)
        finally:
            self.busy.discard(self.key)

    async def _do(self, event: str) -> None:
        await asyncio.sleep(0)
        if event.startswith("wait"):
            await self.gate.wait()
        elif event == "fail":
            raise ValueError("broken")
        elif event == "cancel":
            self.timers.cancel("pause")
        elif event.endswith("s") and event[:-1].isdecimal():
            self.timers.set("pause", int(event[:-1]) * SECOND)

    async def on_timer(self, name: str) -> None:
        assert self.key not in self.busy
        self.seen.append((self.key, f"timer {name}"))

    async def on_end(self) -> None:
        self.seen.append((self.key, "end"))


@pytest.fixture
def seen() -> list[tuple[str, str]]:
    Log.seen, Log.gate, Log.busy = [], asyncio.Event(), set()
    return Log.seen


class CountingClock(FakeClock):
    """Counts how often somebody begins to sleep."""

    slept = 0

    async def sleep(self, seconds: float) -> None:
        self.slept += 1
        await super().sleep(seconds)


@pytest.fixture
def clock() -> CountingClock:
    return CountingClock()


@pytest.fixture
async def actors(seen: list[tuple[str, str]], clock: FakeClock) -> AsyncIterator[KeyedActors[str, str]]:
    async with KeyedActors(Log, mailbox=3, idle_after=MINUTE, clock=clock) as opened:
        yield opened
        Log.gate.set()


def of(key: str) -> list[str]:
    return [what for owner, what in Log.seen if owner == key]


async def settled(is_so: Callable[[], bool]) -> None:
    async def look() -> bool:
        return is_so()

    await eventually(look)


async def passed(clock: FakeClock, time: timedelta) -> None:
    """Let time pass, once whoever sleeps does, and let everybody do what follows."""
    for _ in range(10):
        await asyncio.sleep(0)
    clock.advance(time)
    for _ in range(20):
        await asyncio.sleep(0)


async def test_events_of_a_key_come_in_order_and_one_at_a_time(actors: KeyedActors[str, str]) -> None:
    events = [f"event {n}" for n in range(200)]

    async def send(key: str) -> None:
        for event in events:
            await actors.tell(key, event)

    await asyncio.gather(*(send(key) for key in "abc"))
    await settled(lambda: all(of(key) == ["begin", *events] for key in "abc"))


class Bell(KeyedActor[str, str | None]):
    """Counts its events; some have no content."""

    heard: list[str | None]

    async def receive(self, event: str | None) -> None:
        self.heard.append(event)


async def test_an_event_without_content_is_an_event() -> None:
    Bell.heard = []
    async with KeyedActors(Bell, mailbox=1) as bells:
        for event in (None, "ring", None):
            await bells.tell("a", event)
    assert Bell.heard == [None, "ring", None]


async def test_keys_go_on_side_by_side(actors: KeyedActors[str, str]) -> None:
    await actors.tell("a", "wait")
    await actors.tell("b", "event")
    await settled(lambda: of("b") == ["begin", "event"])
    assert of("a") == ["begin", "wait"]
    assert sorted(actors) == ["a", "b"]


async def test_a_sender_to_a_full_mailbox_waits(actors: KeyedActors[str, str]) -> None:
    await actors.tell("a", "wait")
    await settled(lambda: of("a") == ["begin", "wait"])
    for n in range(3):
        await actors.tell("a", f"event {n}")
    blocked = asyncio.create_task(actors.tell("a", "last"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not blocked.done()
    Log.gate.set()
    await blocked
    await settled(lambda: of("a")[-1] == "last")
    assert of("a") == ["begin", "wait", "event 0", "event 1", "event 2", "last"]


async def test_a_timer_fires_once(actors: KeyedActors[str, str], clock: FakeClock) -> None:
    await actors.tell("a", "5s")
    await passed(clock, 4 * SECOND)
    assert of("a") == ["begin", "5s"]
    await passed(clock, SECOND)
    assert of("a") == ["begin", "5s", "timer pause"]
    await passed(clock, 20 * SECOND)
    assert of("a") == ["begin", "5s", "timer pause"]


async def test_a_timer_that_is_set_again_counts_from_then(actors: KeyedActors[str, str], clock: FakeClock) -> None:
    await actors.tell("a", "5s")
    await passed(clock, 4 * SECOND)
    await actors.tell("a", "5s")
    await passed(clock, 4 * SECOND)
    assert of("a") == ["begin", "5s", "5s"]
    await passed(clock, SECOND)
    assert of("a")[-1] == "timer pause"
    await actors.tell("a", "30s")
    await passed(clock, SECOND)
    await actors.tell("a", "2s")  # earlier than the one before
    await passed(clock, 2 * SECOND)
    assert of("a")[-2:] == ["2s", "timer pause"]


@pytest.mark.parametrize("event", ["5s", "cancel"])
async def test_a_firing_that_waits_behind_an_event_that_resets_its_timer_is_dropped(
    actors: KeyedActors[str, str], clock: FakeClock, event: str
) -> None:
    """The race: the timer fires while the event that puts it off is in the mailbox already."""
    await actors.tell("a", "5s")
    await actors.tell("a", "wait")
    await settled(lambda: of("a")[-1] == "wait")
    await actors.tell("a", event)
    await passed(clock, 5 * SECOND)
    Log.gate.set()
    await settled(lambda: of("a")[-1] == event)
    await passed(clock, SECOND)
    assert of("a") == ["begin", "5s", "wait", event]
    await passed(clock, 4 * SECOND)
    assert of("a")[4:] == (["timer pause"] if event == "5s" else [])


async def test_a_timer_that_is_put_off_by_each_of_many_events_is_one_task(
    actors: KeyedActors[str, str], clock: CountingClock
) -> None:
    for _ in range(500):
        await actors.tell("a", "5s")
    await settled(lambda: of("a").count("5s") == 500)
    assert clock.slept == 2, "for the pause, and for the time after which the actor is idle"


async def test_an_idle_actor_ends_and_the_next_event_begins_a_new_one(
    actors: KeyedActors[str, str], clock: FakeClock
) -> None:
    await actors.tell("a", "event")
    await passed(clock, 59 * SECOND)
    await actors.tell("a", "event")
    await passed(clock, 59 * SECOND)
    assert of("a") == ["begin", "event", "event"]
    await passed(clock, SECOND)
    await settled(lambda: len(actors) == 0)
    await actors.tell("a", "again")
    await settled(lambda: of("a") == ["begin", "event", "event", "end", "begin", "again"])


async def test_an_actor_with_something_in_its_mailbox_is_not_idle(
    actors: KeyedActors[str, str], clock: FakeClock
) -> None:
    await actors.tell("a", "wait")
    await passed(clock, MINUTE)
    await actors.tell("a", "event")
    Log.gate.set()
    await settled(lambda: of("a")[-1] == "event")
    await actors.tell("a", "another")
    await settled(lambda: of("a") == ["begin", "wait", "event", "another"])


async def test_an_actor_with_a_timer_is_not_idle(actors: KeyedActors[str, str], clock: FakeClock) -> None:
    await actors.tell("a", "300s")
    for _ in range(10):
        await passed(clock, 30 * SECOND)
    assert of("a") == ["begin", "300s", "timer pause"]
    for _ in range(5):
        await passed(clock, 30 * SECOND)
    await settled(lambda: of("a")[-1] == "end")


async def test_an_event_that_comes_while_the_actor_ends_waits_for_a_new_one(
    actors: KeyedActors[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are never two actors of a key."""

    async def slowly(self: Log) -> None:
        await self.gate.wait()
        self.seen.append((self.key, "end"))

    monkeypatch.setattr(Log, "on_end", slowly)
    await actors.tell("a", "event")
    closing = [asyncio.create_task(actors.close("a")) for _ in range(2)]
    await settled(lambda: of("a") == ["begin", "event"])
    late = asyncio.create_task(actors.tell("a", "late"))
    await asyncio.sleep(0)
    assert not late.done()
    Log.gate.set()
    await asyncio.gather(late, *closing)
    await settled(lambda: of("a") == ["begin", "event", "end", "begin", "late"])


async def test_closing_an_actor_handles_its_mailbox_and_ends_it_once(actors: KeyedActors[str, str]) -> None:
    await actors.tell("a", "5s")
    await actors.tell("a", "event")
    await asyncio.gather(actors.close("a"), actors.close("a"))
    assert of("a") == ["begin", "5s", "event", "end"]
    await actors.close("a")
    assert len(actors) == 0


async def test_an_event_that_waits_for_room_while_its_actor_is_closed_goes_to_the_next(
    actors: KeyedActors[str, str],
) -> None:
    await actors.tell("a", "wait")
    await settled(lambda: of("a") == ["begin", "wait"])
    for n in range(3):
        await actors.tell("a", f"event {n}")
    waiting = asyncio.create_task(actors.tell("a", "waiting"))
    await asyncio.sleep(0)
    closing = asyncio.create_task(actors.close("a"))
    await asyncio.sleep(0)
    Log.gate.set()
    await asyncio.gather(waiting, closing)
    expected = ["begin", "wait", "event 0", "event 1", "event 2", "end", "begin", "waiting"]
    await settled(lambda: of("a") == expected)


async def test_stopping_ends_all_actors_and_refuses_later_events(actors: KeyedActors[str, str]) -> None:
    for key in "abc":
        await actors.tell(key, "event")
    await actors.stop()
    assert all(of(key) == ["begin", "event", "end"] for key in "abc")
    with pytest.raises(ActorsStoppedError):
        await actors.tell("a", "late")


class Own(KeyedActor[str, str]):
    """Calls the methods of its `KeyedActors` from its own: `close`, `stop`, or `tell` that many events to itself."""

    of: KeyedActors[str, str]
    seen: list[str]

    async def receive(self, event: str) -> None:
        self.seen.append(event)
        if event == "close":
            await self.of.close(self.key)
        elif event == "stop":
            await self.of.stop()
        elif event.isdecimal():
            for n in range(int(event)):
                await self.of.tell(self.key, f"told {n}")
        self.seen.append(f"after {event}")

    async def on_end(self) -> None:
        self.seen.append("end")


@pytest.mark.parametrize("event", ["close", "stop"])
async def test_an_actor_may_end_itself(event: str) -> None:
    Own.seen = []
    Own.of = KeyedActors(Own, mailbox=3)
    await Own.of.tell("a", event)
    await Own.of.tell("b", "other")
    await settled(lambda: "end" in Own.seen)  # without `async with`, whose end would wait for an actor that hangs
    await Own.of.stop()
    assert [one for one in Own.seen if "other" not in one][:3] == [event, f"after {event}", "end"]


async def test_an_actor_does_not_wait_for_room_in_its_own_mailbox(caplog: pytest.LogCaptureFixture) -> None:
    Own.seen = []
    async with KeyedActors(Own, mailbox=3) as Own.of:
        await Own.of.tell("a", "3")
        await settled(lambda: "after told 2" in Own.seen)
        assert "failed" not in caplog.text
        await Own.of.tell("a", "4")
        await settled(lambda: Own.seen.count("after told 2") == 2)
    assert "ActorWaitsForItselfError: The actor gave itself an event, but its mailbox is full" in caplog.text
    assert "after 4" not in Own.seen


async def test_an_error_is_logged_and_the_actor_continues(
    actors: KeyedActors[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    await actors.tell("a", "fail")
    await actors.tell("a", "event")
    await settled(lambda: of("a") == ["begin", "fail", "event"])
    assert "the actor of 'a' failed and continues" in caplog.text


async def test_an_actor_that_cannot_begin_raises_its_error_to_the_sender(clock: FakeClock) -> None:
    def broken(key: str, timers: Timers) -> Log:
        raise ValueError(key)

    async with KeyedActors[str, str](broken, clock=clock) as actors:
        with pytest.raises(ValueError, match="a"):
            await actors.tell("a", "event")
        assert len(actors) == 0


class Careless(KeyedActor[str, str]):
    """Forgets `super().__init__`, and its `receive` is no coroutine function."""

    def __init__(self, key: str, timers: Timers) -> None:
        self.heard: list[str] = []

    def receive(self, event: str) -> Any:
        self.heard.append(event)
        raise ValueError(event)


async def test_an_actor_that_is_written_wrongly_fails_at_each_event_and_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made: list[Careless] = []

    def make(key: str, timers: Timers) -> Careless:
        made.append(Careless(key, timers))
        return made[-1]

    async with KeyedActors(make, mailbox=1) as actors:
        for event in "abc":
            await actors.tell("k", event)
    assert [actor.heard for actor in made] == [["a", "b", "c"]], "one actor, and no event is lost"
    assert [record.getMessage() for record in caplog.records] == ["the actor of 'k' failed and continues"] * 3


@pytest.mark.parametrize(
    ("wrong", "said"), [({"mailbox": 0}, "mailbox must be 1"), ({"idle_after": 0}, "idle_after must be a time above")]
)
def test_actors_that_could_take_no_event_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        KeyedActors(Log, **wrong)


async def test_times_may_be_given_in_seconds(seen: list[tuple[str, str]]) -> None:
    class InSeconds(Log):
        async def receive(self, event: str) -> None:
            self.timers.set("pause", 0.01)

    async with KeyedActors(InSeconds, idle_after=0.02) as actors:
        await actors.tell("k", "x")
        await eventually(lambda: len(actors) == 0)
    assert seen == [("k", "begin"), ("k", "timer pause"), ("k", "end")]


async def test_code_that_cancels_its_own_task_ends_the_actor_and_no_sender_waits_for_ever(
    caplog: pytest.LogCaptureFixture,
) -> None:
    handled, gate = list[object](), asyncio.Event()

    class Cancels(KeyedActor[str, int]):
        async def receive(self, event: int) -> None:
            if event == 0:
                await gate.wait()
                own = asyncio.current_task()
                assert own is not None
                own.cancel()
                await asyncio.sleep(1)
            handled.append(event)

        async def on_end(self) -> None:
            handled.append("end")

    actors = KeyedActors(Cancels, mailbox=2)
    await actors.tell("x", 0)
    await asyncio.sleep(0)
    for event in (1, 2):
        await actors.tell("x", event)
    sender = asyncio.create_task(actors.tell("x", 3))
    await asyncio.sleep(0)
    gate.set()
    await asyncio.wait_for(sender, 10)
    await actors.stop()
    assert handled == ["end", 3, "end"], "what waited beside it is lost, and what came later begins another actor"
    assert "the asyncio task of the actor of 'x' was cancelled; events lost: 2" in caplog.text


def test_a_class_that_is_no_actor_is_refused_at_once() -> None:
    class Plain(KeyedActor[str, int]):
        def receive(self, event: int) -> None:  # type: ignore[override]
            pass

    with pytest.raises(TypeError, match=r"Plain\.receive must be an `async def`"):
        KeyedActors(Plain)
    with pytest.raises(TypeError, match="give the class of the actors"):
        KeyedActors(5)  # type: ignore[arg-type]
