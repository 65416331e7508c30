"""One task in three colours that does steps, fails once, and tells what both attempts saw."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any, ClassVar

from pydantic import BaseModel

from taskframework import BackgroundTaskExecutable, RetryableError, TaskContext, TaskOptions

AGAIN = timedelta(0)
#: Names that mean something elsewhere.
NAMES = ("$set", "a.b", "__proto__", "_id")


class Receipt(BaseModel):
    number: str
    amounts: tuple[float, ...] = (1.0, 2.5)


class Effect:
    """The function of a step: never gives the same twice."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> Any:
        self.calls += 1
        return [Receipt(number=os.urandom(8).hex()).model_dump(), "$$ROOT", {"$set": {"a.b": 1}}, None, 1.0]


class Receipts(BaseModel):
    first: Any
    second: Any
    calls: int


class Steady(BackgroundTaskExecutable[None, Any]):
    """The first attempt does the steps and fails; a later one does them too, and tells."""

    task_type = "steady"
    options = TaskOptions(initial_delay=AGAIN)

    async def execute(self, context: TaskContext[None]) -> Any:
        effect = Effect()

        async def receipt() -> Receipt:
            return Receipt(number=os.urandom(8).hex())

        seen = [await context.once(name, effect) for name in NAMES] + [await context.once("a model", receipt)]
        first = await context.once("what the first attempt saw", lambda: seen)
        if context.attempt == 1:
            raise RetryableError("after the steps")
        return Receipts(first=first, second=seen, calls=effect.calls)


class SteadyPlain(BackgroundTaskExecutable[None, Any]):
    """The same in a thread."""

    task_type = "steady-plain"
    options = TaskOptions(initial_delay=AGAIN)

    def execute(self, context: TaskContext[None]) -> Any:
        effect = Effect()
        seen = [context.once_blocking(name, effect) for name in NAMES]
        seen.append(context.once_blocking("a model", lambda: Receipt(number=os.urandom(8).hex())))
        first = context.once_blocking("what the first attempt saw", lambda: seen)
        if context.attempt == 1:
            raise RetryableError("after the steps")
        return Receipts(first=first, second=seen, calls=effect.calls)


class SteadyInProcess(SteadyPlain):
    """The same in a process."""

    task_type = "steady-in-process"
    options = TaskOptions(initial_delay=AGAIN, run_in="process")


class SteadyLaterInProcess(BackgroundTaskExecutable[None, Any]):
    """The same as a coroutine in a process."""

    task_type = "steady-later-in-process"
    options = TaskOptions(initial_delay=AGAIN, run_in="process")

    def execute(self, context: TaskContext[None]) -> Any:
        return Steady().execute(context)


class Charges(BackgroundTaskExecutable[Any, int]):
    """Does one step and then ends as the parameters say; counts how often it was done, by task id."""

    task_type = "charges"
    options = TaskOptions(initial_delay=AGAIN)
    charged: ClassVar[dict[str, int]] = {}

    async def execute(self, context: TaskContext[Any]) -> int:
        receipt: int = await context.once("charge", lambda: self._charge(context.task_id))
        if context.parameters == "breaks" and context.fencing_token == 1:
            raise ValueError("a bug after the step")
        if context.parameters == "bad name":
            await context.once("a\0b", lambda: self._charge("never"))
        if context.parameters == "bad outcome":
            await context.once("bad", lambda: float("nan"))
        return receipt

    def _charge(self, task_id: str) -> int:
        self.charged[task_id] = self.charged.get(task_id, 0) + 1
        return self.charged[task_id]


STEADY = (Steady, SteadyPlain, SteadyInProcess, SteadyLaterInProcess)
EVERY = (*STEADY, Charges)
