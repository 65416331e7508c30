"""Ten mistakes and a few more, each in the line that says so."""

import taskframework
import taskframework.testing
from taskframework import (
    BackgroundTaskExecutable,
    SubmitRequest,
    SyncTaskClient,
    SyncTaskFramework,
    TaskClient,
    TaskContext,
    TaskFramework,
    resource,
    task,
)
from tests.typed.project.counting import CountAll, CountWords, CountWordsParameters, CountWordsResult, Pool, double

WORDS = CountWordsParameters(text="one two three")


def misspelt_names() -> object:
    _ = taskframework.TaskFramewrk  # mistake: there is no such name
    return taskframework.testing.harnes  # mistake: there is no such name


class ReturnsText(BackgroundTaskExecutable[int, int]):
    task_type = "returns-text"

    async def execute(self, context: TaskContext[int]) -> str:  # mistake: gives another type than the class says
        return str(context.parameters)


class ReturnsTextInThread(BackgroundTaskExecutable[int, int]):
    task_type = "returns-text-in-thread"

    def execute(self, context: TaskContext[int]) -> str:  # mistake: the same in a plain def
        return str(context.parameters)


class TakesText(BackgroundTaskExecutable[int, int]):
    task_type = "takes-text"

    async def execute(self, context: TaskContext[str]) -> int:  # mistake: takes other parameters than the class says
        await context.submit_subtask(CountWords, context.parameters)  # mistake: a sub-task with parameters of another
        await context.submit_subtasks(double, ["one"])  # mistake: the same for several
        return 1


@task("half", max_attempt=2)  # mistake: there is no such option
def half(parameters: int) -> int:
    return parameters // 2


@task("context-first")  # mistake: the context comes second
def context_first(context: TaskContext[int], parameters: int) -> int:
    return parameters


class WantsPool(BackgroundTaskExecutable[str, int]):
    task_type = "wants-pool"

    async def execute(self, context: TaskContext[str], pool: str = resource(Pool)) -> int:  # mistake: it is a Pool
        return len(pool)


class LacksDefault(BackgroundTaskExecutable[str, int]):
    task_type = "lacks-default"

    async def execute(self, context: TaskContext[str], pool: Pool) -> int:  # mistake: nobody gives it
        return pool.size()


async def without_call_next(context: TaskContext[str]) -> None: ...


def around_a_worker(framework: TaskFramework) -> None:
    framework.use(without_call_next)  # mistake: it cannot go on with the attempt
    framework.lifespan(Pool)  # mistake: it is no context manager


async def from_a_program(framework: TaskFramework) -> None:
    await framework.submit(CountWords, CountWordsResult(words=1))  # mistake: the result is no parameter
    await framework.submit(CountWords)  # mistake: the parameters are missing
    await framework.submit(double, 4, prioriti="high")  # mistake: there is no such option
    handle = await framework.submit(CountWords, WORDS)
    _ = (await handle.result()).lines  # mistake: the result has no such field
    text: str = await (await framework.submit(double, 4)).result()  # mistake: the result is a number
    _ = (text, SubmitRequest(task_type=CountAll, parameters=[1, 2]))  # mistake: the texts are numbers
    await framework.submit_batch(CountWords, [1, 2])  # mistake: the items are of another type
    framework.register(CountWordsParameters)  # mistake: it is no task


def without_asyncio(tasks: SyncTaskFramework) -> None:
    tasks.submit(double, "four")  # mistake: the parameters are of another type
    _ = tasks.submit(CountWords, WORDS).result() + 1  # mistake: the result is no number


async def over_http(client: TaskClient, blocking: SyncTaskClient) -> None:
    await client.submit(double, "four")  # mistake: the parameters are of another type
    words = blocking.wait(blocking.submit(CountWords, WORDS))
    _ = words + 1  # mistake: the result is no number
