"""Store suite: lists by time, and searches by fields without an index."""

from __future__ import annotations

import sys
from dataclasses import fields, replace
from typing import Any

import pytest

from taskframework.model.limits import limit_ids
from taskframework.model.query import CursorInvalidError, TaskFilter
from taskframework.model.scope import EVERYONE, Scope
from taskframework.model.status import TaskStatus
from taskframework.model.task import new_task_id
from taskframework.model.task_fields import LimitWait, ParentLink
from taskframework.stores.base import TaskStore
from taskframework.testing.conformance.store_lists import all_pages
from taskframework.testing.conformance.store_suite import HOUR, SECOND, StoreSuite, make_error, put, put_final


class SearchCases(StoreSuite):
    """The promises of `list_tasks` about times, and of `search_tasks` about the other conditions."""

    async def test_tasks_are_listed_by_the_time_of_their_submission(self, store: TaskStore) -> None:
        now = store.now()
        tasks = [await put(store, created_at=now - n * SECOND) for n in range(5)]
        wanted = TaskFilter(created_after=tasks[3].created_at, created_before=tasks[0].created_at)
        assert await all_pages(store, wanted, 2) == tasks[1:4]
        ended = [await put_final(store, TaskStatus.FAILED, created_at=now - n * SECOND) for n in range(3)]
        late = TaskFilter(dead=True, created_after=ended[1].created_at)
        assert {task.task_id for task in await all_pages(store, late, 2)} == {task.task_id for task in ended[:2]}

    async def test_tasks_are_listed_by_the_time_of_their_end(self, store: TaskStore) -> None:
        now = store.now()
        tasks = [await put_final(store, TaskStatus.FAILED, finished_at=now - n * SECOND) for n in range(5)]
        await put(store)
        between = TaskFilter(finished_after=tasks[3].finished_at, finished_before=tasks[0].finished_at)
        for wanted in (replace(between, status=TaskStatus.FAILED), replace(between, dead=True)):
            assert {task.task_id for task in await all_pages(store, wanted, 2)} == {task.task_id for task in tasks[1:4]}
        for filter in (between, TaskFilter(finished_before=tasks[0].finished_at)):  # one task has not ended
            searched = await store.search_tasks(EVERYONE, filter, limit=10)
            assert searched == await store.list_tasks(EVERYONE, filter, limit=10)
            assert {task.task_id for task in searched.items} >= {task.task_id for task in tasks[1:4]}
            assert all(task.finished_at is not None for task in searched.items)
        early = TaskFilter(dead=True, ended_by=tasks[2].finished_at, finished_after=tasks[3].finished_at)
        assert {task.task_id for task in await all_pages(store, early, 2)} == {task.task_id for task in tasks[2:4]}

    async def test_tasks_are_found_by_fields_without_an_index(self, store: TaskStore) -> None:
        error = replace(make_error("The Bank ($1) is {gone}"), fingerprint="abc")
        wanted = {"correlation_id": "$order", "idempotency_key": "a-key", "error": error, "user_id": "bob"}
        parts = [{name: wanted[name]} for name in wanted if name != "user_id"]
        tasks = [await put_final(store, TaskStatus.FAILED, **wanted) for _ in range(3)]
        others = [await put_final(store, TaskStatus.FAILED, **part) for part in parts]
        for filter, count in (
            (TaskFilter(correlation_id="$order"), 4),
            (TaskFilter(idempotency_key="a-key"), 4),
            (TaskFilter(error="bank ($1) IS {"), 4),
            (TaskFilter(fingerprint="abc"), 4),
            (TaskFilter(correlation_id="$order", idempotency_key="a-key", error="gone", fingerprint="abc"), 3),
            (TaskFilter(error="$1)$"), 0),
            (TaskFilter(correlation_id="$correlation_id"), 0),
        ):
            searched = await store.search_tasks(EVERYONE, filter, limit=10)
            assert (len(searched.items), searched.next_cursor) == (count, None), filter
            assert await store.list_tasks(EVERYONE, filter, limit=10) == searched
        newest_first = sorted(tasks, key=lambda task: (task.created_at, task.task_id), reverse=True)
        bobs = await store.search_tasks(Scope.of("bob"), TaskFilter(TaskStatus.FAILED, fingerprint="abc"), limit=10)
        assert list(bobs.items) == newest_first
        assert others[0] not in bobs.items

    async def test_the_tasks_that_wait_for_one_key_of_a_limit_are_found(self, store: TaskStore) -> None:
        now = store.now()

        async def waits(limit: str, epoch: int = 1, **fields: Any) -> str:
            return (await put(store, waits_for_limit=LimitWait(limit, epoch, now + HOUR), **fields)).task_id

        [bucket, slots], [plain, _] = limit_ids("charge/a/b"), limit_ids("charge")
        found = [await waits(bucket), await waits(slots, status=TaskStatus.RETRYING)]
        of_all = await waits(plain)
        await waits(limit_ids("charge/other")[0])
        await waits(bucket, epoch=0)
        await put(store)
        for name, ids in (("charge/a/b", set(found)), ("charge", {of_all}), ("a/b", set[str]())):
            filter = TaskFilter(waits_for_limit=name)
            searched = await store.search_tasks(EVERYONE, filter, limit=10)
            assert {task.task_id for task in searched.items} == ids, name
            assert await store.list_tasks(EVERYONE, filter, limit=10) == searched

    @pytest.mark.parametrize("is_in_slot_order", [False, True])
    @pytest.mark.parametrize("name", [field.name for field in fields(TaskFilter)])
    async def test_no_condition_is_passed_over(self, store: TaskStore, name: str, is_in_slot_order: bool) -> None:
        parent = new_task_id()
        await put(store, parent=ParentLink(parent, 0, 0))
        late, early = store.now() + HOUR, store.now() - HOUR
        times = {"created_after": late, "created_before": early, "finished_after": early, "finished_before": late}
        unmet: dict[str, Any] = {"status": TaskStatus.FAILED, "batches": True, "dead": True, "ended_by": late, **times}
        chosen: dict[str, Any] = {"parent_task_id": parent} if is_in_slot_order else {}
        wanted = TaskFilter(**(chosen | {name: unmet.get(name, "of no task")}))
        for find in (store.list_tasks, *([store.search_tasks] if wanted.has_unindexed_condition else [])):
            found = await find(EVERYONE, wanted, limit=10)
            assert found.items == (), f"the store passes {name} over: see docs/adding/list-condition.md"

    @pytest.mark.parametrize("is_in_slot_order", [False, True])
    async def test_a_search_goes_on_where_its_page_ended(
        self, store: TaskStore, monkeypatch: pytest.MonkeyPatch, is_in_slot_order: bool
    ) -> None:
        for name in ("mongo.search", "sqlite.store"):
            if (module := sys.modules.get(f"taskframework.stores.{name}")) is not None:
                monkeypatch.setattr(module, "SEARCH_PAGE_SIZE", 4)
        now, parent = store.now(), new_task_id()
        ids = [f"{'sought' if n in (3, 4, 5, 10) else 'other'}" for n in range(11)]
        for n, correlation_id in enumerate(ids):
            link = ParentLink(parent, 0, len(ids) - n)
            await put(store, created_at=now - n * SECOND, correlation_id=correlation_id, parent=link)
        wanted = TaskFilter(parent_task_id=parent if is_in_slot_order else None, correlation_id="sought")
        pages, cursor = list[int](), None
        while True:
            page = await store.search_tasks(EVERYONE, wanted, limit=2, cursor=cursor)
            pages.append(len(page.items))
            assert {task.correlation_id for task in page.items} <= {"sought"}
            if (cursor := page.next_cursor) is None:
                break
        assert pages == [1, 2, 1]
        with pytest.raises(CursorInvalidError):
            await store.search_tasks(EVERYONE, wanted, limit=2, cursor="?")
