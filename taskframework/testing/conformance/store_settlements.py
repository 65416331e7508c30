"""Store suite: concurrent writes of one attempt, and which of its ends counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

import pytest

from taskframework.model.attempts import Complete, Fail, RecordStep, Release
from taskframework.model.interventions import Cancel
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.model.task_fields import StepOutcome
from taskframework.model.transitions import Fence, Transition
from taskframework.stores.base import TaskStore
from taskframework.testing.conformance.store_suite import (
    HOUR,
    StoreSuite,
    expect_refusal,
    make_error,
    make_move,
    put_running,
    read_task,
)

#: Every end of an attempt that a worker reports.
OUTCOMES: dict[str, Callable[[Fence], Transition]] = {
    "complete": lambda fence: Complete(fence, "worker-1", {"words": 3}),
    "fail": lambda fence: Fail(fence, "worker-1", make_error(), True, timedelta(0)),
    "release": lambda fence: Release(fence, "worker-1"),
}


class SettlementCases(StoreSuite):
    """How the writes of one attempt affect each other."""

    async def test_steps_at_once_are_all_recorded(self, store: TaskStore) -> None:
        task, fence = await put_running(store)
        names = [str(n % 10) for n in range(30)]
        replies = await asyncio.gather(*(store.apply(RecordStep(fence, name, name)) for name in names))
        for name, reply in zip(names, replies, strict=True):
            assert reply is not None
            assert reply.outcome_of(name) == StepOutcome(name, name)
        assert sorted((await read_task(store, task.task_id)).steps, key=lambda entry: entry.step) == [
            StepOutcome(str(n), str(n)) for n in range(10)
        ]

    @pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=OUTCOMES.keys())
    async def test_the_first_of_several_outcomes_of_one_attempt_counts(
        self, store: TaskStore, outcome: Callable[[Fence], Transition]
    ) -> None:
        _, fence = await put_running(store)
        ended = await make_move(store, outcome(fence))
        for late in OUTCOMES.values():
            await expect_refusal(store, late(fence))
        assert await read_task(store, fence.task_id) == ended

    async def test_one_of_several_concurrent_outcomes_of_one_attempt_counts(self, store: TaskStore) -> None:
        running = [await put_running(store) for _ in range(20)]
        outcomes = [outcome(fence) for _, fence in running for outcome in OUTCOMES.values()]

        await asyncio.gather(*(store.apply(outcome) for outcome in outcomes))

        for task, _ in running:
            after = await read_task(store, task.task_id)
            assert after.sequence == task.sequence + 1, "exactly one outcome is in the history"

    async def test_a_cancel_and_a_failure_at_once_lose_neither(self, store: TaskStore) -> None:
        running = [await put_running(store) for _ in range(20)]
        calls: list[Transition] = []
        for task, fence in running:
            calls += [Cancel(task.task_id, EVERYONE, "alice", None), Fail(fence, "worker-1", make_error(), True, HOUR)]

        await asyncio.gather(*(store.apply(call) for call in calls))

        tasks = [await read_task(store, task.task_id) for task, _ in running]
        assert {task.status for task in tasks} == {TaskStatus.CANCELLED}
