"""Store suite: tasks outside a scope do not exist for the caller, in whatever way the caller asks for them."""

from __future__ import annotations

import pytest

from taskframework.model.interventions import Cancel, Replay
from taskframework.model.query import TaskFilter
from taskframework.model.scope import EVERYONE, Scope
from taskframework.model.status import TaskStatus
from taskframework.stores.base import TaskStore
from taskframework.testing.conformance.store_suite import SECOND, StoreSuite, expect_refusal, make_move, put, put_final

ALICE = Scope.of("alice")
#: They include names that a careless filter takes for "anybody", or for a part of a name.
STRANGERS = [Scope.of(name) for name in ("bob", "", "ALICE", "alice ", "ali", "$ne", "%", "None")]


class ScopeCases(StoreSuite):
    """The effect of the scope on every read and operation."""

    async def test_a_task_is_read_by_its_owner_and_in_the_scope_of_everyone(self, store: TaskStore) -> None:
        task = await put(store, user_id="alice")
        for scope in (ALICE, EVERYONE):
            assert await store.get(task.task_id, scope) == task

    @pytest.mark.parametrize("stranger", STRANGERS, ids=str)
    async def test_a_stranger_reads_lists_and_changes_nothing(self, store: TaskStore, stranger: Scope) -> None:
        task = await put(store, user_id="alice")
        dead = await put_final(store, TaskStatus.FAILED, user_id="alice")
        assert await store.get(task.task_id, stranger) is None
        for filter in (TaskFilter(), TaskFilter(TaskStatus.QUEUED), TaskFilter(dead=True)):
            assert (await store.list_tasks(stranger, filter, limit=10)).items == ()
        await expect_refusal(store, Cancel(task.task_id, stranger, "bob", None))
        await expect_refusal(store, Replay(dead.task_id, stranger, "bob", SECOND))

    async def test_each_owner_lists_only_own_tasks(self, store: TaskStore) -> None:
        mine, theirs = await put(store, user_id="alice"), await put(store, user_id="bob")
        my_dead = await put_final(store, TaskStatus.FAILED, user_id="alice")
        await put_final(store, TaskStatus.DEAD_LETTER, user_id="bob")
        listed = (await store.list_tasks(ALICE, TaskFilter(), limit=10)).items
        assert {task.task_id for task in listed} == {mine.task_id, my_dead.task_id}
        assert (await store.list_tasks(ALICE, TaskFilter(dead=True), limit=10)).items == (my_dead,)
        assert (await store.list_tasks(Scope.of("bob"), TaskFilter(TaskStatus.QUEUED), limit=10)).items == (theirs,)
        assert len((await store.list_tasks(EVERYONE, TaskFilter(), limit=10)).items) == 4

    async def test_an_owner_changes_own_tasks(self, store: TaskStore) -> None:
        task = await put(store, user_id="alice")
        await make_move(store, Cancel(task.task_id, ALICE, "alice", None))
        await make_move(store, Replay(task.task_id, ALICE, "alice", SECOND))
