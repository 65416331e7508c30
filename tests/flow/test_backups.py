"""A store or a broker comes back from yesterday: what docs/operations/backup.md says happens, and all ends."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from taskframework import (
    BackgroundTaskExecutable,
    SubmitRequest,
    SubtaskSummary,
    TaskContext,
    TaskFramework,
    TaskHandle,
    TaskStatus,
)
from taskframework.errors import TaskNotFoundError
from taskframework.model.scope import EVERYONE
from taskframework.model.status import LIVE, Priority
from taskframework.testing.eventually import eventually
from tests.flow.conftest import BOTH, Run
from tests.support.backups import back_up_store, copy_messages, replace_messages
from tests.support.kitchen_sink import Counts, Waits

_RECOVERY = {"sweep_interval": "100ms", "redispatch": "300ms", "redispatch_max": "300ms"}


class Gathers(BackgroundTaskExecutable[None, int]):
    """Has three sub-tasks that wait for the test."""

    task_type = "gathers"

    async def execute(self, context: TaskContext[None]) -> None:
        await context.submit_subtasks("waits", [None] * 3)

    async def on_subtasks_finished(self, context: TaskContext[None], summary: SubtaskSummary) -> int:
        return summary.succeeded


@pytest.mark.parametrize("urls", BOTH, indirect=True)
async def test_an_older_store_goes_on_from_where_it_was(run: Run, urls: dict[str, str], tmp_path: Path) -> None:
    async with run(extra=[Gathers], lease="3s") as framework:
        finished = [await framework.submit("counts", idempotency_key=f"before-{n}") for n in range(5)]
        for handle in finished:
            await handle.result(timeout=60)
        running = [await framework.submit("waits") for _ in range(3)] + [await framework.submit("gathers")]
        batch = await framework.submit_batch("waits", [None] * 4)
        await eventually(lambda: Waits.started == 10)
        # Work goes on while the copy is made: it is of no single moment.
        restore, during = await asyncio.gather(
            asyncio.to_thread(back_up_store, urls["store"], tmp_path),
            framework.submit_many([SubmitRequest(task_type="counts") for _ in range(200)]),
        )
        Waits.gate.set()
        for handle in [*running, *(one for one in during if isinstance(one, TaskHandle))]:
            await handle.finished(timeout=60)
        after = await framework.submit("counts", idempotency_key="after")
        assert await after.result(timeout=60) == 1
    async with run(worker=False, extra=[Gathers]) as framework:
        unknown = [await framework.submit("counts") for _ in range(4)]
        if urls["broker"] != "embedded://":
            await eventually(lambda: _depth_is(framework, 4))
    await asyncio.to_thread(restore)
    seen = dict(Counts.executions)

    async with run(extra=[Gathers], recovery=_RECOVERY, lease="3s") as framework:
        Waits.gate.set()
        await eventually(lambda: _nothing_is_live(framework), timeout=60)
        for handle in finished:
            assert (await framework.get(handle.task_id)).result == 1
            assert Counts.executions[handle.task_id] == seen[handle.task_id], "what had ended is not run again"
        for handle in running:
            task = await framework.get(handle.task_id)
            assert task.status is TaskStatus.COMPLETED
            assert task.task_type == "gathers" or task.crashes >= 1, "its worker is taken for dead"
        assert (await framework.batch(batch.batch_id).status()).status is TaskStatus.COMPLETED
        for handle in [after, *unknown]:
            with pytest.raises(TaskNotFoundError):
                await framework.get(handle.task_id)
        again = await framework.submit("counts", idempotency_key="after")
        assert (again.task_id != after.task_id, await again.result(timeout=60)) == (True, 1), "its key is forgotten too"
        kept = await framework.submit("counts", idempotency_key="before-0")
        assert kept.task_id == finished[0].task_id
        if urls["broker"] != "embedded://":
            expected = {handle.task_id for handle in unknown}
            await eventually(lambda: _messages_kept_for(framework, expected), timeout=30)


@pytest.mark.parametrize("urls", ["servers"], indirect=True)
async def test_an_older_broker_changes_nothing(run: Run, urls: dict[str, str]) -> None:
    queue = "tasks.counts.normal"
    async with run(worker=False) as framework:
        early = [await framework.submit("counts") for _ in range(5)]
        await eventually(lambda: _depth_is(framework, 5))
        copies = await copy_messages(urls["broker"], queue)
    async with run() as framework:
        for handle in early:
            await framework.handle(handle.task_id).result(timeout=60)
    async with run(worker=False, recovery=_RECOVERY) as framework:
        late = [await framework.submit("counts") for _ in range(5)]
        await eventually(lambda: _depth_is(framework, 5))
        await replace_messages(urls["broker"], queue, copies)
        assert len(copies) == 5
    async with run(recovery=_RECOVERY) as framework:
        for handle in late:
            assert await framework.handle(handle.task_id).result(timeout=60) == 1
        await eventually(lambda: _depth_is(framework, 0))
        assert await _messages_kept_for(framework, set())
    assert [Counts.executions[handle.task_id] for handle in [*early, *late]] == [1] * 10


async def _depth_is(framework: TaskFramework, number: int) -> bool:
    return await framework.process.broker.queue_depth("counts", Priority.NORMAL) == number


async def _nothing_is_live(framework: TaskFramework) -> bool:
    counts = await framework.services.store.count_by_status()
    return not any(counts.get(status, 0) for status in LIVE) and not await framework.services.store.undriven(1)


async def _messages_kept_for(framework: TaskFramework, task_ids: set[str]) -> bool:
    """Whether the dead letters are messages of exactly these tasks."""
    page = await framework.services.dead_letters.list_letters(EVERYONE, limit=50)
    return {letter.entry.task_id for letter in page.items} == task_ids
