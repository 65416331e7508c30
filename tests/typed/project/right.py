"""Right use: what each door takes, and what comes out of it."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, assert_type

from taskframework import (
    BatchHandle,
    CallNext,
    SubmitRequest,
    SyncBatchHandle,
    SyncTaskClient,
    SyncTaskFramework,
    SyncTaskHandle,
    TaskClient,
    TaskContext,
    TaskFramework,
    TaskHandle,
)
from tests.typed.project.counting import (
    Approved,
    CountAll,
    CountRows,
    CountWords,
    CountWordsParameters,
    CountWordsResult,
    Pool,
    count_attempts,
    count_columns,
    count_lines,
    count_nothing,
    count_pools,
    count_tables,
    double,
    texts,
)

WORDS = CountWordsParameters(text="one two three")


async def from_a_program(framework: TaskFramework) -> None:
    for each in (CountWords, CountAll(), Approved, double, count_lines):
        framework.register(each)
    handle = await framework.submit(CountWords, WORDS, priority="high", idempotency_key="first")
    assert_type(handle, TaskHandle[CountWordsResult])
    assert_type(await handle.result(timeout=10), CountWordsResult)
    assert_type(await (await framework.submit(CountAll(), ["one two"])).result(), int)
    assert_type(await framework.submit(Approved), TaskHandle[bool])
    assert_type(await framework.submit(double, 4), TaskHandle[int])
    assert_type(await framework.submit(count_lines, WORDS), TaskHandle[CountWordsResult])
    assert_type(await framework.submit(count_nothing), TaskHandle[int])
    assert_type(await framework.submit(count_pools), TaskHandle[int])
    assert_type(await framework.submit(count_attempts, "any"), TaskHandle[int])
    assert_type(await framework.submit("count-words", {"text": "by its name"}), TaskHandle[Any])
    assert_type(framework.handle(handle.task_id, CountWords), TaskHandle[CountWordsResult])
    assert_type(framework.handle(handle.task_id), TaskHandle[Any])


def around_a_worker(framework: TaskFramework) -> None:
    @framework.use
    async def tell(context: TaskContext[Any], call_next: CallNext) -> Any:
        return await call_next(context)

    @framework.lifespan
    @asynccontextmanager
    async def open_pool() -> AsyncGenerator[Pool, None]:
        yield Pool()

    framework.lifespan(lambda: open_pool())
    framework.use(tell)
    for each in (CountRows, count_tables, count_columns):
        framework.register(each)


async def with_resources(framework: TaskFramework) -> None:
    assert_type(await framework.submit(CountRows, "shop"), TaskHandle[int])
    assert_type(await framework.submit(count_tables, "shop"), TaskHandle[int])
    assert_type(await framework.submit(count_columns, "shop"), TaskHandle[int])


async def many(framework: TaskFramework) -> None:
    outcomes = await framework.submit_many([SubmitRequest(task_type=CountWords, parameters=WORDS) for _ in range(2)])
    assert_type(outcomes, list[TaskHandle[CountWordsResult] | Exception])
    batch = await framework.submit_batch(CountWords, [WORDS], policy="allow_failures")
    assert_type(batch, BatchHandle[CountWordsResult])
    async for found in batch.results():
        assert_type(found.result, CountWordsResult | None)
    assert_type(await framework.submit_batch(CountWords, texts()), BatchHandle[CountWordsResult])
    assert_type(await framework.submit_batch("double", [1, 2]), BatchHandle[Any])


def without_asyncio(tasks: SyncTaskFramework) -> None:
    handle = tasks.submit(CountWords, WORDS)
    assert_type(handle, SyncTaskHandle[CountWordsResult])
    assert_type(handle.result(timeout=10), CountWordsResult)
    assert_type(tasks.submit("count-words", {"text": "by its name"}), SyncTaskHandle[Any])
    assert_type(tasks.handle(handle.task_id, CountWords), SyncTaskHandle[CountWordsResult])
    batch = tasks.submit_batch(double, (number for number in (1, 2)))
    assert_type(batch, SyncBatchHandle[int])
    for found in batch.results():
        assert_type(found.result, int | None)


async def over_http(client: TaskClient) -> None:
    task = await client.submit(CountWords, WORDS)
    assert_type(await client.wait(task, timeout=10), CountWordsResult)
    assert_type((await client.get(task)).result, CountWordsResult | None)
    assert_type(await client.wait(task.task_id), Any)
    assert_type(await client.wait(await client.submit("count-words", {"text": "one"})), Any)
    batch = await client.submit_batch(double, [1, 2, 3])
    async for found in client.batch_results(batch, follow=True):
        assert_type(found.result, int | None)


def over_http_without_asyncio(client: SyncTaskClient) -> None:
    assert_type(client.wait(client.submit(CountWords, WORDS)), CountWordsResult)
    assert_type(client.wait(client.submit(Approved)), bool)
    assert_type(client.finished(client.submit(double, 1)).result, int | None)
    for found in client.batch_results(client.submit_batch(double, [1, 2, 3])):
        assert_type(found.result, int | None)
