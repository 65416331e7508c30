"""A process pool: children start and end, also while it is closed, and while task code holds all other threads."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from taskframework.tasks.stages import EXECUTE
from taskframework.worker import pooled_process
from taskframework.worker.pooled_process import ProcessDiedError
from taskframework.worker.processes import ProcessPool
from tests.support.process import is_running
from tests.unit.worker.process_tasks import Echo, context_of


@pytest.mark.parametrize("is_left", [True, False])
async def test_close_leaves_no_child_that_was_starting(monkeypatch: pytest.MonkeyPatch, is_left: bool) -> None:
    spawn, pids = pooled_process._spawn, list[int]()

    def spawn_and_note() -> Any:
        process, connection = spawn()
        pids.append(process.pid or 0)
        return process, connection

    monkeypatch.setattr(pooled_process, "_spawn", spawn_and_note)
    pool = ProcessPool(1)
    run = asyncio.create_task(pool.run(Echo(), EXECUTE, context_of(None)))
    await asyncio.sleep(0)
    if is_left:
        run.cancel()
    await pool.close()
    assert [is_running(pid) for pid in pids] == [False]
    with pytest.raises(asyncio.CancelledError if is_left else ProcessDiedError):
        await run


async def test_children_start_and_end_while_task_code_holds_all_threads_of_the_event_loop() -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    free, pool = threading.Event(), ProcessPool(1)
    held = asyncio.get_running_loop().run_in_executor(None, free.wait)
    try:
        async with asyncio.timeout(60):
            pid = (await pool.run(Echo(), EXECUTE, context_of(None)))["pid"]
            await pool.close()
        assert not is_running(pid)
    finally:
        free.set()
        await held
