"""The workers as operators see them, on both stores: who is there, and what each of them runs."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest

from taskframework import ConfigurationError, Settings, TaskFramework, TaskframeworkError
from taskframework.api.app import create_app
from taskframework.api.views import TaskPage, WorkerPage
from taskframework.model.query import TaskFilter
from taskframework.model.records import Record
from taskframework.model.schedules import SCHEDULE
from taskframework.model.scope import EVERYONE
from taskframework.schedules import all_schedules
from taskframework.stores.base import TaskStore
from taskframework.submission.types import declared_types
from taskframework.tasks.declarations import DECLARATION
from taskframework.testing.eventually import eventually
from taskframework.worker.presence import SignOfLife
from tests.flow.conftest import BOTH, Run
from tests.support.kitchen_sink import CountWords, Waits

pytestmark = pytest.mark.parametrize("urls", BOTH, indirect=True)

WORKERS = "/api/v1/admin/workers"


async def test_a_worker_is_listed_with_what_it_runs_until_it_stops(run: Run) -> None:
    async with (
        run(concurrency=7) as framework,
        httpx.AsyncClient(transport=httpx.ASGITransport(create_app(framework)), base_url="http://api") as client,
    ):
        first = await framework.submit("waits")
        second = await framework.submit("waits")
        await eventually(lambda: Waits.started == 2, what="both run")
        assert framework.process.worker is not None
        await framework.process.worker.sign_of_life.write()  # now, instead of within ten seconds

        [worker] = WorkerPage.model_validate((await client.get(WORKERS)).json(), strict=False).items
        assert (worker.worker_id, worker.is_lost) == (framework.process.worker.worker_id, False)
        assert (worker.in_flight, worker.concurrency) == (2, 7)
        assert worker.task_types == sorted(framework.registry.task_types)

        tasks = f"{WORKERS}/{worker.worker_id}/tasks"
        newest = TaskPage.model_validate((await client.get(tasks, params={"limit": 1})).json(), strict=False)
        assert [task.task_id for task in newest.items] == [second.task_id]
        rest = TaskPage.model_validate(
            (await client.get(tasks, params={"cursor": newest.next_cursor})).json(), strict=False
        )
        assert [(task.task_id, task.attempt, task.started_at is not None) for task in rest.items] == [
            (first.task_id, 1, True)
        ]
        unknown = await client.get(f"{WORKERS}/somebody-else/tasks")
        assert (unknown.status_code, unknown.json()["code"]) == (404, "worker_not_found")
        Waits.gate.set()
    async with framework.store_only():
        assert (await framework.services.workers.list_workers(limit=10)).items == ()


async def test_a_worker_whose_start_fails_leaves_nothing_behind(run: Run, settings: Callable[..., Settings]) -> None:
    """Others would check submissions by the types of a release that never ran, and miss its worker."""
    schedule = {"cron": "99 * * * *", "task_type": "waits"}
    with pytest.raises(TaskframeworkError, match="99"):
        async with run(schedules={"nightly": schedule}):
            pass
    async with TaskFramework(settings()).store_only() as framework:
        assert await framework.services.types.names() == []
        assert (await framework.services.workers.list_workers(limit=10)).items == ()


async def test_a_process_that_cannot_listen_begins_no_task(settings: Callable[..., Settings]) -> None:
    async with TaskFramework(settings()).store_only() as framework:
        framework.register(CountWords)
        task = await framework.submit("count-words", {"text": "a"})
    with socket.create_server(("127.0.0.1", 0)) as taken:
        framework = TaskFramework(settings(api={"host": "127.0.0.1", "port": taken.getsockname()[1]}))
        framework.register(CountWords)
        with pytest.raises(ConfigurationError, match="is in use"):
            async with framework.running(worker=True, api=True):
                pass
    async with TaskFramework(settings()).store_only() as framework:
        assert (await framework.get(task.task_id)).attempts == 0


async def test_a_schedule_that_the_settings_no_longer_name_does_not_run_once_more(
    run: Run, settings: Callable[..., Settings]
) -> None:
    schedule = {"every": "1h", "task_type": "count-words", "parameters": {"text": "a"}}
    async with run(schedules={"nightly": schedule}):
        pass
    async with TaskFramework(settings()).store_only() as framework:
        store = framework.services.store
        [record] = await all_schedules(store)
        due = replace(SCHEDULE.content(record), next_at=store.now(), due_at=store.now())
        await store.write_records([SCHEDULE.changed(record, due)])
    async with run() as framework:
        await eventually(lambda: all(repair.looks for repair in framework.process.repairs))
        assert (await framework.services.tasks.list_tasks(EVERYONE, TaskFilter(), limit=5)).items == ()
        assert await all_schedules(framework.services.store) == []


async def test_a_sign_of_life_that_is_being_written_when_the_start_fails_is_deleted_too(
    run: Run, settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Sequence[Record]] = []
    withdrawn = asyncio.Event()

    class LateStore:
        """Writes when the record is withdrawn, even if nobody waits for the write any more."""

        def __init__(self, store: TaskStore) -> None:
            self._store = store

        def __getattr__(self, name: str) -> Any:
            return getattr(self._store, name)

        async def write_records(self, records: Sequence[Record]) -> None:
            begun.append(records)
            await asyncio.shield(asyncio.create_task(self._write_late(records)))

        async def _write_late(self, records: Sequence[Record]) -> None:
            await withdrawn.wait()
            await self._store.write_records(records)

    class LateSignOfLife(SignOfLife):
        def __init__(self, store: TaskStore, *args: Any) -> None:
            super().__init__(LateStore(store), *args)  # type: ignore[arg-type]

        async def withdraw(self) -> None:
            withdrawn.set()
            await super().withdraw()

    async def fail_when_begun(*args: object) -> None:
        await eventually(lambda: bool(begun), what="a first sign of life is being written")
        raise ZeroDivisionError

    monkeypatch.setattr("taskframework.wiring.worker.SignOfLife", LateSignOfLife)
    monkeypatch.setattr("taskframework.wiring.worker.start_worker", fail_when_begun)
    with pytest.raises(ZeroDivisionError):
        async with run():
            pass
    async with TaskFramework(settings()).store_only() as framework:
        assert (await framework.services.workers.list_workers(limit=10)).items == ()


async def test_a_lost_declaration_is_made_again(run: Run) -> None:
    async with run() as framework:
        store = framework.services.store
        before = await declared_types(store)
        lost = await store.read_records([DECLARATION.id_of(each.task_type) for each in before])
        await store.delete_records(list(lost.values()))
        (loop,) = [repair for repair in framework.process.repairs if repair.name == "declarations"]
        await loop._run_once()  # now, instead of within ten seconds
        assert await declared_types(store) == before
