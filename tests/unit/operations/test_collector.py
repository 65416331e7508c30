"""The collector: what becomes of a message in the dead-letter queue whose task is there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import pytest

from taskframework.brokers.base import Broker, Delivery
from taskframework.errors import TaskUnreadableError
from taskframework.model.marks import MakeDue, Mark
from taskframework.model.message import TaskMessage
from taskframework.model.task import Task
from taskframework.operations.collector import DeadLetterCollector
from taskframework.stores.base import TaskStore
from taskframework.testing.factories import new_task


class FakeStore:
    """Holds one task, which may be one of a newer release."""

    def __init__(self, task: Task, *, is_readable: bool = True) -> None:
        self._task = task
        self._is_readable = is_readable
        self.marks: list[Mark] = []

    async def get(self, task_id: str) -> Task | None:
        if not self._is_readable:
            raise TaskUnreadableError(task_id, "a status nobody here knows")
        return self._task

    async def mark(self, mark: Mark) -> None:
        self.marks.append(mark)


class FakeDelivery:
    headers: Mapping[str, str]

    def __init__(self, task: Task) -> None:
        self.body = TaskMessage.for_task(task).to_body()
        self.headers = {"x-first-death-reason": "delivery_limit"}
        self.queue = "tasks.dlq"
        self.is_acked = False

    async def ack(self) -> None:
        self.is_acked = True


@pytest.mark.parametrize("is_readable", [True, False])
async def test_a_task_whose_message_ended_here_gets_another_one(is_readable: bool) -> None:
    task = new_task()
    store, delivery = FakeStore(task, is_readable=is_readable), FakeDelivery(task)
    collector = DeadLetterCollector(cast(TaskStore, store), cast(Broker, None))
    await collector._collect(cast(Delivery, delivery))
    assert delivery.is_acked
    # What a newer release wrote is its own to drive.
    assert store.marks == ([MakeDue(task.task_id, task.dispatch_epoch)] if is_readable else [])
