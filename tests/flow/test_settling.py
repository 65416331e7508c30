"""Settlements whose reply is lost, cancels by another process, and attempts that lost their lease."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import defaultdict
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from taskframework import BackgroundTaskExecutable, TaskContext, TaskFramework, TaskOptions, TaskStatus
from taskframework.errors import StoreUnavailableError
from taskframework.model.attempts import Claim, Complete, Fail, Release
from taskframework.model.interventions import Cancel, Reap
from taskframework.model.scope import EVERYONE
from taskframework.model.task import Task
from taskframework.model.transitions import Transition
from taskframework.testing.eventually import eventually
from tests.flow.conftest import Run
from tests.support.kitchen_sink import Waits, WaitsInThread

#: With it a beat comes every hundred seconds: what a test sees sooner was brought by the look for cancels.
LONG_LEASE = "300s"
#: A third of it is waited for, and a busy machine must renew it in time.
SHORT_LEASE = "6s"


class Spins(BackgroundTaskExecutable[str, None]):
    """Computes in a process of its own and looks at nothing."""

    task_type = "spins"
    options = TaskOptions(run_in="process")

    def execute(self, context: TaskContext[str]) -> None:
        Path(context.parameters).write_text(str(os.getpid()))
        while True:
            time.sleep(0.01)


@pytest.mark.parametrize("together", [1, 20])
async def test_settlements_whose_replies_were_lost_are_recognised(
    run: Run, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    async with run() as framework:
        store, lost = framework.services.store, set[str]()
        apply, asked_again = store.apply, defaultdict[str, asyncio.Event](asyncio.Event)

        async def forgetful(transition: Transition) -> Task | None:
            # An attempt that has ended hides the one before: the next may not run before that was asked for again.
            if isinstance(transition, Claim) and transition.task_id in asked_again:
                await asked_again[transition.task_id].wait()
            task = await apply(transition)
            if isinstance(transition, Complete | Fail | Release):
                if transition.fence.claim_id not in lost:
                    lost.add(transition.fence.claim_id)
                    asked_again[transition.task_id].clear()
                    raise StoreUnavailableError
                asked_again[transition.task_id].set()
            return task

        monkeypatch.setattr(store, "apply", forgetful)
        counting = [await framework.submit("counts") for _ in range(together)]
        failing = [await framework.submit("broken") for _ in range(together)]
        retrying = [await framework.submit("flaky", {"succeed_at": 2, "delay": 0}) for _ in range(together)]
        ended = [await handle.finished(timeout=60) for handle in [*counting, *failing, *retrying]]
        # The store knew of the ends before they were asked for again, and only then they are told.
        await eventually(lambda: framework.process.worker is not None and not framework.process.worker.in_flight)
        await framework.services.bus.drain()
        metrics = framework.process.metrics.exposition().decode()
    assert [task.status for task in ended] == (
        [TaskStatus.COMPLETED] * together + [TaskStatus.FAILED] * together + [TaskStatus.COMPLETED] * together
    )
    assert len(lost) == 4 * together
    assert all(task.sequence == 3 + 2 * (task.task_type == "flaky") for task in ended), "each outcome is stored once"
    assert "tasks_stale_writes_total{" not in metrics
    assert f'tasks_dlq_entered_total{{task_type="broken"}} {together}.0' in metrics
    assert f'tasks_retries_total{{task_type="flaky"}} {together}.0' in metrics


async def test_an_attempt_that_lost_its_lease_is_counted_and_logged_with_both_tokens(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async with run(lease=SHORT_LEASE) as framework:
        handle = await framework.submit("waits")
        await eventually(lambda: Waits.started == 1)
        store = framework.services.store
        hasty = Reap(handle.task_id, 1, timedelta(seconds=-60), 3, timedelta(0))
        assert await store.apply(hasty) is not None
        await eventually(lambda: _stale_writes(framework, "waits") > 0)
        Waits.gate.set()
        assert (await handle.finished(timeout=60)).fencing_token >= 2
        # On a busy machine the second attempt may lose its lease too: it is so short that a pause of seconds ends it.
        records = [vars(record) for record in caplog.records if hasattr(record, "current_token")]
        assert _stale_writes(framework, "waits") == len(records)
    (record,) = [record for record in records if record["fencing_token"] == 1]
    assert (record["task_id"], record["fencing_token"], record["levelno"]) == (handle.task_id, 1, logging.WARNING)
    assert (record["current_token"], bool(record["held_by"])) in {(1, False), (2, True)}, (
        "taken, and maybe claimed again"
    )


async def test_a_cancel_that_another_process_wrote_is_heard_between_beats(run: Run) -> None:
    async with run(lease=LONG_LEASE) as framework:
        WaitsInThread.started.clear()
        handles = [await framework.submit("waits"), await framework.submit("waits-in-thread")]
        await eventually(lambda: Waits.started == 1 and WaitsInThread.started.is_set())
        for handle in handles:
            await _cancelled_elsewhere(framework, handle.task_id)
        ended = [await handle.finished(timeout=60) for handle in handles]
    assert [task.status for task in ended] == [TaskStatus.CANCELLED] * 2


async def test_a_cancel_reaches_code_deep_in_a_process_that_does_not_react(run: Run, tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    async with run(lease=LONG_LEASE, extra=[Spins]) as framework:
        handle = await framework.submit("spins", str(mark))
        pid = int(await eventually(partial(asyncio.to_thread, _text_of, mark), timeout=20))
        await _cancelled_elsewhere(framework, handle.task_id)
        assert (await handle.finished(timeout=60)).status is TaskStatus.CANCELLED
        await eventually(partial(asyncio.to_thread, _is_gone, pid))


async def _cancelled_elsewhere(framework: TaskFramework, task_id: str) -> None:
    """Write a cancel without telling this process."""
    asked = await framework.services.store.apply(Cancel(task_id, EVERYONE, "ada", None))
    assert asked is not None
    assert asked.status is TaskStatus.RUNNING


def _stale_writes(framework: TaskFramework, task_type: str) -> float:
    lines = framework.process.metrics.exposition().decode().splitlines()
    counts = [
        line.split()[1] for line in lines if line.startswith(f'tasks_stale_writes_total{{task_type="{task_type}"}}')
    ]
    return float(counts[0]) if counts else 0


def _text_of(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def _is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


class TooLarge(BackgroundTaskExecutable[list[int], list[int]]):
    """Each of its values is within its limit as JSON; as BSON an integer takes six times as many bytes."""

    task_type = "too-large"

    async def execute(self, context: TaskContext[list[int]]) -> list[int]:
        for number in range(4):
            await context.once(f"step {number}", lambda: [1] * 125_000)
        return [1] * 500_000


async def test_a_result_for_which_the_document_has_no_room_left_fails_the_task(run: Run, urls: dict[str, str]) -> None:
    async with run(extra=[TooLarge]) as framework:
        others = [await framework.submit("counts") for _ in range(5)]
        ended = await (await framework.submit(TooLarge, [1] * 500_000)).finished(timeout=60)
        assert [(await other.finished(timeout=60)).status for other in others] == [TaskStatus.COMPLETED] * 5
    if urls["broker"].startswith("embedded"):
        assert ended.status is TaskStatus.COMPLETED
        return
    assert (ended.status, ended.attempts, ended.error and ended.error.code) == (TaskStatus.FAILED, 1, "bad_result")
    assert ended.error is not None
    assert "larger than the 16 MB" in ended.error.message
