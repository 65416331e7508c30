"""Who submits by the class gets what `execute` gave: of tasks, batches and sub-tasks, in a program and over HTTP."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from taskframework import (
    BackgroundTaskExecutable,
    ResultUnreadableError,
    SubmitRequest,
    SubtaskSummary,
    TaskContext,
    TaskHandle,
    task,
)
from taskframework.api.server import serving
from tests.flow.conftest import Run
from tests.support.clients import KINDS, client_of

pytestmark = pytest.mark.parametrize("urls", ["embedded"], indirect=True)


class Words(BaseModel):
    words: int


@task("counts-typed")
async def counts(parameters: str) -> Words:
    if parameters == "broken":
        raise ValueError("a bug")
    return Words(words=len(parameters.split()))


@task("doubles-typed", run_in="process")
def doubles(parameters: int, context: TaskContext[int]) -> int:
    return parameters * 2 * context.attempt


class Sums(BackgroundTaskExecutable[list[str], Words]):
    task_type = "sums-typed"

    async def execute(self, context: TaskContext[list[str]]) -> None:
        await context.submit_subtasks(counts, context.parameters, policy="allow_failures")

    async def on_subtasks_finished(self, context: TaskContext[list[str]], summary: SubtaskSummary) -> Words:
        found = [outcome.result async for outcome in summary.outcomes(counts)]
        return Words(words=sum(result.words for result in found if result is not None))


class OfAnotherRelease(BackgroundTaskExecutable[str, int]):
    task_type = "counts-typed"

    async def execute(self, context: TaskContext[str]) -> int:
        return 1


ALL: Any = (counts, doubles, Sums)


async def test_a_handle_gives_what_execute_gave(run: Run) -> None:
    async with run(extra=ALL) as framework:
        handle = await framework.submit(counts, "one two")
        assert await handle.result(timeout=60) == Words(words=2)
        assert (await handle.task()).result == {"words": 2}
        assert await framework.handle(handle.task_id, counts).result() == Words(words=2)
        assert await framework.handle(handle.task_id).result() == {"words": 2}
        assert await (await framework.submit("counts-typed", "one")).result(timeout=60) == {"words": 1}
        assert await (await framework.submit(doubles, 4)).result(timeout=60) == 8
        assert await (await framework.submit(Sums(), ["a b", "c", "broken"])).result(timeout=60) == Words(words=3)
        with pytest.raises(ResultUnreadableError, match=r"not of the type of OfAnotherRelease: Input should be"):
            await framework.handle(handle.task_id, OfAnotherRelease).result()


async def test_tasks_submitted_together_and_batches_give_typed_results_too(run: Run) -> None:
    async with run(extra=ALL) as framework:
        outcomes = await framework.submit_many([SubmitRequest(task_type=doubles, parameters=n) for n in (1, 2)])
        handles = [outcome for outcome in outcomes if isinstance(outcome, TaskHandle)]
        assert [await handle.result(timeout=60) for handle in handles] == [2, 4]
        batch = await framework.submit_batch(counts, ["one two", "broken", "one"])
        found = [result.result async for result in batch.results()]
        assert found == [Words(words=2), None, Words(words=1)]
        again = framework.batch(batch.batch_id)
        assert [result.result async for result in again.results()] == [{"words": 2}, None, {"words": 1}]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_client_takes_the_name_and_result_type_of_a_task_from_its_class(run: Run, kind: str) -> None:
    async with run(extra=ALL) as framework, serving(framework) as server:
        client = client_of(kind, "http://{}:{}".format(*server.address))
        submitted = await client.submit(counts, "one two three")
        assert await client.wait(submitted, timeout=20) == Words(words=3)
        assert (await client.get(submitted)).result == Words(words=3)
        assert (await client.get(submitted.task_id)).result == {"words": 3}
        [refused, by_name] = await client.submit_many(
            [{"task_type": counts, "parameters": 5}, {"task_type": "counts-typed", "parameters": "a"}]
        )
        assert isinstance(refused, Exception)
        assert await client.wait(by_name, timeout=20) == {"words": 1}
        batch = await client.submit_batch(counts, ["one two", "broken"])
        results = [result.result async for result in client.batch_results(batch, follow=True)]
        assert results == [Words(words=2), None]
        await client.close()
