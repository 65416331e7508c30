"""Schedules that are due, on the stores that the suites make: each time fires once, whoever dies in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from taskframework import BackgroundTaskExecutable, TaskContext, failpoint
from taskframework.bus import EventBus
from taskframework.errors import StoreUnavailableError
from taskframework.model.interventions import Cancel
from taskframework.model.query import TaskFilter
from taskframework.model.schedules import SCHEDULE, LastRun, Missed, Overlap, Schedule
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.model.task import Task
from taskframework.moves import TaskMoves
from taskframework.recovery.schedules import ScheduleRepair
from taskframework.schedules import change_schedule, read_schedule
from taskframework.stores.base import TaskStore
from taskframework.submission.types import TaskTypes
from taskframework.tasks.registry import TaskRegistry
from taskframework.testing.conformance.store_suite import HOUR, MINUTE, SECOND, StoreSuite, lose_reply, put, read_task
from tests.support.submission import submission_into

NAME = "nightly"


class Counts(BackgroundTaskExecutable[dict[str, int], None]):
    task_type = "counts"

    async def execute(self, context: TaskContext[dict[str, int]]) -> None: ...


def repair_of(store: TaskStore) -> ScheduleRepair:
    """What a process does for schedules; each has its own."""
    registry, bus = TaskRegistry(), EventBus()
    registry.register(Counts())
    submission = submission_into(store, TaskTypes(registry, store), bus, dispatch_after=SECOND, keys_kept=HOUR)
    return ScheduleRepair(store, TaskMoves(store, bus), submission, 10)


async def plant(store: TaskStore, *, late: timedelta = SECOND, **fields: Any) -> datetime:
    """Store a schedule that is due; the time of its run."""
    due_at = store.now() - late
    rule = {"every": HOUR, "since": due_at - HOUR, "next_at": due_at, "due_at": due_at}
    usual = {"name": NAME, "task_type": Counts.task_type, "parameters": {"n": 1}, **rule}
    schedule = Schedule(**{**usual, **fields})
    assert await change_schedule(store, schedule.name, lambda _: schedule) == schedule
    return due_at


async def present(store: TaskStore) -> Schedule:
    record = await read_schedule(store, NAME)
    assert record is not None
    return SCHEDULE.content(record)


async def runs(store: TaskStore) -> list[Task]:
    """What was submitted, the oldest first."""
    found = await store.list_tasks(EVERYONE, TaskFilter(task_type=Counts.task_type), limit=500)
    return sorted(found.items, key=lambda task: task.idempotency_key or "")


class ScheduleCases(StoreSuite):
    """What `ScheduleRepair` promises, on any store."""

    async def test_a_due_schedule_submits_its_task_and_gets_its_next_time(self, store: TaskStore) -> None:
        due_at = await plant(store)
        assert await repair_of(store).run_once() is False
        [task] = await runs(store)
        assert task.idempotency_key == f"schedule/{NAME}/{due_at.isoformat(timespec='milliseconds')[:-6]}Z"
        assert (task.parameters, task.user_id, task.correlation_id) == ({"n": 1}, "scheduler", f"schedule/{NAME}")
        after = await present(store)
        assert (after.next_at, after.due_at) == (due_at + HOUR, due_at + HOUR)
        assert after.last_run == LastRun(due_at, task.task_id)
        await repair_of(store).run_once()
        assert len(await runs(store)) == 1

    async def test_a_schedule_that_is_not_due_or_is_paused_is_left_alone(self, store: TaskStore) -> None:
        await plant(store, late=-MINUTE)
        await plant(store, name="paused", is_paused=True)
        await repair_of(store).run_once()
        assert await runs(store) == []

    async def test_one_of_many_processes_that_look_at_once_submits_the_run(self, store: TaskStore) -> None:
        due_at = await plant(store)
        for number in range(5):
            await plant(store, name=f"other-{number}", user_id=f"user-{number}")
        await asyncio.gather(*(repair_of(store).run_once() for _ in range(8)))
        found = await runs(store)
        assert len(found) == len({task.idempotency_key for task in found}) == 6
        assert (await present(store)).next_at == due_at + HOUR

    @pytest.mark.parametrize("point", ["schedule.after_submit", "submit.after_key", "submit.after_insert"])
    async def test_a_run_of_a_process_that_died_is_finished_by_the_next_process(
        self, store: TaskStore, point: str
    ) -> None:
        due_at = await plant(store)
        with armed(point, dies):
            await repair_of(store).run_once()
        assert (await present(store)).next_at == due_at, "still due"
        await asyncio.gather(*(repair_of(store).run_once() for _ in range(2)))
        [task] = await runs(store)
        assert (await present(store)).last_run == LastRun(due_at, task.task_id)
        assert (await present(store)).next_at == due_at + HOUR

    async def test_a_lost_reply_runs_nothing_twice(self, store: TaskStore) -> None:
        due_at = await plant(store)
        for point in ("submit.reply", "record.reply"):
            with lose_reply(point), suppress(StoreUnavailableError):
                await repair_of(store).run_once()
        await repair_of(store).run_once()
        assert len(await runs(store)) == 1
        assert (await present(store)).next_at == due_at + HOUR

    async def test_a_schedule_that_was_changed_after_a_crash_does_not_run_twice(self, store: TaskStore) -> None:
        due_at = await plant(store)
        with armed("schedule.after_submit", dies):
            await repair_of(store).run_once()
        await change_schedule(store, NAME, lambda there: there and replace(there, parameters={"n": 2}))
        await repair_of(store).run_once()
        [task] = await runs(store)
        assert task.parameters == {"n": 1}
        assert (await present(store)).last_run == LastRun(due_at, task.task_id)

    async def test_a_schedule_that_is_deleted_during_its_run_stays_deleted(self, store: TaskStore) -> None:
        await plant(store)

        async def delete() -> None:
            await change_schedule(store, NAME, lambda _: None)

        with armed("schedule.after_submit", delete):
            await repair_of(store).run_once()
        assert await read_schedule(store, NAME) is None

    async def test_a_schedule_that_is_paused_during_its_run_stays_paused_and_notes_the_run(
        self, store: TaskStore
    ) -> None:
        due_at = await plant(store)

        async def pause() -> None:
            await change_schedule(store, NAME, lambda there: there and replace(there, is_paused=True))

        with armed("schedule.after_submit", pause):
            await repair_of(store).run_once()
        [task] = await runs(store)
        after = await present(store)
        assert (after.is_paused, after.next_at, after.last_run) == (True, due_at, LastRun(due_at, task.task_id))

    @pytest.mark.parametrize("overlap", list(Overlap))
    async def test_a_schedule_that_is_changed_during_its_run_keeps_that_run(
        self, store: TaskStore, overlap: Overlap
    ) -> None:
        """It is due once more for the same time, and the last run is the one for this time."""
        due_at = await plant(store, overlap=overlap)

        async def change() -> None:
            await change_schedule(store, NAME, lambda there: there and replace(there, jitter=SECOND))

        with armed("schedule.after_submit", change):
            await repair_of(store).run_once()
        await repair_of(store).run_once()
        [task] = await runs(store)
        assert task.status is TaskStatus.QUEUED
        after = await present(store)
        assert (after.next_at, after.last_run) == (due_at + HOUR, LastRun(due_at, task.task_id))

    async def test_all_missed_runs_are_submitted_if_the_schedule_requires_it(self, store: TaskStore) -> None:
        await plant(store, late=25 * MINUTE + SECOND, every=MINUTE, missed=Missed.ALL)
        repair = repair_of(store)
        while await repair.run_once():
            pass
        found = await runs(store)
        assert len(found) == 26
        assert len({task.idempotency_key for task in found}) == 26
        assert (await present(store)).last_run is not None
        assert (await present(store)).next_at > store.now()

    @pytest.mark.parametrize(("missed", "number"), [(Missed.SKIP, 0), (Missed.ONCE, 1)])
    async def test_missed_runs_are_left_out_or_submitted_once(
        self, store: TaskStore, missed: Missed, number: int
    ) -> None:
        await plant(store, late=150 * MINUTE, missed=missed)
        assert await repair_of(store).run_once() is False
        assert len(await runs(store)) == number
        assert store.now() < (await present(store)).next_at <= store.now() + HOUR

    @pytest.mark.parametrize(
        ("overlap", "number", "status"),
        [
            (Overlap.ALLOW, 1, TaskStatus.QUEUED),
            (Overlap.SKIP, 0, TaskStatus.QUEUED),
            (Overlap.CANCEL_PREVIOUS, 1, TaskStatus.CANCELLED),
        ],
    )
    async def test_a_run_beside_an_unfinished_last_run_follows_the_overlap_rule(
        self, store: TaskStore, overlap: Overlap, number: int, status: TaskStatus
    ) -> None:
        last = await put(store)
        due_at = await plant(store, overlap=overlap, last_run=LastRun(store.now() - HOUR, last.task_id))
        with armed("schedule.after_submit", dies):  # and again after a crash
            await repair_of(store).run_once()
        await repair_of(store).run_once()
        assert len(await runs(store)) == number
        assert (await read_task(store, last.task_id)).status is status
        assert (await present(store)).next_at == due_at + HOUR

    @pytest.mark.parametrize(
        ("overlap", "statuses"),
        [
            (Overlap.SKIP, [TaskStatus.QUEUED]),
            (Overlap.CANCEL_PREVIOUS, [TaskStatus.CANCELLED, TaskStatus.CANCELLED, TaskStatus.QUEUED]),
        ],
    )
    async def test_one_of_many_missed_runs_is_left_if_they_may_not_overlap(
        self, store: TaskStore, overlap: Overlap, statuses: list[TaskStatus]
    ) -> None:
        await plant(store, late=2 * MINUTE + SECOND, every=MINUTE, missed=Missed.ALL, overlap=overlap)
        repair = repair_of(store)
        while await repair.run_once():
            pass
        assert [task.status for task in await runs(store)] == statuses

    @pytest.mark.parametrize("overlap", [Overlap.SKIP, Overlap.CANCEL_PREVIOUS])
    async def test_a_run_after_the_end_of_the_last_one_is_submitted(self, store: TaskStore, overlap: Overlap) -> None:
        last = await put(store)
        await TaskMoves(store, EventBus()).make(Cancel(last.task_id, EVERYONE, "alice", None))
        await plant(store, overlap=overlap, last_run=LastRun(store.now() - HOUR, last.task_id))
        await plant(store, name="purged", overlap=overlap, last_run=LastRun(store.now() - HOUR, "no-such-task"))
        await repair_of(store).run_once()
        assert len(await runs(store)) == 2

    async def test_a_run_that_is_refused_is_recorded_as_a_problem_and_left_out(self, store: TaskStore) -> None:
        due_at = await plant(store, parameters={"n": "many"})
        await plant(store, name="other")
        await repair_of(store).run_once()
        after = await present(store)
        assert after.problem is not None
        assert "are not valid for task type 'counts'" in after.problem.message
        assert (after.next_at, after.last_run, after.problem.at) == (due_at + HOUR, None, due_at)
        assert len(await runs(store)) == 1, "the other one runs"


class Died(Exception):  # noqa: N818 - a crash
    """What happens to a process here."""


async def dies() -> None:
    raise Died


@contextmanager
def armed(point: str, action: Callable[[], Coroutine[Any, Any, None]]) -> Iterator[None]:
    failpoint.arm(point, action)
    try:
        yield
    finally:
        failpoint.disarm(point)
