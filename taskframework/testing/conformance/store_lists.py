"""Store suite: lists for people, page by page."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from taskframework import failpoint
from taskframework.clock import whole_milliseconds
from taskframework.model.attempts import Complete, Fail
from taskframework.model.interventions import Discard, Replay
from taskframework.model.marks import MarkPublished
from taskframework.model.query import (
    Cursor,
    CursorInvalidError,
    DeadMessage,
    MessageOutline,
    Page,
    SlotCursor,
    TaskFilter,
)
from taskframework.model.scope import EVERYONE, Scope
from taskframework.model.status import DEAD, TaskStatus
from taskframework.model.task import Task, new_task_id
from taskframework.model.task_fields import Batch, ParentLink
from taskframework.stores.base import TaskStore
from taskframework.testing.conformance.store_suite import (
    HOUR,
    SECOND,
    StoreSuite,
    claim_task,
    expect_refusal,
    make_error,
    make_mark,
    make_move,
    put,
    put_final,
)


async def all_pages(store: TaskStore, filter: TaskFilter, limit: int, scope: Scope = EVERYONE) -> list[Task]:
    """Return a whole list; all its pages except the last one are full."""
    tasks: list[Task] = []
    cursor = None
    while True:
        page = await store.list_tasks(scope, filter, limit=limit, cursor=cursor)
        tasks += page.items
        assert len(page.items) == limit or page.next_cursor is None
        if (cursor := page.next_cursor) is None:
            return tasks


def _ids(page: Page[Task]) -> list[str]:
    return [task.task_id for task in page.items]


async def _check_counts(store: TaskStore, *statuses: TaskStatus) -> list[int]:
    """Check that as many tasks are listed in each status as are counted, and return the numbers."""
    counts = await store.count_by_status()
    listed = [len((await store.list_tasks(EVERYONE, TaskFilter(status=status), limit=50)).items) for status in statuses]
    assert listed == [counts[status] for status in statuses]
    return listed


class ListCases(StoreSuite):
    """The promises of `list_tasks`."""

    async def test_the_newest_task_comes_first(self, store: TaskStore) -> None:
        now = store.now()
        tasks = [await put(store, created_at=now - n * SECOND) for n in range(5)]
        page = await store.list_tasks(EVERYONE, TaskFilter(), limit=10)
        assert (list(page.items), page.next_cursor) == (tasks, None)

    @pytest.mark.parametrize("limit", [1, 2, 3, 7, 8, 100])
    async def test_pages_give_each_task_once(self, store: TaskStore, limit: int) -> None:
        now = store.now()
        tasks = [await put(store, created_at=now - (n // 3) * SECOND) for n in range(8)]
        listed = await all_pages(store, TaskFilter(), limit)
        assert {task.task_id for task in listed} == {task.task_id for task in tasks}
        assert listed == sorted(listed, key=lambda task: (task.created_at, task.task_id), reverse=True)

    async def test_tasks_inserted_between_two_pages_move_no_page(self, store: TaskStore) -> None:
        now = store.now()
        tasks = [await put(store, created_at=now - n * SECOND) for n in range(6)]
        first = await store.list_tasks(EVERYONE, TaskFilter(), limit=3)
        for n in range(4):
            await put(store, created_at=now + n * SECOND)
        second = await store.list_tasks(EVERYONE, TaskFilter(), limit=3, cursor=first.next_cursor)
        assert _ids(first) + _ids(second) == [task.task_id for task in tasks]
        assert second.next_cursor is None

    async def test_an_empty_list_has_no_next_page(self, store: TaskStore) -> None:
        assert await store.list_tasks(Scope.of("nobody"), TaskFilter(), limit=5) == Page((), None)

    async def test_each_filter_leaves_other_tasks_out(self, store: TaskStore) -> None:
        parent = new_task_id()
        wanted = await put(
            store, user_id="bob", task_type="other", status=TaskStatus.RETRYING, parent=ParentLink(parent, 0, 0)
        )
        others: list[dict[str, Any]] = [
            {"user_id": "alice"},
            {"task_type": "test-task"},
            {"status": TaskStatus.QUEUED},
            {"parent": None},
        ]
        for slot, other in enumerate(others, start=1):
            mine = {"user_id": "bob", "task_type": "other", "status": TaskStatus.RETRYING}
            await put(store, **(mine | {"parent": ParentLink(parent, 0, slot)} | other))

        bob, everything = Scope.of("bob"), TaskFilter(TaskStatus.RETRYING, "other", parent)
        for scope, filter, count in (
            (EVERYONE, TaskFilter(), 5),
            (bob, TaskFilter(), 4),
            (EVERYONE, TaskFilter(task_type="other"), 4),
            (EVERYONE, TaskFilter(status=TaskStatus.RETRYING), 4),
            (EVERYONE, TaskFilter(parent_task_id=parent), 4),
            (bob, TaskFilter(TaskStatus.RETRYING), 3),
            (bob, TaskFilter(task_type="other"), 3),
            (bob, everything, 1),
            (Scope.of("carol"), TaskFilter(), 0),
        ):
            assert len(await all_pages(store, filter, 2, scope)) == count, (scope, filter)
        assert await all_pages(store, everything, 2, bob) == [wanted]

    @pytest.mark.parametrize("limit", [1, 3, 4, 100])
    @pytest.mark.parametrize("status", [None, TaskStatus.FAILED, TaskStatus.RUNNING])
    async def test_the_subtasks_of_a_task_are_listed_from_the_last_one_planned(
        self, store: TaskStore, limit: int, status: TaskStatus | None
    ) -> None:
        parent, kinds = new_task_id(), (TaskStatus.FAILED, TaskStatus.RUNNING, TaskStatus.COMPLETED)
        rounds = [(generation, round) for generation in range(3) for round in (1, 2)]
        plan = [ParentLink(parent, generation, slot, round) for generation, round in rounds for slot in range(4)]
        planned = [await put(store, parent=link, status=kinds[n % 3]) for n, link in enumerate(plan)]
        await put(store, parent=ParentLink(new_task_id(), 0, 0), status=TaskStatus.FAILED)
        listed = await all_pages(store, TaskFilter(status, parent_task_id=parent), limit)
        assert listed == [task for task in reversed(planned) if status in (None, task.status)]

    @pytest.mark.parametrize(
        "cursor",
        [
            "",
            "x",
            "💥",
            "e30",
            "MXw",
            "fHg",
            "OTk5OTk5OTk5OTk5OTk5OTk5fHg",
            Cursor(datetime(2026, 1, 1, tzinfo=UTC), "id").encode(),
        ],
    )
    async def test_a_strange_cursor_is_refused_for_subtasks(self, store: TaskStore, cursor: str) -> None:
        with pytest.raises(CursorInvalidError):
            await store.list_tasks(EVERYONE, TaskFilter(parent_task_id="parent"), limit=5, cursor=cursor)

    @pytest.mark.parametrize(
        "cursor", ["", "x", "💥", "e30", "MXw", "fHg", "OTk5OTk5OTk5OTk5OTk5OTk5fHg", SlotCursor(1, 2, 3).encode()]
    )
    async def test_a_strange_cursor_is_refused(self, store: TaskStore, cursor: str) -> None:
        with pytest.raises(CursorInvalidError):
            await store.list_tasks(EVERYONE, TaskFilter(), limit=5, cursor=cursor)
        with pytest.raises(CursorInvalidError):
            await store.list_tasks(EVERYONE, TaskFilter(dead=True), limit=5, cursor=cursor)
        with pytest.raises(CursorInvalidError):
            await store.list_dead_messages(limit=5, cursor=cursor)

    async def test_a_cursor_of_a_removed_task_still_leads_on(self, store: TaskStore) -> None:
        task = await put(store)
        cursor = Cursor(task.created_at + SECOND, "gone").encode()
        assert _ids(await store.list_tasks(EVERYONE, TaskFilter(), limit=5, cursor=cursor)) == [task.task_id]


class DeadLetterCases(StoreSuite):
    """The promises of the dead-letter lists."""

    async def test_dead_tasks_are_listed_by_their_end(self, store: TaskStore) -> None:
        now = store.now()
        for status in set(TaskStatus) - DEAD:
            await put(store, status=status, finished_at=now)
        dead = [
            await put_final(store, status, finished_at=now - n * SECOND, created_at=now - (10 - n) * SECOND)
            for n, status in enumerate([TaskStatus.FAILED, TaskStatus.DEAD_LETTER, TaskStatus.FAILED])
        ]

        first = await store.list_tasks(EVERYONE, TaskFilter(dead=True), limit=2, cursor=None)
        second = await store.list_tasks(EVERYONE, TaskFilter(dead=True), limit=2, cursor=first.next_cursor)

        assert [*first.items, *second.items] == dead
        assert second.next_cursor is None

    async def test_lists_counts_and_retention_follow_the_moves(self, store: TaskStore) -> None:
        done, dead = await put(store), await put(store)
        for task, status in ((done, TaskStatus.COMPLETED), (dead, TaskStatus.FAILED)):
            _, fence = await claim_task(store, task)
            assert await _check_counts(store, TaskStatus.QUEUED, TaskStatus.RUNNING) == [1 - (task is dead), 1]
            move = Fail(fence, "w", make_error(), False, SECOND) if task is dead else Complete(fence, "w", None)
            ended = await make_move(store, move)
            await make_mark(store, MarkPublished(task.task_id, ended.sequence))
            assert _ids(await store.list_tasks(EVERYONE, TaskFilter(status=status), limit=5)) == [task.task_id]
        assert _ids(await store.list_tasks(EVERYONE, TaskFilter(dead=True), limit=5, cursor=None)) == [dead.task_id]
        assert await _check_counts(store, TaskStatus.RUNNING, TaskStatus.COMPLETED, TaskStatus.FAILED) == [0, 1, 1]
        await self.pass_time(0.1)
        assert await store.purge(finished=timedelta(0), dead_letters=None, limit=5) == 1
        assert [await store.get(task.task_id, EVERYONE) is None for task in (done, dead)] == [True, False]

    async def test_a_discarded_task_is_in_no_list_until_it_is_dead_again(self, store: TaskStore) -> None:
        kept = await put_final(store, TaskStatus.FAILED)
        discarded = await put_final(store, TaskStatus.DEAD_LETTER)
        await make_move(store, Discard(discarded.task_id, EVERYONE, "operator", "of last year"))
        await expect_refusal(store, Discard(discarded.task_id, EVERYONE, "operator", "once more"))
        assert _ids(await store.list_tasks(EVERYONE, TaskFilter(dead=True), limit=5)) == [kept.task_id]
        assert sum(each.count for each in await store.count_dead(EVERYONE, TaskFilter(dead=True), most=9)) == 1
        queued = await make_move(store, Replay(discarded.task_id, EVERYONE, "operator", SECOND))
        _, fence = await claim_task(store, queued)
        await make_move(store, Fail(fence, "w", make_error(), False, SECOND))
        assert len((await store.list_tasks(EVERYONE, TaskFilter(dead=True), limit=5)).items) == 2

    async def test_dead_tasks_are_found_by_their_error_and_end(self, store: TaskStore) -> None:
        now = store.now()
        odd_text = "50% of (a.*) $x _ 'quoted'"
        tasks = [
            await put_final(
                store, status, error=replace(make_error(text), fingerprint=cause), finished_at=now - n * HOUR
            )
            for n, (status, text, cause) in enumerate(
                [
                    (TaskStatus.FAILED, f"first: {odd_text}", "f1"),
                    (TaskStatus.DEAD_LETTER, "SECOND", "f2"),
                    (TaskStatus.FAILED, "third", "f1"),
                ]
            )
        ]
        for filter, found in (
            (TaskFilter(dead=True, fingerprint="f1"), [0, 2]),
            (TaskFilter(dead=True, error=odd_text), [0]),
            (TaskFilter(dead=True, error="FIRST"), [0]),
            (TaskFilter(dead=True, error="second"), [1]),
            (TaskFilter(dead=True, ended_by=now - HOUR), [1, 2]),
            (TaskFilter(dead=True, fingerprint="f1", ended_by=now - HOUR), [2]),
            (TaskFilter(status=TaskStatus.FAILED, fingerprint="f1"), [0, 2]),
            (TaskFilter(dead=True, error="none has this"), []),
        ):
            assert [
                task.task_id for task in sorted(await all_pages(store, filter, 1), key=_end_time, reverse=True)
            ] == [tasks[n].task_id for n in found], filter

    async def test_dead_tasks_are_counted_by_cause_type_and_hour(self, store: TaskStore) -> None:
        now = store.now()
        await put(store, batch=Batch(), status=TaskStatus.FAILED, finished_at=now)
        await put(store, status=TaskStatus.CANCELLED, finished_at=now)
        for cause, task_type, hours, user_id in (
            ("f1", "a", 0.1, "alice"),
            ("f1", "a", 0.2, "bob"),
            ("f1", "a", 1.5, "bob"),
            ("f1", "b", 0.1, "bob"),
            ("f2", "a", 99, "bob"),
        ):
            error = replace(make_error(f"because of {cause}"), fingerprint=cause)
            ended = {"error": error, "finished_at": now - hours * HOUR, "user_id": user_id}
            await put_final(store, TaskStatus.FAILED, task_type=task_type, **ended)

        everything = await store.count_dead(EVERYONE, TaskFilter(dead=True), most=100)
        assert sorted((each.fingerprint, each.task_type, each.hours_ago, each.count) for each in everything) == [
            ("f1", "a", 0, 2),
            ("f1", "a", 1, 1),
            ("f1", "b", 0, 1),
            ("f2", "a", 24, 1),
        ]
        oldest = next(each for each in everything if each.fingerprint == "f2")
        assert oldest.first_at == oldest.last_at == whole_milliseconds(now - 99 * HOUR)
        assert (oldest.error_type, oldest.error_message) == (make_error().type, "because of f2")
        for scope, filter, most, count in (
            (Scope.of("alice"), TaskFilter(dead=True), 100, 1),
            (EVERYONE, TaskFilter(dead=True, task_type="b"), 100, 1),
            (EVERYONE, TaskFilter(dead=True, fingerprint="f1"), 100, 4),
            (EVERYONE, TaskFilter(dead=True, ended_by=now - HOUR), 100, 2),
            (EVERYONE, TaskFilter(dead=True), 3, 2),  # the batch is among the newest three
        ):
            found = await store.count_dead(scope, filter, most=most)
            assert sum(each.count for each in found) == count, (scope, filter)

    async def test_outlines_of_dead_messages_and_the_deletion_of_one(self, store: TaskStore) -> None:
        now = store.now()
        for n in range(3):
            await store.keep_dead_message(_message(f"m-{n}", now - n * SECOND, f"reason {n}"))
        outlines = await store.outline_dead_messages(limit=2)
        assert outlines == [MessageOutline(f"m-{n}", f"reason {n}", None, now - n * SECOND) for n in range(2)]
        assert [await store.delete_dead_message("m-0") for _ in range(2)] == [True, False]
        assert [outline.id for outline in await store.outline_dead_messages(limit=9)] == ["m-1", "m-2"]

    async def test_a_dead_message_is_kept_whole(self, store: TaskStore) -> None:
        message = DeadMessage(
            "m-1",
            bytes(range(256)),
            {"$where": "1", "a.b": "x", "": "empty", "ключ": "💥", "quote": "'; DROP TABLE tasks; --"},
            "tasks.dlq",
            "not JSON",
            store.now(),
            "some-task",
            "some-type",
        )
        await store.keep_dead_message(message)
        assert await store.get_dead_message("m-1") == message
        assert (await store.list_dead_messages(limit=5, cursor=None)).items == (message,)

    async def test_a_dead_message_is_kept_once(self, store: TaskStore) -> None:
        await store.keep_dead_message(_message("m-1", store.now(), "first"))
        await store.keep_dead_message(_message("m-1", store.now(), "second"))
        kept = await store.get_dead_message("m-1")
        assert kept is not None
        assert kept.reason == "first"

    async def test_dead_messages_of_one_moment_are_one_write(self, store: TaskStore) -> None:
        twice = [_message(f"m-{n // 2:02}", store.now()) for n in range(80)]
        writes: list[str] = []

        async def note() -> None:
            writes.append("keep")

        failpoint.arm("keep.reply", note)
        try:
            await asyncio.gather(*map(store.keep_dead_message, twice))
        finally:
            failpoint.disarm("keep.reply")
        page = await store.list_dead_messages(limit=100, cursor=None)
        assert sorted(message.id for message in page.items) == [f"m-{n:02}" for n in range(40)]
        assert len(writes) == 1

    async def test_dead_messages_are_listed_newest_first(self, store: TaskStore) -> None:
        now = store.now()
        for n in (1, 4, 3, 0, 2):
            await store.keep_dead_message(_message(f"m-{n}", now - (n // 2) * SECOND))
        listed: list[str] = []
        cursor = None
        for _ in range(3):
            page = await store.list_dead_messages(limit=2, cursor=cursor)
            listed += [message.id for message in page.items]
            cursor = page.next_cursor
        assert listed == ["m-1", "m-0", "m-3", "m-2", "m-4"]
        assert cursor is None
        assert (await store.list_dead_messages(limit=5, cursor=None)).next_cursor is None, "a full page may be the last"


def _end_time(task: Task) -> datetime:
    assert task.finished_at is not None
    return task.finished_at


def _message(id: str, at: datetime, reason: str = "unreadable") -> DeadMessage:
    return DeadMessage(id, b"\x00\xff", {}, "tasks.dlq", reason, at)
