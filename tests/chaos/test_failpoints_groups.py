"""Replies that are lost on their way to a group of callers, in every store: each finds out what became of its write."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from taskframework import failpoint
from taskframework.errors import StoreError, StoreUnavailableError, TaskUnreadableError, ValueNotStorableError
from taskframework.model.attempts import Claim, Complete, Fail
from taskframework.model.interventions import Cancel, Expire, Postpone, Reap, Replay
from taskframework.model.marks import Mark, MarkDispatched, MarkPublished, ReserveDispatch
from taskframework.model.query import DeadMessage
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.model.task import Task
from taskframework.model.transitions import Fence, Transition
from taskframework.stores.base import TaskStore
from taskframework.stores.mongo.store import MongoStore
from taskframework.stores.sqlite import SqliteStore
from taskframework.testing.conformance.store_suite import (
    HOUR,
    MINUTE,
    SECOND,
    insert_one,
    make_claim,
    make_error,
    put,
    put_running,
    read_task,
)
from taskframework.testing.factories import new_task

T = TypeVar("T")

_MANY = 30
_TOO_LARGE_TOGETHER = 9 * 1024 * 1024
#: A transition of nobody's running code, the point behind its reply, and the task it can be made on.
_INTERVENTIONS: dict[str, tuple[Callable[[Task], Transition], dict[str, object]]] = {
    "cancel": (lambda task: Cancel(task.task_id, EVERYONE, "alice", None), {}),
    "replay": (lambda task: Replay(task.task_id, EVERYONE, "alice", SECOND), {"status": TaskStatus.FAILED}),
    "expire": (lambda task: Expire(task.task_id), {"deadline": True}),
    "postpone": (lambda task: Postpone(task.task_id, task.dispatch_epoch, MINUTE, 9), {}),
    "reserve": (lambda task: ReserveDispatch(task.task_id, task.dispatch_epoch, MINUTE, MINUTE), {"due": True}),
}


@pytest.fixture(params=["sqlite", "motor", "pymongo"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[TaskStore]:
    opened: TaskStore = (
        SqliteStore(tmp_path / "tasks.db")
        if request.param == "sqlite"
        else MongoStore(request.getfixturevalue("mongo_url"), driver=request.param)
    )
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    failpoint.disarm()


@pytest.fixture
def drop(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[str], None]]:
    """Lose the next reply at a point; it must come."""
    dropped = []

    def arm(point: str) -> None:
        failpoint.arm_from({"TASKFRAMEWORK_FAILPOINTS": f"{point}@1=drop"})
        dropped.append(f"failpoint {point}: drop")

    yield arm
    assert [record.message for record in caplog.get_records("call") if record.message in dropped] == dropped


async def asked_again(call: Callable[[], Awaitable[T]]) -> T:
    """What a caller does that was told that nobody knows."""
    try:
        return await call()
    except StoreUnavailableError:
        return await call()


async def made(store: TaskStore, transition: Transition) -> Task | None:
    """The task after a worker's transition, as the worker finds out."""
    task = await asked_again(lambda: store.apply(transition))
    if (
        task is None
        and (current := await store.get(transition.task_id, EVERYONE)) is not None
        and transition.was_applied(current)
    ):
        return current
    return task


async def test_inserts_whose_reply_is_lost_are_stored_once(store: TaskStore, drop: Callable[[str], None]) -> None:
    tasks = [new_task(now=store.now(), idempotency_key=f"key-{n}") for n in range(_MANY)]
    drop("submit.reply")
    inserted = await asyncio.gather(*(asked_again(lambda task=task: insert_one(store, task)) for task in tasks))  # type: ignore[misc]
    assert [reply.task.task_id for reply in inserted] == [task.task_id for task in tasks]
    assert {(await read_task(store, task.task_id)).sequence for task in tasks} == {1}
    if isinstance(store, MongoStore):
        assert all(reply.is_new for reply in inserted)


async def test_claims_whose_reply_is_lost_are_won_once(store: TaskStore, drop: Callable[[str], None]) -> None:
    tasks = [await put(store) for _ in range(_MANY)]
    drop("claim.reply")
    running = await asyncio.gather(*(made(store, make_claim(task)) for task in tasks))
    assert [(task.fencing_token, task.attempts, task.sequence) for task in running if task] == [(1, 1, 2)] * _MANY
    assert await asyncio.gather(*(made(store, make_claim(task)) for task in tasks)) == [None] * _MANY


async def test_outcomes_whose_reply_is_lost_are_stored_once(store: TaskStore, drop: Callable[[str], None]) -> None:
    fences = [fence for _, fence in [await put_running(store) for _ in range(_MANY)]]
    drop("settle.reply")
    done = await asyncio.gather(*(made(store, Complete(fence, "worker-1", fence.task_id)) for fence in fences))
    assert [(task.result, task.sequence) for task in done if task] == [(fence.task_id, 2) for fence in fences]


@pytest.mark.parametrize("store", ["motor", "pymongo"], indirect=True)
async def test_an_outcome_that_the_server_refuses_fails_only_its_own_caller(
    store: TaskStore, drop: Callable[[str], None]
) -> None:
    running = [await put_running(store) for _ in range(9)]
    large, _ = await put_running(store, progress="x" * _TOO_LARGE_TOGETHER)
    outcomes = [Complete(fence, "worker-1", 1) for _, fence in running]
    outcomes.insert(4, Complete(_fence(large), "worker-1", "x" * _TOO_LARGE_TOGETHER))
    drop("settle.reply")
    replies = await asyncio.gather(*(store.apply(outcome) for outcome in outcomes), return_exceptions=True)
    refused = replies.pop(4)
    assert isinstance(refused, StoreError)
    assert not isinstance(refused, StoreUnavailableError)
    assert [task.sequence for task in replies if isinstance(task, Task)] == [2] * 9
    assert (await read_task(store, large.task_id)).status is TaskStatus.RUNNING


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
async def test_an_unreadable_task_fails_only_its_own_caller(
    store: TaskStore, drop: Callable[[str], None], tmp_path: Path
) -> None:
    tasks = [await put(store) for _ in range(10)]
    with sqlite3.connect(tmp_path / "tasks.db") as raw:
        raw.execute("UPDATE tasks SET document = '[]' WHERE task_id = ?", (tasks[4].task_id,))
    raw.close()
    drop("claim.reply")
    replies = await asyncio.gather(*(made(store, make_claim(task)) for task in tasks), return_exceptions=True)
    assert isinstance(replies.pop(4), TaskUnreadableError)
    assert [task.sequence for task in replies if isinstance(task, Task)] == [2] * 9


async def test_marks_whose_reply_is_lost_may_be_made_twice(store: TaskStore, drop: Callable[[str], None]) -> None:
    tasks = [await put(store) for _ in range(_MANY)]
    marks = [MarkPublished(task.task_id, 1) for task in tasks[::2]]
    marks += [MarkDispatched(task.task_id, 1, MINUTE, MINUTE) for task in tasks[1::2]]  # type: ignore[misc] # both are marks
    drop("mark.reply")
    with pytest.raises(StoreUnavailableError):
        await store.mark(*marks)
    after = [await read_task(store, task.task_id) for task in tasks]
    assert {(task.published_sequence, task.publish_at) for task in after[::2]} == {(1, None)}
    assert {task.dispatches for task in after[1::2]} == {1}


@pytest.mark.parametrize("name", _INTERVENTIONS)
async def test_an_intervention_is_made_and_refused_the_second_time(
    store: TaskStore, drop: Callable[[str], None], name: str
) -> None:
    make, wanted = _INTERVENTIONS[name]
    now = store.now() - SECOND
    fields = {"deadline": now} if "deadline" in wanted else {"next_dispatch_at": now} if "due" in wanted else wanted
    task = await put(store, **fields)
    drop(f"{name}.reply")
    with pytest.raises(StoreUnavailableError):
        await store.apply(make(task))
    after = await read_task(store, task.task_id)
    assert after != task
    if name != "postpone":  # which is counted, and may be made twice
        assert await store.apply(make(task)) is None
        assert await read_task(store, task.task_id) == after


async def test_a_task_is_taken_from_a_dead_worker_once(store: TaskStore, drop: Callable[[str], None]) -> None:
    task = await put(store)
    over = Claim(task.task_id, task.dispatch_epoch, "claim", "worker-1", -MINUTE)
    assert await store.apply(over) is not None
    reap = Reap(task.task_id, 1, SECOND, 3, SECOND)
    drop("reap.reply")
    with pytest.raises(StoreUnavailableError):
        await store.apply(reap)
    assert await store.apply(reap) is None
    assert (await read_task(store, task.task_id)).crashes == 1


async def test_leases_are_renewed(store: TaskStore, drop: Callable[[str], None]) -> None:
    running = [await put_running(store) for _ in range(5)]
    fences = [fence for _, fence in running]
    drop("renew.reply")
    with pytest.raises(StoreUnavailableError):
        await store.renew(fences, 2 * HOUR)
    for before, _ in running:
        after = await read_task(store, before.task_id)
        assert after.lease
        assert before.lease
        assert after.lease.expires_at > before.lease.expires_at + 30 * MINUTE
    assert (await store.renew(fences, MINUTE)).keys() == set(fences)


async def test_a_dead_message_is_kept_once(store: TaskStore, drop: Callable[[str], None]) -> None:
    message = DeadMessage("m", b"{", {}, "q", "broken", store.now())
    drop("keep.reply")
    await asked_again(lambda: store.keep_dead_message(message))
    assert len((await store.list_dead_messages(limit=5, cursor=None)).items) == 1


def _fence(task: Task) -> Fence:
    assert task.lease
    return Fence(task.task_id, task.fencing_token, task.lease.claim_id)


async def test_a_kind_whose_reply_is_lost_keeps_no_other_from_being_written(
    store: TaskStore, drop: Callable[[str], None]
) -> None:
    tasks = [await put(store) for _ in range(_MANY)]
    marks = [MarkPublished(task.task_id, 1) for task in tasks[::2]]
    reservations = [ReserveDispatch(task.task_id, 1, MINUTE, MINUTE) for task in tasks[1::2]]
    dispatched = [MarkDispatched(task.task_id, 1, MINUTE, MINUTE) for task in tasks[1::2]]
    drop("mark.reply")
    with pytest.raises(StoreUnavailableError):
        await store.mark(*marks, *dispatched)
    after = [await read_task(store, task.task_id) for task in tasks]
    assert {(task.published_sequence, task.publish_at) for task in after[::2]} == {(1, None)}
    assert {task.dispatches for task in after[1::2]} == {1}
    await store.mark(*marks, *reservations)
    assert [await read_task(store, task.task_id) for task in tasks] == after, "marked as published, and not due"


async def test_outcomes_of_two_kinds_are_stored_once_when_a_reply_is_lost(
    store: TaskStore, drop: Callable[[str], None]
) -> None:
    fences = [fence for _, fence in [await put_running(store) for _ in range(_MANY)]]
    outcomes: list[Complete | Fail] = [Complete(fence, "worker-1", fence.task_id) for fence in fences]
    outcomes[::2] = [Fail(fence, "worker-1", make_error(), False, MINUTE) for fence in fences[::2]]
    drop("settle.reply")
    done = await asyncio.gather(*(made(store, outcome) for outcome in outcomes))
    wanted = [TaskStatus.FAILED, TaskStatus.COMPLETED] * (_MANY // 2)
    assert [(task.status, task.sequence) for task in done if task] == [(status, 2) for status in wanted]
    again = await asyncio.gather(*(store.apply(outcome) for outcome in outcomes))
    assert all(task in (None, first) for first, task in zip(done, again, strict=True)), "an attempt ends once"


async def test_a_value_that_cannot_be_stored_fails_only_its_own_caller(store: TaskStore) -> None:
    fences = [fence for _, fence in [await put_running(store) for _ in range(9)]]
    outcomes = [Complete(fence, "worker-1", 2**70 if n == 4 else n) for n, fence in enumerate(fences)]
    replies = await asyncio.gather(*(store.apply(outcome) for outcome in outcomes), return_exceptions=True)
    assert isinstance(replies.pop(4), ValueNotStorableError)
    assert [(task.result, task.sequence) for task in replies if isinstance(task, Task)] == [
        (n, 2) for n in range(9) if n != 4
    ]
    assert (await read_task(store, fences[4].task_id)).status is TaskStatus.RUNNING


@pytest.mark.parametrize("store", ["motor", "pymongo"], indirect=True)
async def test_large_results_that_do_not_fit_into_one_command_are_stored_all_the_same(store: TaskStore) -> None:
    fences = [fence for _, fence in [await put_running(store) for _ in range(20)]]
    outcomes = [Complete(fence, "worker-1", str(n) + "x" * 2**20) for n, fence in enumerate(fences)]
    replies = await asyncio.gather(*(store.apply(outcome) for outcome in outcomes))
    assert [task.result[:2].strip("x") for task in replies if task] == [str(n) for n in range(20)]
    assert {task.sequence for task in replies if task} == {2}


@pytest.mark.parametrize("store", ["motor", "pymongo"], indirect=True)
async def test_a_mark_that_the_server_refuses_keeps_no_other_from_being_written(store: TaskStore) -> None:
    tasks = [await put(store) for _ in range(9)]
    running = await store.apply(make_claim(tasks[4]))
    assert running is not None
    marks: list[Mark] = [MarkPublished(task.task_id, 1) for task in tasks]
    marks += [MarkDispatched(task.task_id, 1, MINUTE, MINUTE) for task in tasks]
    marks[4] = MarkPublished(tasks[4].task_id, 2**70)
    with pytest.raises(ValueNotStorableError):
        await store.mark(*marks)
    after = [await read_task(store, task.task_id) for task in tasks]
    assert [task.published_sequence for task in after] == [1, 1, 1, 1, 0, 1, 1, 1, 1]
