"""What workers declare of their task types, and what others read of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from taskframework import BackgroundTaskExecutable, TaskContext, TaskOptions
from taskframework.model.workers import LOST_AFTER, PRESENCE, Presence
from taskframework.stores.sqlite import SqliteStore
from taskframework.submission.types import TaskTypes
from taskframework.tasks.declarations import DECLARATION, TaskDeclaration
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


async def test_the_declaration_of_the_last_worker_to_start_counts(store: SqliteStore, clock: FakeClock) -> None:
    await declares(store, "one", "other").declare("worker-1")
    clock.advance(60)
    await declares(store, "one", max_attempts=9).declare("worker-1")
    assert await known(store) == {"one": 9, "other": 1}
    found = await TaskTypes(TaskRegistry(), store).find(["one"])
    assert isinstance(found["one"], TaskDeclaration)
    assert found["one"].declared_at == clock.now()


async def test_two_programs_with_different_types_of_one_name_are_noticed(
    store: SqliteStore, caplog: pytest.LogCaptureFixture
) -> None:
    await declares(store, "one", "other").declare("worker-1")
    await declares(store, "one", max_attempts=9).declare("worker-1")
    assert caplog.messages == []
    await declares(store, "one", parameters=int).declare("worker-1")
    [told] = caplog.messages
    assert told.startswith("the parameters of task type one differ from those that a worker declared at ")


async def test_workers_that_start_at_once_declare_the_same(store: SqliteStore) -> None:
    workers = [declares(store, *(f"type-{n:03}" for n in range(600))) for _ in range(4)]
    await asyncio.gather(*(worker.declare("worker-1") for worker in workers))
    assert await known(store) == {f"type-{n:03}": 1 for n in range(600)}


async def test_a_process_without_types_declares_nothing(store: SqliteStore) -> None:
    await declares(store).declare("worker-1")
    assert await known(store) == {}


async def report(store: SqliteStore, worker_id: str) -> None:
    now = store.now()
    presence = Presence(worker_id, "host", 1, "1.0", ("one",), 10, 0, now, now)
    await store.write_records([PRESENCE.new(worker_id, content=presence)])


async def test_a_release_that_was_tried_and_stopped_does_not_keep_its_declaration(
    store: SqliteStore, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    present, tried = declares(store, "one", "other"), declares(store, "one", "newer", max_attempts=9)
    await present.declare("worker-1")
    started_at = clock.now()
    await tried.declare("worker-2")
    clock.advance(25)
    await present.keep_declared()
    assert await known(store) == {"newer": 9, "one": 9, "other": 1}, "it may run, and its presence not be seen yet"
    await report(store, "worker-2")
    clock.advance(40 + LOST_AFTER.total_seconds())
    await present.keep_declared()
    assert await known(store) == {"newer": 9, "one": 1, "other": 1}
    assert caplog.messages[-1] == "declared again, because the declaration was lost or its worker is gone: one"
    found = await TaskTypes(TaskRegistry(), store).find(["one"])
    assert isinstance(found["one"], TaskDeclaration)
    assert found["one"].declared_at == started_at, "that is when its worker started"
    caplog.clear()
    await present.keep_declared()
    assert caplog.messages == []


async def test_a_release_that_runs_keeps_its_declaration(store: SqliteStore, clock: FakeClock) -> None:
    before, now = declares(store, "one"), declares(store, "one", max_attempts=9)
    await before.declare("worker-1")
    await now.declare("worker-2")
    clock.advance(120)
    await report(store, "worker-2")
    await before.keep_declared()
    assert await known(store) == {"one": 9}


async def test_a_declaration_of_an_earlier_release_is_left_alone(store: SqliteStore, clock: FakeClock) -> None:
    """It does not say who did: its workers may still run."""
    types = declares(store, "one")
    await types.declare("worker-1")
    [stored] = (await store.read_records([DECLARATION.id_of("one")])).values()
    data = {name: value for name, value in stored.data.items() if name != "declared_by"}
    await store.write_records([replace(stored, data={**data, "max_attempts": 9})])
    clock.advance(120)
    await types.keep_declared()
    assert await known(store) == {"one": 9}


async def test_a_lost_declaration_is_made_again(store: SqliteStore, clock: FakeClock) -> None:
    types = declares(store, "one", "other")
    await types.keep_declared()
    assert await known(store) == {}, "its worker has not started"
    await types.declare("worker-1")
    await store.delete_records(list((await store.read_records([DECLARATION.id_of("one")])).values()))
    await types.keep_declared()
    assert await known(store) == {"one": 1, "other": 1}
