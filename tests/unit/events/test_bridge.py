"""The bridge: what was published is marked in the end, and not published again for that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import cast
from unittest.mock import AsyncMock, Mock

import pytest

from taskframework.clock import SystemClock
from taskframework.errors import BrokerUnavailableError, StoreUnavailableError
from taskframework.events.bridge import ROUND_SIZE, ExternalEventBridge
from taskframework.events.external import ExternalEvent
from taskframework.events.publisher import TaskEventPublisher
from taskframework.model.attempts import Claim
from taskframework.model.marks import Mark, MarkPublished
from taskframework.model.options import StreamPlace
from taskframework.model.status import TaskStatus
from taskframework.model.task import Task
from taskframework.model.task_fields import ParentLink
from taskframework.model.transitions import with_event
from taskframework.stores.base import TaskStore
from taskframework.testing.eventually import eventually
from taskframework.testing.factories import new_task


class Marks:
    """A store that is away for the first mark."""

    def __init__(self) -> None:
        self.is_away = True
        self.written: list[Mark] = []

    async def mark(self, *marks: Mark) -> None:
        if self.is_away:
            raise StoreUnavailableError
        self.written.extend(marks)


class Reports:
    """A reporter that has reported when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []
        self.is_hurried = False

    def handle_task(self, task: Task, on_done: Callable[[], None]) -> None:
        self.waiting.append(on_done)

    async def finished(self) -> None:
        """Nothing of it runs by itself."""
        self.is_hurried = True


class Publisher:
    def __init__(self) -> None:
        self.events: list[ExternalEvent] = []

    async def publish(self, events: Sequence[ExternalEvent]) -> None:
        for _ in range(3):
            await asyncio.sleep(0)  # as a broker that has to confirm it
        self.events.extend(events)


def _bridge(
    store: Marks, publisher: Publisher, reports: Reports | None = None, turns: Reports | None = None
) -> ExternalEventBridge:
    return ExternalEventBridge(
        cast(TaskStore, store),
        cast(TaskEventPublisher, publisher),
        "here",
        reports or Reports(),
        turns or Reports(),
        SystemClock(),
    )


async def test_a_mark_that_could_not_be_written_is_written_when_the_relay_comes_back() -> None:
    store, publisher, task = Marks(), Publisher(), new_task()
    bridge = _bridge(store, publisher)
    bridge.enqueue(task)
    await bridge.drain()
    assert [event.id for event in publisher.events] == [f"{task.task_id}-1"]
    store.is_away = False
    bridge.enqueue(task)
    await bridge.drain()
    assert store.written == [MarkPublished(task.task_id, 1)]
    assert len(publisher.events) == 1, "subscribers need not hear it twice"


async def test_a_publication_that_was_cancelled_before_it_began_holds_nothing_up() -> None:
    publisher, task = Publisher(), new_task()
    bridge = _bridge(Marks(), publisher)
    bridge.enqueue(task)
    assert bridge._pump is not None
    bridge._pump.cancel()
    await asyncio.sleep(0)
    draining = asyncio.create_task(bridge.drain())
    try:
        await eventually(draining.done, timeout=5)
    finally:
        draining.cancel()
    bridge.enqueue(task)
    await bridge.wait_until_published([task])
    assert [event.id for event in publisher.events] == [f"{task.task_id}-1"]


class BusyPublisher(Publisher):
    """While it publishes, the tasks report their progress again."""

    bridge: ExternalEventBridge

    def __init__(self, tasks: Sequence[Task]) -> None:
        super().__init__()
        self.tasks = tasks
        self.is_busy = True

    async def publish(self, events: Sequence[ExternalEvent]) -> None:
        await super().publish(events)
        for task in self.tasks if self.is_busy else ():
            self.bridge.enqueue(task, is_progress=True)


async def test_waiting_for_a_publication_does_not_wait_for_later_progress() -> None:
    tasks = [new_task(), new_task()]
    publisher = BusyPublisher(tasks)
    bridge = publisher.bridge = _bridge(Marks(), publisher)
    for task in tasks:
        bridge.enqueue(task)
    await asyncio.wait_for(bridge.wait_until_published(tasks), 10)
    assert {event.id for event in publisher.events} >= {f"{task.task_id}-1" for task in tasks}
    publisher.is_busy = False
    await bridge.drain()


async def test_there_is_room_when_no_more_tasks_wait_than_one_round_publishes() -> None:
    publisher = Publisher()
    bridge = _bridge(Marks(), publisher)
    await bridge.wait_for_room()
    for _ in range(3 * ROUND_SIZE):
        bridge.enqueue(new_task())
    await asyncio.wait_for(bridge.wait_for_room(), 10)
    assert len(publisher.events) >= ROUND_SIZE, "a second round is under way, and one more may wait"
    await bridge.drain()


async def test_there_is_no_room_while_marks_are_late(monkeypatch: pytest.MonkeyPatch) -> None:
    bridge, are_timely = _bridge(Marks(), Publisher()), asyncio.Event()
    monkeypatch.setattr(bridge._delayed_marks, "wait_while_late", are_timely.wait)
    waiting = asyncio.create_task(bridge.wait_for_room())
    await asyncio.sleep(0)
    assert not waiting.done()
    are_timely.set()
    await asyncio.wait_for(waiting, 10)


async def test_there_is_room_while_the_broker_is_away_because_the_relay_publishes_the_events() -> None:
    publisher = Mock(publish=AsyncMock(side_effect=BrokerUnavailableError))
    bridge = _bridge(Marks(), publisher)
    for _ in range(3 * ROUND_SIZE):
        bridge.enqueue(new_task())
    await asyncio.wait_for(bridge.wait_for_room(), 10)
    await bridge.drain()


async def test_parameters_do_not_wait_with_thousands_of_tasks_to_be_published() -> None:
    publisher, tasks = Publisher(), [new_task() for _ in range(3 * ROUND_SIZE)]
    bridge = _bridge(Marks(), publisher)
    for task in tasks:
        bridge.enqueue(task)
    newer = Claim(tasks[0].task_id, 1, "claim", "worker-1", timedelta(minutes=1)).apply(tasks[0], tasks[0].updated_at)
    assert newer is not None
    bridge.enqueue(newer)
    waiting = [waiting.task.parameters for waiting in bridge._waiting.values()]
    assert len(waiting) - waiting.count(None) == ROUND_SIZE - 1
    await bridge.drain()
    assert len(publisher.events) == len(tasks) + 1
    assert all("parameters" not in event.data for event in publisher.events)


async def test_an_event_that_is_marked_as_published_is_not_published_again() -> None:
    store, publisher, task = Marks(), Publisher(), new_task()
    bridge = _bridge(store, publisher)
    store.is_away = False
    bridge.enqueue(task.evolve(published_sequence=1, publish_at=None))
    await bridge.drain()
    assert (publisher.events, store.written) == ([], [])


async def test_an_older_state_that_comes_late_does_not_take_a_mark_back() -> None:
    store, publisher, task = Marks(), Publisher(), new_task()
    store.is_away = False
    bridge = _bridge(store, publisher)
    newer = Claim(task.task_id, 1, "claim", "worker-1", timedelta(minutes=1)).apply(task, task.updated_at)
    assert newer is not None
    bridge.enqueue(newer)
    await eventually(lambda: len(publisher.events) == 2)
    bridge.enqueue(task)
    await bridge.drain()
    assert store.written == [MarkPublished(task.task_id, 2)]
    assert len(publisher.events) == 2


async def test_a_task_that_is_stored_again_with_the_id_of_a_deleted_one_is_published_from_its_first_event() -> None:
    store, publisher, task = Marks(), Publisher(), new_task()
    store.is_away = False
    bridge = _bridge(store, publisher)
    bridge.enqueue(_over(task))
    await bridge.drain()
    bridge.enqueue(task.evolve(created_at=task.created_at + timedelta(days=30)))
    await bridge.drain()
    assert [event.sequence for event in publisher.events] == [1, 2, 1]
    assert store.written == [MarkPublished(task.task_id, 2), MarkPublished(task.task_id, 1)]


async def test_the_end_of_a_sub_task_is_marked_when_its_parent_knows_of_it() -> None:
    store, publisher, reports = Marks(), Publisher(), Reports()
    store.is_away = False
    bridge = _bridge(store, publisher, reports=reports)
    task = new_task(parent=ParentLink("parent", 0, 0))
    bridge.enqueue(task)
    await bridge.drain()
    assert store.written == [MarkPublished(task.task_id, 1)], "what is no end is reported to nobody"
    over = _over(task)
    bridge.enqueue(over)
    await bridge.drain()
    assert len(publisher.events) == 2
    assert len(store.written) == 1
    for then in reports.waiting:
        then()
    await bridge.drain()
    assert store.written[1:] == [MarkPublished(task.task_id, 2)]


async def test_waiting_for_a_publication_does_not_hurry_reports_to_parents() -> None:
    """A relay waits so, batch after batch: parents with many sub-tasks would be counted without a pause."""
    publisher, reports = Publisher(), Reports()
    bridge = _bridge(Marks(), publisher, reports=reports)
    tasks = [_over(new_task(parent=ParentLink("parent", 0, slot))) for slot in range(ROUND_SIZE + 1)]
    for task in tasks:
        bridge.enqueue(task)
    await bridge.wait_until_published(tasks)
    assert len(publisher.events) == 2 * len(tasks)
    assert (len(reports.waiting), reports.is_hurried) == (len(tasks), False)
    bridge.enqueue(new_task())
    await bridge.drain()
    assert reports.is_hurried, "the process ends"


async def test_a_task_in_a_stream_is_marked_when_somebody_has_looked_whose_turn_it_is() -> None:
    store, publisher, turns = Marks(), Publisher(), Reports()
    store.is_away = False
    bridge = _bridge(store, publisher, turns=turns)
    task = new_task(stream=StreamPlace("a", "serial", 0))
    for published, state in enumerate((task, _over(task)), 1):
        bridge.enqueue(state)
        await bridge.drain()
        assert (len(publisher.events), len(store.written)) == (published, published - 1)
        turns.waiting.pop()()
        await bridge.drain()
        assert store.written[published - 1 :] == [MarkPublished(task.task_id, published)]


async def test_an_older_state_of_a_sub_task_does_not_mark_an_end_that_is_not_reported() -> None:
    store, publisher = Marks(), Publisher()
    store.is_away = False
    bridge = _bridge(store, publisher)
    task = new_task(parent=ParentLink("parent", 0, 0))
    bridge.enqueue(_over(task))
    await eventually(lambda: len(publisher.events) == 2)
    bridge.enqueue(task)
    await bridge.drain()
    assert store.written == []


def _over(task: Task) -> Task:
    return with_event(task.evolve(status=TaskStatus.COMPLETED), "completed", task.updated_at)
