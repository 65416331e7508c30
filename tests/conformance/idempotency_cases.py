"""Idempotency keys, in the two steps of a submission, on the stores that the suites make."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import pytest

from taskframework import failpoint
from taskframework.errors import IdempotencyConflictError, ValueNotStorableError
from taskframework.model.idempotency import IDEMPOTENCY, IdempotencyKey
from taskframework.model.records import Record
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.model.task import Task
from taskframework.stores.base import TaskStore
from taskframework.stores.replies import Inserted
from taskframework.submission.idempotency import IdempotentInserts
from taskframework.submission.refusals import StreamModeError
from taskframework.testing.conformance.store_suite import (
    HOUR,
    MINUTE,
    StoreSuite,
    insert_one,
    lose_reply,
    put_final,
    read_task,
)
from taskframework.testing.factories import new_task
from tests.support.submission import keyed_inserts


class IdempotencyCases(StoreSuite):
    """What `IdempotentInserts` promises: one task for each key of a user, on any store."""

    def inserts(self, store: TaskStore) -> IdempotentInserts:
        return keyed_inserts(store, HOUR)

    async def test_the_same_key_of_the_same_user_is_the_same_task(self, store: TaskStore) -> None:
        first = await insert_one(self.inserts(store), _keyed(store, parameters={"n": 1}))
        second = await insert_one(self.inserts(store), _keyed(store, parameters={"n": 2}))
        assert first.is_new
        assert not second.is_new
        assert second.task == await read_task(store, first.task.task_id)
        assert second.task.parameters == {"n": 1}

    async def test_a_repeated_key_returns_the_task_as_it_is_now(self, store: TaskStore) -> None:
        there = await put_final(store, TaskStatus.COMPLETED, idempotency_key="key", parameters_hash="hash")
        await self._name(store, "key", there)
        assert (await insert_one(self.inserts(store), _keyed(store))).task == there

    async def test_a_key_with_other_contents_is_refused(self, store: TaskStore) -> None:
        first = await insert_one(self.inserts(store), _keyed(store))
        with pytest.raises(IdempotencyConflictError, match=first.task.task_id):
            await insert_one(self.inserts(store), _keyed(store, parameters_hash="other"))

    async def test_the_same_key_of_another_user_is_another_task(self, store: TaskStore) -> None:
        replies = [
            await insert_one(self.inserts(store), _keyed(store, user_id=user)) for user in ("alice", "bob", "a/key")
        ]
        assert all(reply.is_new for reply in replies)

    async def test_keys_that_look_alike_are_different(self, store: TaskStore) -> None:
        pairs = [("a", "b/c"), ("a/b", "c"), ("a", "b%2Fc"), ("a%2Fb", "c"), ("$a", "b.c"), ("a", "")]
        replies = [await insert_one(self.inserts(store), _keyed(store, user_id=user, key=key)) for user, key in pairs]
        assert all(reply.is_new for reply in replies)

    async def test_one_of_many_concurrent_submissions_of_one_key_is_new(self, store: TaskStore) -> None:
        tasks = [_keyed(store) for _ in range(50)]
        replies = await asyncio.gather(*(insert_one(self.inserts(store), task) for task in tasks))
        assert sum(reply.is_new for reply in replies) == 1
        [task_id] = {reply.task.task_id for reply in replies}
        assert (await read_task(store, task_id)).correlation_id == task_id

    async def test_each_task_with_or_without_a_key_has_its_own_outcome(self, store: TaskStore) -> None:
        known = (await insert_one(self.inserts(store), _keyed(store, key="known"))).task
        tasks = [new_task(now=store.now(), parameters={"n": n}) for n in range(1_200)]
        tasks[3] = new_task(now=store.now()).evolve(parameters=object())
        tasks[4] = _keyed(store, key="never").evolve(parameters=object())
        tasks[5] = _keyed(store, key="known")
        tasks[6] = _keyed(store, key="known", parameters_hash="other")
        for at in (7, 700, 1_199):
            tasks[at] = _keyed(store, key="many", parameters={"n": at})

        replies = await self.inserts(store).insert(tasks)

        assert [at for at, reply in enumerate(replies) if not isinstance(reply, Inserted)] == [3, 4, 6]
        assert isinstance(replies[4], ValueNotStorableError)
        assert isinstance(replies[6], IdempotencyConflictError)
        inserted = {at: reply for at, reply in enumerate(replies) if isinstance(reply, Inserted)}
        assert [at for at, reply in inserted.items() if not reply.is_new] == [5, 700, 1_199]
        assert inserted[5].task.task_id == known.task_id
        assert {inserted[at].task.task_id for at in (7, 700, 1_199)} == {tasks[7].task_id}
        assert (await read_task(store, tasks[7].task_id)).parameters == {"n": 7}
        assert await self.inserts(store).insert([]) == []

    async def test_a_task_that_cannot_be_stored_leaves_its_key_free(self, store: TaskStore) -> None:
        with pytest.raises(ValueNotStorableError):
            await insert_one(self.inserts(store), _keyed(store).evolve(parameters=object()))
        assert (await insert_one(self.inserts(store), _keyed(store, parameters_hash="corrected"))).is_new

    async def test_a_refused_request_leaves_its_key_free_for_another(self, store: TaskStore) -> None:
        refused = keyed_inserts(store, HOUR, _Refusing())
        with pytest.raises(StreamModeError):
            await insert_one(refused, _keyed(store))
        corrected = await insert_one(self.inserts(store), _keyed(store, parameters_hash="corrected"))
        assert corrected.is_new
        assert (await insert_one(self.inserts(store), _keyed(store, parameters_hash="corrected"))).is_new is False
        with pytest.raises(IdempotencyConflictError, match=corrected.task.task_id):
            await insert_one(self.inserts(store), _keyed(store))

    async def test_a_refusal_frees_no_key_under_which_another_request_stored_a_task(self, store: TaskStore) -> None:
        async def store_another() -> None:
            stored.append(await insert_one(self.inserts(store), _keyed(store)))

        stored: list[Inserted] = []
        with pytest.raises(StreamModeError):
            await insert_one(keyed_inserts(store, HOUR, _Refusing(store_another)), _keyed(store))
        again = await insert_one(self.inserts(store), _keyed(store))
        assert (again.task.task_id, again.is_new) == (stored[0].task.task_id, False)
        with pytest.raises(IdempotencyConflictError):
            await insert_one(self.inserts(store), _keyed(store, parameters_hash="other"))

    async def test_a_new_key_is_written_once(self, store: TaskStore, monkeypatch: pytest.MonkeyPatch) -> None:
        async def counted(records: Sequence[Record]) -> Sequence[Record | None]:
            written.append(len(records))
            return await write(records)

        written: list[int] = []
        write = store.write_records
        monkeypatch.setattr(store, "write_records", counted)
        await insert_one(self.inserts(store), _keyed(store))
        assert written == [1]

    async def test_a_key_whose_task_is_deleted_before_the_insert_stands_for_the_new_task(
        self, store: TaskStore
    ) -> None:
        deleted = await self._put_over(store)
        inserts = keyed_inserts(store, HOUR, _InsertingLater(store, partial(_purge_one, store)))
        again = await insert_one(inserts, _keyed(store))
        assert (again.task.task_id, again.is_new) == (deleted.task_id, True)
        repeated = await insert_one(self.inserts(store), _keyed(store))
        assert (repeated.task.task_id, repeated.is_new) == (again.task.task_id, False)

    async def test_of_two_tasks_for_a_key_whose_task_was_deleted_the_one_that_the_key_names_stays(
        self, store: TaskStore
    ) -> None:
        async def delete_and_submit() -> None:
            await _purge_one(store)
            others.append(await insert_one(self.inserts(store), _keyed(store)))

        others: list[Inserted] = []
        deleted = await self._put_over(store)
        late = await insert_one(keyed_inserts(store, HOUR, _InsertingLater(store, delete_and_submit)), _keyed(store))
        assert (late.task.task_id, late.is_new) == (others[0].task.task_id, False)
        assert (await read_task(store, deleted.task_id)).status is TaskStatus.CANCELLED
        assert (await read_task(store, late.task.task_id)).status is TaskStatus.QUEUED

    async def test_a_submission_that_died_before_its_task_is_finished_by_the_next(self, store: TaskStore) -> None:
        dead = _keyed(store)
        failpoint.arm("submit.after_key", _dies)
        try:
            with pytest.raises(_Dead):
                await insert_one(self.inserts(store), dead)
        finally:
            failpoint.disarm("submit.after_key")
        assert await store.get(dead.task_id, EVERYONE) is None
        with pytest.raises(IdempotencyConflictError):
            await insert_one(self.inserts(store), _keyed(store, parameters_hash="other"))
        assert await store.get(dead.task_id, EVERYONE) is None
        second, third = await asyncio.gather(*(insert_one(self.inserts(store), _keyed(store)) for _ in range(2)))
        assert {second.task.task_id, third.task.task_id} == {dead.task_id}
        assert {second.is_new, third.is_new} == {True, False}
        assert (await insert_one(self.inserts(store), dead)).is_new is False, "the dead one was only late"

    @pytest.mark.parametrize("point", ["record.reply", "submit.reply"])
    @pytest.mark.parametrize("together", [1, 5])
    async def test_a_lost_reply_makes_no_second_task(self, store: TaskStore, point: str, together: int) -> None:
        tasks = [_keyed(store, key=f"key-{n}") for n in range(together)]
        with lose_reply(point):
            await self.inserts(store).insert(tasks)
        again = await self.inserts(store).insert([_keyed(store, key=f"key-{n}") for n in range(together)])
        found = [reply.task.task_id for reply in again if isinstance(reply, Inserted)]
        assert found == [task.task_id for task in tasks]

    async def test_a_record_that_names_another_task_than_the_store_knows_is_corrected(self, store: TaskStore) -> None:
        """Nothing of this release does that; a store that an earlier one writes to may answer with another task."""
        there = (await insert_one(self.inserts(store), _keyed(store, key="there"))).task
        inserts = keyed_inserts(_Knowing(store, there), HOUR)
        reply = await insert_one(inserts, _keyed(store))
        assert (reply.task.task_id, reply.is_new) == (there.task_id, False)
        assert (await insert_one(self.inserts(store), _keyed(store))).task.task_id == there.task_id

    async def _put_over(self, store: TaskStore) -> Task:
        """Insert a task with a key that the retention deletes next."""
        ended: dict[str, Any] = {"finished_at": store.now() - HOUR, "publish_at": None, "parameters_hash": "hash"}
        task = await put_final(store, TaskStatus.COMPLETED, idempotency_key="key", **ended)
        await self._name(store, "key", task)
        return task

    async def _name(self, store: TaskStore, key: str, task: Task) -> None:
        """Write the record of a key as a submission of this task does."""
        content = IdempotencyKey(task.task_id, task.parameters_hash)
        await store.write_records([IDEMPOTENCY.new("alice", key, content=content, expires_at=store.now() + HOUR)])


class _Dead(Exception):  # noqa: N818 - a crash
    """What happens to a process here."""


async def _dies() -> None:
    raise _Dead


class _Refusing:
    """Refuses every task, after something else happened."""

    def __init__(self, first: Callable[[], Awaitable[None]] | None = None) -> None:
        self._first = first

    async def insert(self, tasks: Sequence[Task]) -> Sequence[Exception]:
        if self._first is not None:
            await self._first()
        return [StreamModeError("stream", "serial") for _ in tasks]


class _InsertingLater:
    """Stores tasks after something else happened, the first time."""

    def __init__(self, store: TaskStore, first: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self._first: Callable[[], Awaitable[None]] | None = first

    async def insert(self, tasks: Sequence[Task]) -> Sequence[Inserted | Exception]:
        first, self._first = self._first, None
        if first is not None:
            await first()
        return await self._store.insert(tasks)


async def _purge_one(store: TaskStore) -> None:
    assert await store.purge(finished=MINUTE, dead_letters=None, limit=10) == 1


class _Knowing:
    """A store that answers each insert with a task it knows."""

    def __init__(self, store: TaskStore, there: Task) -> None:
        self._store = store
        self._there = there

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def insert(self, tasks: Sequence[Task]) -> Sequence[Inserted]:
        return [Inserted(self._there, is_new=False) for _ in tasks]


def _keyed(store: TaskStore, key: str = "key", **values: Any) -> Task:
    usual: dict[str, Any] = {"now": store.now(), "user_id": "alice", "idempotency_key": key, "parameters_hash": "hash"}
    task = new_task(**(usual | values))
    return task.evolve(correlation_id=task.task_id)
