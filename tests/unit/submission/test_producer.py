"""The producer: who holds a delay, what the broker does not take, and timers that come in time though clocks differ."""

from __future__ import annotations

import asyncio
import logging
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import cast

import pytest

from taskframework.brokers.base import Broker
from taskframework.errors import BrokerError, BrokerUnavailableError, PublishRefusedError
from taskframework.model.events import TaskRetryingEvent, TaskSubmittedEvent
from taskframework.model.marks import MakeDue, Mark
from taskframework.model.message import TaskMessage
from taskframework.model.status import TaskStatus
from taskframework.model.task import Task
from taskframework.model.transitions import Transition
from taskframework.stores.base import TaskStore
from taskframework.submission import producer as producer_module
from taskframework.submission.producer import _MAX_SENDERS, DispatchPolicy, TaskMessageProducer
from taskframework.testing.clock import FakeClock
from taskframework.testing.eventually import eventually
from taskframework.testing.factories import new_task

MILLISECOND = timedelta(milliseconds=1)


class SlowStore:
    """A store whose clock is behind what this process takes it for."""

    def __init__(self, clock: FakeClock, task: Task, behind: timedelta) -> None:
        self._clock = clock
        self._task = task
        self._behind = behind
        self.refused = 0
        self.marks: list[Mark] = []

    def now(self) -> datetime:
        return self._clock.now()

    async def apply(self, transition: Transition) -> Task | None:
        reserved = transition.apply(self._task, self._clock.now() - self._behind)
        self.refused += reserved is None
        return reserved

    async def mark(self, *marks: Mark) -> None:
        self.marks += marks

    @property
    def marked(self) -> list[str]:
        return [mark.task_id for mark in self.marks]


class Published:
    """A broker that takes every message."""

    is_connected = True
    holds_delays = False

    def __init__(self) -> None:
        self.error: BrokerError | None = None
        self.messages: list[TaskMessage] = []
        self.delays: list[timedelta | None] = []

    async def publish(self, message: TaskMessage, *, delay: timedelta | None = None) -> None:
        if self.error is not None:
            raise self.error
        self.messages.append(message)
        self.delays.append(delay)


class Held(Published):
    """Confirms nothing until its gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.asked = 0

    async def publish(self, message: TaskMessage, *, delay: timedelta | None = None) -> None:
        self.asked += 1
        await self.gate.wait()
        await super().publish(message, delay=delay)


@pytest.mark.parametrize(
    ("wait", "holds_delays", "delays", "timers"),
    [
        (-1, True, [None], 0),
        (0, False, [None], 0),
        (1, True, [timedelta(seconds=1)], 0),
        (600, True, [timedelta(minutes=10)], 0),
        (601, True, [], 0),
        (1, False, [], 1),
        (600, False, [], 1),
        (601, False, [], 0),
    ],
)
async def test_a_delay_is_held_by_the_broker_by_a_timer_or_if_long_by_the_store_alone(
    wait: int, holds_delays: bool, delays: list[timedelta | None], timers: int
) -> None:
    clock, broker = FakeClock(), Published()
    broker.holds_delays = holds_delays
    due = clock.now() + timedelta(seconds=wait)
    task = new_task(now=clock.now(), status=TaskStatus.RETRYING, not_before=due, next_dispatch_at=due)
    store = SlowStore(clock, task, timedelta(0))
    producer = TaskMessageProducer(cast(TaskStore, store), cast(Broker, broker), clock, DispatchPolicy())
    producer.on_event(TaskRetryingEvent(task))
    producer.on_event(TaskRetryingEvent(task.evolve(status=TaskStatus.RUNNING)))
    await producer.wait_until_sent()
    await asyncio.sleep(0)
    assert (broker.delays, len(producer._timers.tasks)) == (delays, timers)
    await producer.close()


@pytest.mark.parametrize(
    ("error", "is_told", "is_sent"),
    [
        (None, False, True),
        (PublishRefusedError("no queue"), True, False),
        (BrokerUnavailableError(), False, False),
    ],
    ids=["confirmed", "refused", "away"],
)
async def test_a_message_that_the_broker_does_not_take_is_left_to_the_sweeper(
    error: BrokerError | None, is_told: bool, is_sent: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    clock, broker, told = FakeClock(), Published(), list[str]()
    broker.error = error
    task = new_task(now=clock.now())
    store = SlowStore(clock, task, timedelta(0))
    producer = TaskMessageProducer(
        cast(TaskStore, store), cast(Broker, broker), clock, DispatchPolicy(), lambda: told.append("refused")
    )
    assert await producer.dispatch(task) is is_sent
    producer.on_event(TaskSubmittedEvent(task))
    await producer.close()
    assert told == ["refused"] * (2 * is_told)
    assert store.marked == [task.task_id] * (is_sent or 2 * is_told)
    assert len(caplog.messages) == is_told, "an outage is logged by the connection, and a refusal once"
    assert producer.refusal == ("no queue" if is_told else None)


async def test_a_refused_message_does_not_count_as_sent() -> None:
    """Else the task would look as if it waited for a worker, and longer after each refusal."""
    clock, broker = FakeClock(), Published()
    now, store = clock.now(), SlowStore(clock, new_task(now=clock.now()), timedelta(0))
    producer = TaskMessageProducer(cast(TaskStore, store), cast(Broker, broker), clock, DispatchPolicy())
    broker.error = PublishRefusedError("no queue")
    for not_before, delay in ((now, timedelta(seconds=20)), (now + timedelta(minutes=5), timedelta(minutes=5))):
        task = new_task(now=now).evolve(not_before=not_before)
        assert not await producer.dispatch(task)
        assert store.marks.pop() == MakeDue(task.task_id, task.dispatch_epoch, delay, was_refused=True)
    broker.error = None
    assert await producer.dispatch(new_task(now=now))
    assert producer.refusal is None
    await producer.close()


async def test_pending_dispatches_are_bounded_and_keep_no_parameters() -> None:
    clock, broker = FakeClock(), Published()
    due = clock.now() + timedelta(seconds=1)
    later = new_task(now=clock.now(), status=TaskStatus.RETRYING, not_before=due, next_dispatch_at=due)
    store = SlowStore(clock, later, timedelta(0))
    policy = DispatchPolicy(max_pending=400)
    producer = TaskMessageProducer(cast(TaskStore, store), cast(Broker, broker), clock, policy)
    tasks = [new_task(now=clock.now()) for _ in range(500)]
    for _ in tasks:
        producer.on_event(TaskRetryingEvent(later))
    for task in tasks:
        producer.on_event(TaskSubmittedEvent(task))
    assert len(producer._outgoing) == 400
    assert not any(isinstance(field, Task) for dispatch in producer._outgoing for field in dispatch)
    await producer.wait_until_sent()
    assert [message.task_id for message in broker.messages] == [task.task_id for task in tasks[:400]]
    assert len(producer._timers.tasks) == 400
    await producer.close()


async def test_a_task_that_comes_when_all_senders_have_just_ended_is_sent() -> None:
    clock, broker = FakeClock(), Held()
    task = new_task(now=clock.now())
    store = SlowStore(clock, task, timedelta(0))
    producer = TaskMessageProducer(cast(TaskStore, store), cast(Broker, broker), clock, DispatchPolicy())
    for _ in range(_MAX_SENDERS):
        producer.on_event(TaskSubmittedEvent(task))
    await eventually(lambda: broker.asked == _MAX_SENDERS)
    broker.gate.set()  # the confirms of all come together
    asyncio.get_running_loop().call_soon(producer.on_event, TaskSubmittedEvent(task))
    await asyncio.sleep(0)
    await producer.close()
    assert len(broker.messages) == _MAX_SENDERS + 1


async def test_while_the_broker_is_away_a_timer_reserves_nothing() -> None:
    clock, broker = FakeClock(), Published()
    broker.is_connected = False
    due = clock.now() + timedelta(seconds=1)
    task = new_task(now=clock.now(), status=TaskStatus.RETRYING, not_before=due, next_dispatch_at=due)
    store = SlowStore(clock, task, timedelta(seconds=10))
    producer = TaskMessageProducer(cast(TaskStore, store), cast(Broker, broker), clock, DispatchPolicy())
    producer.on_event(TaskRetryingEvent(task))
    await eventually(lambda: clock.sleeping == 1)
    clock.advance(1)
    await eventually(lambda: not producer._timers.tasks)
    assert (store.refused, broker.messages) == (0, [])
    await producer.close()


@pytest.mark.parametrize(("behind", "refused"), [(0, 0), (1, 1), (40, 2), (300, 3)])
async def test_a_timer_that_is_early_tries_again(behind: int, refused: int) -> None:
    clock, broker = FakeClock(), Published()
    due = clock.now() + 50 * MILLISECOND
    task = new_task(now=clock.now(), status=TaskStatus.RETRYING, not_before=due, next_dispatch_at=due)
    store = SlowStore(clock, task, behind * MILLISECOND)
    producer = TaskMessageProducer(cast(TaskStore, store), cast(Broker, broker), clock, DispatchPolicy())
    producer.on_event(TaskRetryingEvent(task))
    for pause in (50, 10, 50, 250):
        await eventually(lambda: clock.sleeping or broker.messages)
        clock.advance(pause * MILLISECOND)
        await asyncio.sleep(0)
    await eventually(lambda: broker.messages)
    assert store.refused == refused
    await producer.close()


async def test_a_timer_whose_task_somebody_else_took_gives_up() -> None:
    clock, broker = FakeClock(), Published()
    due = clock.now() + 50 * MILLISECOND
    task = new_task(now=clock.now(), status=TaskStatus.RETRYING, not_before=due, next_dispatch_at=due)
    store = SlowStore(clock, task.evolve(status=TaskStatus.RUNNING), timedelta(0))
    producer = TaskMessageProducer(cast(TaskStore, store), cast(Broker, broker), clock, DispatchPolicy())
    producer.on_event(TaskRetryingEvent(task))
    for pause in (50, 10, 50, 250):
        await eventually(lambda: clock.sleeping)
        clock.advance(pause * MILLISECOND)
    await eventually(lambda: store.refused == 4)
    await producer.close()
    assert broker.messages == []


_heard_in: ContextVar[str] = ContextVar("heard_in", default="nothing")


class Contexts(Published):
    """Notes in what context each message is published; the first one takes long."""

    def __init__(self) -> None:
        super().__init__()
        self.contexts: list[str] = []
        self.gate = asyncio.Event()

    async def publish(self, message: TaskMessage, *, delay: timedelta | None = None) -> None:
        self.contexts.append(_heard_in.get())
        await self.gate.wait()
        await super().publish(message, delay=delay)


async def test_a_sender_carries_no_log_context_or_span_from_one_task_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producer_module, "_MAX_SENDERS", 1)
    clock, broker = FakeClock(), Contexts()
    store = SlowStore(clock, new_task(now=clock.now()), timedelta(0))
    producer = TaskMessageProducer(cast(TaskStore, store), cast(Broker, broker), clock, DispatchPolicy())
    for name in ("one task", "another"):
        token = _heard_in.set(name)
        producer.on_event(TaskSubmittedEvent(new_task(now=clock.now())))
        _heard_in.reset(token)
    broker.gate.set()
    await producer.wait_until_sent()
    assert broker.contexts == ["nothing", "nothing"]
    assert len(broker.messages) == 2
    await producer.close()
