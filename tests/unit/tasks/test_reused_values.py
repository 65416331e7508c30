"""Code that fills one list or dictionary again and again: each sub-task, item and progress has what was in it then."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from taskframework import SubtaskSummary, TaskContext, task
from taskframework.tasks.executable import BackgroundTaskExecutable
from taskframework.testing import harness, run

PARTS = [[0, 1], [2, 3], [4]]


@task("echo")
async def echo(parameters: Any) -> Any:
    return parameters


def parts() -> Iterator[list[int]]:
    part: list[int] = []
    for number in range(5):
        part.append(number)
        if len(part) == 2:
            yield part
            part.clear()
    yield part


async def parts_later() -> AsyncIterator[list[int]]:
    for part in parts():
        yield part


class Splits(BackgroundTaskExecutable[str, list[Any]]):
    task_type = "splits"

    async def execute(self, context: TaskContext[str]) -> None:
        if context.parameters == "each":
            for part in parts():
                await context.submit_subtask(echo, part)
        else:
            await context.submit_subtasks(echo, parts() if context.parameters == "many" else parts_later())

    async def on_subtasks_finished(self, context: TaskContext[str], summary: SubtaskSummary) -> list[Any]:
        return [outcome.result async for outcome in summary.outcomes(echo)]


class SplitsInThread(Splits):
    task_type = "splits-in-thread"

    def execute(self, context: TaskContext[str]) -> None:  # type: ignore[override]
        for part in parts():
            context.submit_subtask_blocking(echo, part)
        context.submit_subtasks_blocking(echo, parts())


class Reports(BackgroundTaskExecutable[None, None]):
    task_type = "reports"

    async def execute(self, context: TaskContext[None]) -> None:
        seen: dict[str, Any] = {}
        for number in range(3):
            seen["number"] = number
            await context.update_progress(seen)
        seen["number"] = object()


async def test_sub_tasks_that_are_made_from_one_list_have_their_own_parameters() -> None:
    async with harness(echo, Splits, SplitsInThread) as running:
        for way in ("each", "many", "many later"):
            assert await running.result(await running.framework.submit(Splits, way)) == PARTS, way
        assert await running.result(await running.framework.submit(SplitsInThread, "")) == PARTS * 2


async def test_items_that_are_made_from_one_list_have_their_own_parameters() -> None:
    async with harness(echo) as running:
        for items in (parts(), parts_later()):
            batch = await running.framework.submit_batch("echo", items)
            await running.finished(batch)
            assert [item.result async for item in batch.results()] == PARTS


async def test_progress_has_what_it_had_when_it_was_reported() -> None:
    ran = await run(Reports)
    assert ran.progress == [{"number": number} for number in range(3)]
    async with harness(Reports) as running:
        ended = await running.finished(await running.framework.submit(Reports))
        assert ended.progress == {"number": 2}


async def test_what_a_run_has_planned_does_not_change_with_the_list() -> None:
    ran = await run(Splits, "each")
    assert [planned.parameters for planned in ran.subtasks] == PARTS
