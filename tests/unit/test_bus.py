"""The event bus."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

import pytest

from taskframework.bus import EventBus, Listener, NoListenerError
from taskframework.model.events import Event, TaskCompletedEvent, TaskEvent, TaskSubmittedEvent
from taskframework.testing.factories import new_task

SUBMITTED = TaskSubmittedEvent(new_task())


@dataclass(frozen=True, slots=True)
class Question(Event):
    """A request of these tests."""

    text: str


class Log(list[str]):
    """Listeners that write down their name."""

    def plain(self, name: str, answer: object = None) -> Any:
        def handle(event: Event) -> object:
            self.append(name)
            return answer

        return handle

    def patient(self, name: str, answer: object = None) -> Any:
        async def handle(event: Event) -> object:
            await asyncio.sleep(0)
            self.append(name)
            return answer

        return handle

    def failing(self, name: str) -> Any:
        def handle(event: Event) -> None:
            self.append(name)
            raise RuntimeError(f"{name} is broken")

        return handle

    def patiently_failing(self, name: str) -> Any:
        async def handle(event: Event) -> None:
            await asyncio.sleep(0)
            self.append(name)
            raise RuntimeError(f"{name} is broken")

        return handle


@pytest.fixture
def bus() -> EventBus:
    return EventBus()


@pytest.fixture
def log() -> Log:
    return Log()


async def test_listeners_that_must_succeed_run_in_order_before_observers(bus: EventBus, log: Log) -> None:
    bus.listen(TaskEvent, log.plain("observer"), name="observer")
    bus.listen(TaskEvent, log.patient("first"), name="first", must_succeed=True)
    bus.listen(TaskEvent, log.plain("second"), name="second", must_succeed=True)
    await bus.publish(SUBMITTED)
    assert log == ["first", "second", "observer"]


async def test_the_publisher_waits_for_what_must_succeed_and_for_nothing_else(bus: EventBus, log: Log) -> None:
    bus.listen(TaskEvent, log.patient("must"), name="must", must_succeed=True)
    bus.listen(TaskEvent, log.patient("observer"), name="observer")
    await bus.publish(SUBMITTED)
    assert log == ["must"]
    await bus.drain()
    assert log == ["must", "observer"]


@pytest.mark.parametrize("kind", ["failing", "patiently_failing"])
async def test_an_error_of_what_must_succeed_reaches_the_publisher_and_stops_the_rest(
    bus: EventBus, log: Log, kind: str
) -> None:
    bus.listen(TaskEvent, getattr(log, kind)("broken"), name="broken", must_succeed=True)
    bus.listen(TaskEvent, log.plain("after"), name="after", must_succeed=True)
    bus.listen(TaskEvent, log.plain("observer"), name="observer")
    with pytest.raises(RuntimeError, match="broken is broken"):
        await bus.publish(SUBMITTED)
    assert log == ["broken"]


async def test_an_observer_that_fails_harms_nobody(bus: EventBus, log: Log, caplog: pytest.LogCaptureFixture) -> None:
    bus.listen(TaskEvent, log.failing("broken"), name="broken")
    bus.listen(TaskEvent, log.patiently_failing("later broken"), name="later broken")
    bus.listen(TaskEvent, log.plain("healthy"), name="healthy")
    with caplog.at_level(logging.ERROR):
        await bus.publish(SUBMITTED)
        await bus.drain()
    assert sorted(log) == ["broken", "healthy", "later broken"]
    assert "listener broken failed on TaskSubmittedEvent" in caplog.text
    assert "later broken is broken" in caplog.text


async def test_a_listener_hears_a_type_and_its_subtypes(bus: EventBus, log: Log) -> None:
    bus.listen(Event, log.plain("everything"), name="everything")
    bus.listen(TaskEvent, log.plain("tasks"), name="tasks")
    bus.listen(TaskCompletedEvent, log.plain("completed"), name="completed")
    await bus.publish(SUBMITTED)
    await bus.publish(Question("?"))
    assert log == ["everything", "tasks", "everything"]


async def test_a_listener_that_comes_later_is_heard_from_then_on(bus: EventBus, log: Log) -> None:
    await bus.publish(SUBMITTED)
    bus.listen(TaskEvent, log.plain("late"), name="late")
    await bus.publish(SUBMITTED)
    assert log == ["late"]


async def test_a_temporary_listener_is_not_forgotten(bus: EventBus) -> None:
    """blinker alone would hold a bound method weakly and lose it before the first event."""

    class Temporary:
        heard = 0

        def hear(self, event: Event) -> None:
            Temporary.heard += 1

    bus.listen(TaskEvent, Temporary().hear, name="temporary")
    await bus.publish(SUBMITTED)
    assert Temporary.heard == 1


async def test_a_question_is_answered_by_the_last_that_must_succeed(bus: EventBus, log: Log) -> None:
    bus.listen(Question, log.plain("first", 1), name="first", must_succeed=True)
    bus.listen(Question, log.patient("second", 2), name="second", must_succeed=True)
    bus.listen(Question, log.plain("observer", 3), name="observer")
    assert await bus.ask(Question("?")) == 2


async def test_a_question_that_nobody_must_answer_is_an_error(bus: EventBus, log: Log) -> None:
    bus.listen(Question, log.plain("observer", 1), name="observer")
    with pytest.raises(NoListenerError, match="Question"):
        await bus.ask(Question("?"))


async def test_an_answer_may_be_none(bus: EventBus, log: Log) -> None:
    bus.listen(Question, log.plain("shrug", None), name="shrug", must_succeed=True)
    assert await bus.ask(Question("?")) is None


async def test_each_event_that_a_listener_handled_is_reported(bus: EventBus, log: Log) -> None:
    reports: list[tuple[str, str | None]] = []

    def report(listener: Listener, event: Event, error: Exception | None) -> None:
        reports.append((listener.name, None if error is None else str(error)))

    bus.on_handled = report
    bus.listen(TaskEvent, log.patient("fine"), name="fine", must_succeed=True)
    bus.listen(TaskEvent, log.failing("broken"), name="broken")
    bus.listen(TaskEvent, log.patiently_failing("slow"), name="slow")
    await bus.publish(SUBMITTED)
    await bus.drain()
    assert reports == [("fine", None), ("broken", "broken is broken"), ("slow", "slow is broken")]


async def test_the_order_of_the_listeners_is_one_visible_list(bus: EventBus, log: Log) -> None:
    bus.listen(TaskEvent, log.plain("a"), name="a")
    bus.listen(Question, log.plain("b"), name="b", must_succeed=True)
    assert [(listener.name, listener.event_type, listener.must_succeed) for listener in bus.listeners] == [
        ("a", TaskEvent, False),
        ("b", Question, True),
    ]


async def test_other_code_may_connect_to_the_blinker_signal(bus: EventBus, log: Log) -> None:
    heard: list[Event] = []

    def receive(_: object, *, event: Event) -> None:
        heard.append(event)

    bus.signal(TaskSubmittedEvent).connect(receive)
    bus.listen(TaskEvent, log.patient("own", 1), name="own", must_succeed=True)
    await bus.publish(SUBMITTED)
    assert heard == [SUBMITTED]
    assert log == ["own"]


async def test_events_of_several_publishers_do_not_wait_for_each_other(bus: EventBus) -> None:
    release = asyncio.Event()
    heard: list[Event] = []

    async def slow_once(event: Event) -> None:
        if isinstance(event, Question):
            await release.wait()
        heard.append(event)

    bus.listen(Event, slow_once, name="slow", must_succeed=True)
    waiting = asyncio.create_task(bus.publish(Question("?")))
    await asyncio.sleep(0)
    await bus.publish(SUBMITTED)
    assert heard == [SUBMITTED]
    release.set()
    await waiting
