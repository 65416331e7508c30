"""The collector: what becomes of the messages in the dead-letter queue."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import cast

import pytest

from taskframework.brokers.base import Broker, Delivery
from taskframework.errors import TaskUnreadableError
from taskframework.model.marks import MakeDue, Mark
from taskframework.model.message import TaskMessage
from taskframework.model.query import DeadMessage
from taskframework.model.scope import Scope
from taskframework.model.task import Task
from taskframework.operations.collector import DeadLetterCollector
from taskframework.stores.base import TaskStore
from taskframework.testing.eventually import eventually
from taskframework.testing.factories import new_task


class FakeStore:
    """Holds one task, which may be one of a newer release."""

    def __init__(self, task: Task, *, is_readable: bool = True) -> None:
        self._task = task
        self._is_readable = is_readable
        self.marks: list[Mark] = []
        self.kept: list[DeadMessage] = []
        self.may_keep = asyncio.Event()

    async def get(self, task_id: str, scope: Scope) -> Task | None:
        if not self._is_readable:
            raise TaskUnreadableError(task_id, "a status nobody here knows")
        return self._task

    async def mark(self, mark: Mark) -> None:
        self.marks.append(mark)

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    async def keep_dead_message(self, message: DeadMessage) -> None:
        await self.may_keep.wait()
        self.kept.append(message)


class FakeDelivery:
    headers: Mapping[str, str]

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.headers = {"x-first-death-reason": "delivery_limit"}
        self.queue = "tasks.dlq"
        self.is_acked = False

    async def ack(self) -> None:
        self.is_acked = True


@pytest.mark.parametrize("is_readable", [True, False])
async def test_a_task_whose_message_ended_here_gets_another_one(is_readable: bool) -> None:
    task = new_task()
    store, delivery = FakeStore(task, is_readable=is_readable), FakeDelivery(TaskMessage.for_task(task).to_body())
    collector = DeadLetterCollector(cast(TaskStore, store), cast(Broker, None))
    await collector._collect(cast(Delivery, delivery))
    assert delivery.is_acked
    # What a newer release wrote is its own to drive.
    assert store.marks == ([MakeDue(task.task_id, task.dispatch_epoch)] if is_readable else [])


async def test_dead_messages_are_acknowledged_after_they_are_kept_and_are_one_log_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, deliveries = FakeStore(new_task()), [FakeDelivery(b"\xff%d" % number) for number in range(5)]
    collector = DeadLetterCollector(cast(TaskStore, store), cast(Broker, None))
    for delivery in deliveries:
        collector._on_delivery(cast(Delivery, delivery))
    await eventually(lambda: len(collector._collecting.tasks) == 5)
    assert not any(delivery.is_acked for delivery in deliveries)
    store.may_keep.set()
    await eventually(lambda: not collector._collecting.tasks)
    assert all(delivery.is_acked for delivery in deliveries)
    assert len({message.id for message in store.kept}) == 5
    assert [record.message.partition(",")[0] for record in caplog.records] == ["dead letters kept: 5"]
