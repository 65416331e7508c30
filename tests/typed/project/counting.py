"""Tasks of a user, as a class and as functions."""

from collections.abc import AsyncIterator
from typing import Any, assert_type

from pydantic import BaseModel

from taskframework import BackgroundTaskExecutable, Signal, SubtaskSummary, TaskContext, TaskOptions, resource, task


class CountWordsParameters(BaseModel):
    text: str


class CountWordsResult(BaseModel):
    words: int


class CountWords(BackgroundTaskExecutable[CountWordsParameters, CountWordsResult]):
    task_type = "count-words"
    options = TaskOptions(max_attempts=3, retry_on=LookupError)

    async def execute(self, context: TaskContext[CountWordsParameters]) -> CountWordsResult:
        return CountWordsResult(words=len(context.parameters.text.split()))


class CountAll(BackgroundTaskExecutable[list[str], int]):
    task_type = "count-all"

    async def execute(self, context: TaskContext[list[str]]) -> None:
        for text in context.parameters:
            await context.submit_subtask(CountWords, CountWordsParameters(text=text))
        await context.submit_subtasks(CountWords, (CountWordsParameters(text=text) for text in context.parameters))

    async def on_subtasks_finished(self, context: TaskContext[list[str]], summary: SubtaskSummary) -> int:
        found = [outcome.result async for outcome in summary.outcomes(CountWords)]
        return sum(result.words for result in found if result is not None)


class Approved(BackgroundTaskExecutable[None, bool]):
    task_type = "approved"

    def execute(self, context: TaskContext[None]) -> Any:
        context.submit_subtask_blocking(double, 2)
        return context.wait_for(signal="approved", timeout=60)

    def on_signal(self, context: TaskContext[None], signal: Signal) -> bool:
        return not signal.timed_out


@task("double", max_attempts=2, timeout=10, run_in="thread")
def double(parameters: int) -> int:
    return parameters * 2


@task("count-lines")
async def count_lines(parameters: CountWordsParameters, context: TaskContext[CountWordsParameters]) -> CountWordsResult:
    await context.update_progress({"percent": 50})
    return CountWordsResult(words=len(parameters.text.splitlines()))


class Pool:
    def size(self) -> int:
        return 1


class CountRows(BackgroundTaskExecutable[str, int]):
    task_type = "count-rows"

    async def execute(self, context: TaskContext[str], pool: Pool = resource(Pool)) -> int:
        assert_type(pool, Pool)
        return pool.size()


@task("count-tables")
def count_tables(parameters: str, context: TaskContext[str], *, pool: Pool = resource(Pool)) -> int:
    return pool.size()


@task("count-columns")
async def count_columns(parameters: str, pool: Pool = resource(Pool)) -> int:
    return pool.size()


@task("count-nothing")
async def count_nothing(*, pool: Pool = resource(Pool)) -> int:
    return pool.size()


@task("count-pools")
def count_pools(pool: Pool = resource(Pool)) -> int:
    return pool.size()


@task("count-attempts")
async def count_attempts(context: TaskContext[str]) -> int:
    return context.attempt


async def texts() -> AsyncIterator[CountWordsParameters]:
    yield CountWordsParameters(text="one two")
