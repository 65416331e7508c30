"""Steps of task code in a child process, recorded by its parent."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from taskframework.errors import StoreError
from taskframework.tasks.stages import EXECUTE
from taskframework.testing.eventually import eventually
from taskframework.worker.pooled_process import ExecutionFailedError
from taskframework.worker.processes import ProcessPool
from tests.unit.worker.process_tasks import Control, ForgetsToWait, LeavesAThreadBehind, Steady, context_of

# Starting a child takes about a second: the tests share one.
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def pool() -> AsyncIterator[ProcessPool]:
    pool = ProcessPool(1, grace=60)
    yield pool
    await pool.close()


@pytest.mark.parametrize("where", ["in a coroutine", "in threads"])
async def test_a_step_in_a_process_is_recorded_here_once(pool: ProcessPool, where: str) -> None:
    control = Control()
    first = await pool.run(Steady(), EXECUTE, context_of(where, control))
    [done] = control.notebook.kept
    assert done.step == "$set"
    assert done.outcome["pid"] != os.getpid()
    assert first == {"given": [done.outcome] * 2, "calls": 1}
    later = Control(done)
    assert await pool.run(Steady(), EXECUTE, context_of(where, later)) == {"given": [done.outcome] * 2, "calls": 0}
    assert later.notebook.kept == []


async def test_an_outcome_that_cannot_be_stored_is_refused_in_the_child(pool: ProcessPool) -> None:
    with pytest.raises(ExecutionFailedError, match="nan is not a JSON number") as caught:
        await pool.run(Steady(), EXECUTE, context_of("not a number"))
    assert not caught.value.retryable


async def test_a_wait_that_is_not_returned_is_refused_in_the_child(pool: ProcessPool) -> None:
    with pytest.raises(ExecutionFailedError, match=r"write `return context\.wait_for") as caught:
        await pool.run(ForgetsToWait(), EXECUTE, context_of(None))
    assert not caught.value.retryable


async def _recording(pool: ProcessPool, how: str) -> tuple[Control, asyncio.Task[Any]]:
    control = Control()
    control.notebook.is_slow = True
    run = asyncio.create_task(pool.run(Steady(), EXECUTE, context_of(how, control)))
    await eventually(lambda: control.notebook.recording == ["$set"], what="has done its step")
    return control, run


async def test_code_in_a_process_does_not_go_on_with_a_lost_lease(pool: ProcessPool) -> None:
    control, run = await _recording(pool, "survives everything")
    control.notebook.lose()
    with pytest.raises(ExecutionFailedError, match="CancelledError"):
        await run


async def test_no_step_begins_in_a_process_with_a_lost_lease(pool: ProcessPool) -> None:
    control, run = await _recording(pool, "in threads")
    control.notebook.lose()
    with pytest.raises(ExecutionFailedError, match="CancelledError"):
        await run
    assert control.reported == ["called"], "the thread that waited did not try itself"


async def test_a_step_that_the_store_refuses_is_an_error_in_the_child(pool: ProcessPool) -> None:
    control, run = await _recording(pool, "in threads")
    control.notebook.refuse(StoreError("no space left"))
    await eventually(lambda: control.notebook.recording == ["$set"], what="is tried by the other thread")
    control.notebook.refuse(StoreError("no space left"))
    with pytest.raises(ExecutionFailedError, match=r"StoreError: no space left"):
        await run


async def test_a_cancel_is_heard_while_a_step_waits_for_the_store(pool: ProcessPool) -> None:
    control, run = await _recording(pool, "looks for a cancel meanwhile")
    run.cancel()
    await eventually(lambda: control.reported == ["heard the cancel"])
    control.notebook.keep()
    with pytest.raises(asyncio.CancelledError):
        await run


async def test_a_thread_that_was_left_behind_records_nothing_for_the_next_attempt() -> None:
    pool = ProcessPool(1)
    controls = [Control(), Control()]
    await pool.run(LeavesAThreadBehind(), EXECUTE, context_of("begin", controls[0]))
    assert await pool.run(LeavesAThreadBehind(), EXECUTE, context_of("look", controls[1])) == ["CancelledError"]
    assert [control.notebook.kept for control in controls] == [[], []]
    await pool.close()
