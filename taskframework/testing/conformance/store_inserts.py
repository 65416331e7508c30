"""Store suite: submission."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from taskframework.errors import ValueNotStorableError
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.model.task import new_task_id
from taskframework.model.task_fields import ParentLink, Subtasks
from taskframework.stores.base import TaskStore
from taskframework.stores.replies import Inserted
from taskframework.testing.conformance.comparison import differences
from taskframework.testing.conformance.store_suite import HOUR, StoreSuite, insert_one, put, put_running, read_task
from taskframework.testing.factories import new_task


class InsertCases(StoreSuite):
    """The promises of `insert` and `get`."""

    async def test_a_task_is_read_back_as_it_was_inserted(self, store: TaskStore) -> None:
        now = store.now()
        task = new_task(
            now=now,
            priority="high",
            traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            idempotency_key="key",
            deadline=now + HOUR,
            parent=ParentLink(new_task_id(), 2, 7),
            subtasks=Subtasks(3, {"n": 3}, 1, 1, 0),
            no_handler=2,
            purge_at=now + HOUR,
        )

        inserted = await insert_one(store, task)

        assert inserted.is_new
        assert differences(inserted.task, task, timedelta(0)) == []
        assert differences(await read_task(store, task.task_id), task, timedelta(0)) == []

    async def test_every_field_of_a_running_task_is_kept(self, store: TaskStore) -> None:
        task, _ = await put_running(store)
        assert differences(await read_task(store, task.task_id), task, timedelta(0)) == []

    async def test_an_unknown_priority_is_kept(self, store: TaskStore) -> None:
        task = await put(store, priority="of-a-newer-release")
        assert (await read_task(store, task.task_id)).priority == "of-a-newer-release"

    async def test_each_of_many_inserted_tasks_has_its_own_outcome(self, store: TaskStore) -> None:
        existing = await put(store, parameters={"n": 0})
        now = store.now()
        tasks = [new_task(now=now, parameters={"n": n}) for n in range(1200)]
        tasks[3] = new_task(now=now).evolve(parameters=object())
        tasks[5] = existing.evolve(parameters={"n": 5})

        replies = await store.insert(tasks)

        assert isinstance(replies[3], ValueNotStorableError)
        inserted = {at: reply for at, reply in enumerate(replies) if isinstance(reply, Inserted)}
        assert len(inserted) == 1199
        assert {at for at, reply in inserted.items() if not reply.is_new} == {5}
        assert inserted[5].task == existing
        assert all(reply.task.parameters == {"n": at} for at, reply in inserted.items() if reply.is_new)
        assert (await read_task(store, tasks[1199].task_id)).parameters == {"n": 1199}
        assert await store.insert([]) == []

    async def test_a_second_insert_of_an_id_gives_back_the_first_task(self, store: TaskStore) -> None:
        first = await put(store, parameters={"n": 1})

        second = await insert_one(store, new_task(task_id=first.task_id, parameters={"n": 2}, now=store.now()))

        assert not second.is_new
        assert second.task.parameters == {"n": 1}
        assert (await read_task(store, first.task_id)).parameters == {"n": 1}

    async def test_a_second_insert_returns_the_existing_task_as_it_is_now(self, store: TaskStore) -> None:
        task, _ = await put_running(store)
        second = await insert_one(store, new_task(task_id=task.task_id, now=store.now()))
        assert second.task.status is TaskStatus.RUNNING
        assert differences(second.task, task, timedelta(0)) == []

    async def test_one_of_many_inserts_of_one_task_is_new(self, store: TaskStore) -> None:
        task = new_task(now=store.now())
        inserted = await asyncio.gather(*(insert_one(store, task) for _ in range(50)))
        assert sum(each.is_new for each in inserted) == 1

    async def test_two_tasks_may_have_equal_fields_except_the_id(self, store: TaskStore) -> None:
        await put(store, idempotency_key="key")
        await put(store, idempotency_key="key")

    async def test_an_unknown_task_is_not_there(self, store: TaskStore) -> None:
        assert await store.get(new_task_id(), EVERYONE) is None
        assert await store.get("", EVERYONE) is None
        assert await store.get("$where", EVERYONE) is None
