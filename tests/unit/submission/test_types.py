"""What workers declare of their task types, and what others read of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from taskframework import BackgroundTaskExecutable, TaskContext, TaskOptions
from taskframework.stores.sqlite import SqliteStore
from taskframework.submission.types import TaskTypes
from taskframework.tasks.declarations import TaskDeclaration
from taskframework.tasks.registry import TaskRegistry
from taskframework.testing.clock import FakeClock


def declares(store: SqliteStore, *names: str, max_attempts: int = 1, parameters: Any = str) -> TaskTypes:
    """The types of a process that executes types of these names."""
    registry = TaskRegistry()
    for name in names:

        class Counts(BackgroundTaskExecutable[parameters, int]):
            task_type = name
            options = TaskOptions(max_attempts=max_attempts)

            async def execute(self, context: TaskContext[Any]) -> int:
                return 1

        registry.register(Counts)
    return TaskTypes(registry, store)


async def known(store: SqliteStore) -> dict[str, int | None]:
    """What a process without any type knows of them: their attempts."""
    return {each.task_type: each.max_attempts for each in await TaskTypes(TaskRegistry(), store).list_known()}


async def test_the_last_one_to_start_counts(store: SqliteStore, clock: FakeClock) -> None:
    await declares(store, "one", "other").declare()
    clock.advance(60)
    await declares(store, "one", max_attempts=9).declare()
    assert await known(store) == {"one": 9, "other": 1}
    found = await TaskTypes(TaskRegistry(), store).find(["one"])
    assert isinstance(found["one"], TaskDeclaration)
    assert found["one"].declared_at == clock.now()


async def test_two_programs_with_different_types_of_one_name_are_noticed(
    store: SqliteStore, caplog: pytest.LogCaptureFixture
) -> None:
    await declares(store, "one", "other").declare()
    await declares(store, "one", max_attempts=9).declare()
    assert caplog.messages == []
    await declares(store, "one", parameters=int).declare()
    [told] = caplog.messages
    assert told.startswith("the parameters of task type one differ from those that a worker declared at ")


async def test_workers_that_start_at_once_declare_the_same(store: SqliteStore) -> None:
    workers = [declares(store, *(f"type-{n:03}" for n in range(600))) for _ in range(4)]
    await asyncio.gather(*(worker.declare() for worker in workers))
    assert await known(store) == {f"type-{n:03}": 1 for n in range(600)}


async def test_a_process_without_types_declares_nothing(store: SqliteStore) -> None:
    await declares(store).declare()
    assert await known(store) == {}
