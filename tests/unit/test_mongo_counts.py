"""Counting tasks in MongoDB when the server's own counter is wrong, as it is after the server was killed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from taskframework.errors import StoreUnavailableError
from taskframework.model.status import TaskStatus
from taskframework.stores.mongo import queries
from taskframework.stores.mongo.collection import Collection
from taskframework.stores.mongo.traffic import TrafficCalls


class Tasks:
    """A collection in which tasks are completed while somebody counts them."""

    def __init__(self, *, lost: int, arrivals: int = 0, is_too_large: bool = False) -> None:
        self.run, self.true, self.lost = 1, 100, lost
        self._arrivals = arrivals
        self._is_too_large = is_too_large
        self.counted = 0

    async def server_run(self) -> int:
        return self.run

    async def count_all(self) -> int:
        return self.true + 5 - self.lost

    async def aggregate(self, pipeline: Sequence[Any], *, at_one_moment: bool = False) -> list[dict[str, Any]]:
        running = {"_id": "RUNNING", "count": 5}
        if pipeline is queries.COUNT_UNCOMPLETED:
            return [running]
        self.counted += 1
        if self._is_too_large:
            raise StoreUnavailableError("it takes too long")
        counted, self.true = self.true, self.true + self._arrivals
        return [running, {"_id": "COMPLETED", "count": counted}]


class Store(TrafficCalls):
    def __init__(self, tasks: Tasks) -> None:
        super().__init__()
        self.fake = tasks

    @property
    def _tasks(self) -> Collection:
        return cast(Collection, self.fake)


@pytest.mark.parametrize("lost", [0, 7, -3])
async def test_a_counter_that_is_wrong_after_a_killed_server_is_corrected(lost: int) -> None:
    tasks = Tasks(lost=lost)
    store = Store(tasks)
    for tasks.true in (100, 140):
        assert await store.count_by_status() == dict.fromkeys(TaskStatus, 0) | {
            TaskStatus.COMPLETED: tasks.true,
            TaskStatus.RUNNING: 5,
        }
    assert tasks.counted == 1, "a true count is made once"
    tasks.run, tasks.lost = 2, 11
    assert (await store.count_by_status())[TaskStatus.COMPLETED] == 140
    assert tasks.counted == 2, "and again after the server was started anew"


async def test_tasks_that_come_during_the_count_are_no_error_of_the_counter() -> None:
    tasks = Tasks(lost=0, arrivals=9)
    assert (await Store(tasks).count_by_status())[TaskStatus.COMPLETED] == 109


async def test_where_there_are_too_many_to_count_the_counter_is_believed() -> None:
    tasks = Tasks(lost=7, is_too_large=True)
    store = Store(tasks)
    assert [(await store.count_by_status())[TaskStatus.COMPLETED] for _ in range(2)] == [93, 93]
    assert tasks.counted == 1
