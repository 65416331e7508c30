"""Store suite: what an attempt writes while it runs, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from taskframework.model.interventions import Cancel, Expire, Reap, Replay
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.model.task import (
    ERRORS_KEPT,
    CancelRequest,
    ParentLink,
    StepOutcome,
    Task,
    new_claim_id,
    new_task_id,
)
from taskframework.model.transitions import (
    DEADLINE,
    Complete,
    Fail,
    Fence,
    RecordStep,
    Release,
    ReportProgress,
    Transition,
)
from taskframework.stores.base import TaskStore
from taskframework.testing.conformance.store_suite import (
    EXPIRED,
    HOUR,
    MINUTE,
    SECOND,
    StoreSuite,
    an_error,
    claimed,
    moved,
    put,
    put_running,
    refused,
    stored,
)

NO_TIME = timedelta(0)

#: Every write a worker makes under its claim.
WORKER_WRITES: dict[str, Callable[[Fence], Transition]] = {
    "progress": lambda fence: ReportProgress(fence, {"percent": 50}),
    "step": lambda fence: RecordStep(fence, "charge", {"receipt": 7}),
    "complete": lambda fence: Complete(fence, "worker-1", {"words": 3}),
    "fail": lambda fence: Fail(fence, "worker-1", an_error(), True, NO_TIME),
    "release": lambda fence: Release(fence, "worker-1"),
}
each_worker_write = pytest.mark.parametrize("write", WORKER_WRITES.values(), ids=WORKER_WRITES.keys())


class SettlementCases(StoreSuite):
    """What `Complete`, `Fail`, `Release`, `ReportProgress` and `RecordStep` promise."""

    async def test_complete(self, store: TaskStore) -> None:
        _, fence = await put_running(store, error=an_error(), errors=(an_error(),))
        task = await moved(store, Complete(fence, "worker-1", {"words": 3}))
        assert (task.status, task.result, task.error) == (TaskStatus.COMPLETED, {"words": 3}, None)
        assert task.finished_at is not None

    async def test_completion_beats_a_wish_to_cancel(self, store: TaskStore) -> None:
        task, fence = await put_running(store)
        await moved(store, Cancel(task.task_id, EVERYONE, "alice", None))
        assert (await moved(store, Complete(fence, "worker-1", None))).status is TaskStatus.COMPLETED

    async def test_a_sub_task_reports_to_its_parent_when_it_ends(self, store: TaskStore) -> None:
        parent = ParentLink(new_task_id(), 0, 1)
        _, fence = await put_running(store, parent=parent)
        _, failing = await put_running(store, parent=parent)
        assert (await moved(store, Complete(fence, "worker-1", None))).report_to_parent
        assert not (await moved(store, Fail(failing, "worker-1", an_error(), True, NO_TIME))).report_to_parent

    async def test_a_retryable_failure_is_retried_after_its_delay(self, store: TaskStore) -> None:
        before, fence = await put_running(store, dispatches=4)
        task = await moved(store, Fail(fence, "worker-1", an_error("no answer"), True, MINUTE))
        assert (task.status, task.dispatch_epoch, task.dispatches) == (
            TaskStatus.RETRYING,
            before.dispatch_epoch + 1,
            0,
        )
        assert MINUTE - 5 * SECOND < task.not_before - store.now() < MINUTE + 5 * SECOND
        assert task.next_dispatch_at == task.not_before
        assert task.error is not None
        assert (task.error.message, task.error.attempt) == ("no answer", 1)

    async def test_a_delay_finer_than_a_millisecond_is_cut(self, store: TaskStore) -> None:
        _, fence = await put_running(store)
        task = await moved(store, Fail(fence, "worker-1", an_error(), True, timedelta(microseconds=1_234_567)))
        assert task.not_before.microsecond % 1000 == 0
        assert await stored(store, task.task_id) == task

    async def test_a_failure_that_cannot_be_retried_is_final(self, store: TaskStore) -> None:
        _, fence = await put_running(store)
        assert (await moved(store, Fail(fence, "worker-1", an_error(), False, MINUTE))).status is TaskStatus.FAILED

    async def test_the_last_attempt_is_a_dead_letter(self, store: TaskStore) -> None:
        _, fence = await put_running(store, attempts=5, max_attempts=5)
        task = await moved(store, Fail(fence, "worker-1", an_error(), True, MINUTE))
        assert (task.status, task.next_dispatch_at) == (TaskStatus.DEAD_LETTER, None)

    @pytest.mark.parametrize(("by", "status"), [("alice", TaskStatus.CANCELLED), (DEADLINE, TaskStatus.FAILED)])
    @pytest.mark.parametrize("write", ["fail", "release"])
    async def test_a_cancelled_attempt_ends_the_task(
        self, store: TaskStore, write: str, by: str, status: TaskStatus
    ) -> None:
        cancel = CancelRequest(by, store.now(), "why")
        _, fence = await put_running(store, cancel=cancel)
        task = await moved(store, WORKER_WRITES[write](fence))
        assert (task.status, task.next_dispatch_at) == (status, None)
        assert task.history[-1].type == status.lower()

    async def test_the_last_errors_are_kept(self, store: TaskStore) -> None:
        task = await put(store, max_attempts=100)
        for attempt in range(1, ERRORS_KEPT + 3):
            _, fence = await claimed(store, task)
            error = an_error(f"error {attempt}")
            task = await moved(store, Fail(fence, "worker-1", error, True, EXPIRED))
        assert [error.attempt for error in task.errors] == list(range(3, ERRORS_KEPT + 3))
        assert task.errors[-1] == task.error

    async def test_a_released_attempt_does_not_count(self, store: TaskStore) -> None:
        before, fence = await put_running(store)
        task = await moved(store, Release(fence, "worker-1"))
        assert (task.status, task.attempts, task.releases) == (TaskStatus.QUEUED, 0, 1)
        assert (task.dispatch_epoch, task.fencing_token) == (before.dispatch_epoch + 1, 1)
        assert task.history[-1].type == "released"
        _, newer = await claimed(store, task)
        assert newer.fencing_token == 2

    async def test_progress_is_no_event(self, store: TaskStore) -> None:
        before, fence = await put_running(store)
        await moved(store, ReportProgress(fence, {"percent": 10}))
        task = await moved(store, ReportProgress(fence, {"percent": 20}))
        assert (task.progress, task.progress_revision) == ({"percent": 20}, 2)
        assert (task.revision, task.sequence) == (before.revision + 2, before.sequence)

    async def test_a_step_keeps_its_first_outcome(self, store: TaskStore) -> None:
        before, fence = await put_running(store)
        await moved(store, RecordStep(fence, "charge", {"receipt": 7}))
        await moved(store, RecordStep(fence, "charge", {"receipt": 8}))
        task = await moved(store, RecordStep(fence, "mail", None))
        assert task.steps == (StepOutcome("charge", {"receipt": 7}), StepOutcome("mail", None))
        assert task == before.evolve(steps=task.steps, revision=before.revision + 2), "no event and no time"

    async def test_steps_at_once_are_all_recorded(self, store: TaskStore) -> None:
        task, fence = await put_running(store)
        names = [str(n % 10) for n in range(30)]
        replies = await asyncio.gather(*(store.apply(RecordStep(fence, name, name)) for name in names))
        for name, reply in zip(names, replies, strict=True):
            assert reply is not None
            assert reply.outcome_of(name) == StepOutcome(name, name)
        assert sorted((await stored(store, task.task_id)).steps, key=lambda entry: entry.step) == [
            StepOutcome(str(n), str(n)) for n in range(10)
        ]

    async def test_the_next_attempt_and_the_next_generation_find_the_steps(self, store: TaskStore) -> None:
        _, fence = await put_running(store)
        done = (await moved(store, RecordStep(fence, "charge", 7))).steps
        retrying = await moved(store, Fail(fence, "worker-1", an_error(), True, EXPIRED))
        again, fence = await claimed(store, retrying)
        assert again.steps == done
        await moved(store, Fail(fence, "worker-1", an_error(), False, NO_TIME))
        replayed = await moved(store, Replay(again.task_id, EVERYONE, "operator", SECOND))
        assert (await claimed(store, replayed))[0].steps == done

    @each_worker_write
    async def test_a_stale_worker_writes_nothing(self, store: TaskStore, write: Callable[[Fence], Transition]) -> None:
        _, fence = await put_running(store)
        await refused(store, write(replace(fence, fencing_token=2)))
        await refused(store, write(replace(fence, fencing_token=0)))
        await refused(store, write(replace(fence, claim_id=new_claim_id())))

    @each_worker_write
    async def test_a_worker_that_was_reaped_writes_nothing(
        self, store: TaskStore, write: Callable[[Fence], Transition]
    ) -> None:
        task, fence = await put_running(store, lease=EXPIRED)
        retrying = await moved(store, Reap(task.task_id, 1, NO_TIME, 3, EXPIRED))
        await refused(store, write(fence))
        await claimed(store, retrying)
        await refused(store, write(fence))

    @each_worker_write
    async def test_nothing_is_written_twice(self, store: TaskStore, write: Callable[[Fence], Transition]) -> None:
        _, fence = await put_running(store)
        await moved(store, write(fence))
        if not isinstance(write(fence), (ReportProgress, RecordStep)):
            await refused(store, write(fence))

    @each_worker_write
    async def test_a_worker_of_nothing_writes_nothing(
        self, store: TaskStore, write: Callable[[Fence], Transition]
    ) -> None:
        assert await store.apply(write(Fence(new_task_id(), 1, new_claim_id()))) is None

    async def test_of_two_outcomes_of_one_attempt_the_first_counts(self, store: TaskStore) -> None:
        _, fence = await put_running(store)
        outcomes: list[Transition] = [
            Complete(fence, "worker-1", 1),
            Fail(fence, "worker-1", an_error(), False, NO_TIME),
            Release(fence, "worker-1"),
        ]

        replies = [await store.apply(outcome) for outcome in outcomes]

        assert [reply is not None for reply in replies] == [True, False, False]
        assert (await stored(store, fence.task_id)).status is TaskStatus.COMPLETED

    async def test_of_concurrent_outcomes_of_one_attempt_one_counts(self, store: TaskStore) -> None:
        running = [await put_running(store) for _ in range(20)]
        outcomes = [WORKER_WRITES[name](fence) for _, fence in running for name in ("complete", "fail", "release")]

        await asyncio.gather(*(store.apply(outcome) for outcome in outcomes))

        for task, _ in running:
            after = await stored(store, task.task_id)
            assert after.sequence == task.sequence + 1, "exactly one outcome is in the history"

    async def test_a_cancel_and_a_failure_at_once_lose_neither(self, store: TaskStore) -> None:
        running = [await put_running(store) for _ in range(20)]
        calls: list[Transition] = []
        for task, fence in running:
            calls += [Cancel(task.task_id, EVERYONE, "alice", None), Fail(fence, "worker-1", an_error(), True, HOUR)]

        await asyncio.gather(*(store.apply(call) for call in calls))

        tasks = [await stored(store, task.task_id) for task, _ in running]
        assert {task.status for task in tasks} == {TaskStatus.CANCELLED}

    async def test_a_deadline_that_passes_meanwhile_ends_the_task_with_the_attempt(self, store: TaskStore) -> None:
        task, fence = await put_running(store, deadline=store.now() - MINUTE)
        asked: Task = await moved(store, Expire(task.task_id))
        assert asked.status is TaskStatus.RUNNING
        after = await moved(store, Fail(fence, "worker-1", an_error(), True, MINUTE))
        assert after.status is TaskStatus.FAILED
