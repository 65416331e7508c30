"""The user's program of the console's tests and benchmark: task types with something to see."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from taskframework import BackgroundTaskExecutable, NonRetryableError, RetryableError, TaskContext, TaskOptions


class Rows(BaseModel):
    rows: int = Field(default=100, ge=1)


class ImportRows(BackgroundTaskExecutable[Rows, int]):
    """Reports a tenth, then another one each time that a file of its number appears in the working directory."""

    task_type = "import-rows"
    options = TaskOptions(max_attempts=5)

    async def execute(self, context: TaskContext[Rows]) -> int:
        for step in range(1, 4):
            await context.update_progress({"percent": 25 * step})
            while not Path(f"step-{step}").exists():  # noqa: ASYNC110 - told by another process
                await asyncio.sleep(0.02)
        return context.parameters.rows


class Order(BaseModel):
    order_id: str
    amount: float


class ChargeCard(BackgroundTaskExecutable[Order, dict[str, Any]]):
    task_type = "charge-card"

    async def execute(self, context: TaskContext[Order]) -> dict[str, Any]:
        order = context.parameters
        if order.amount <= 0:
            raise NonRetryableError("there is nothing to charge")
        return {"receipt": f"R-{order.order_id}"}


class Letter(BaseModel):
    to: str
    copies: int = 1


class MailLetter(BackgroundTaskExecutable[Letter, str]):
    task_type = "mail-letter"

    async def execute(self, context: TaskContext[Letter]) -> str:
        if "@" not in context.parameters.to:
            raise ValueError("this is no address")
        return f"sent to {context.parameters.to}"


class Naps(BackgroundTaskExecutable[float, None]):
    task_type = "naps"
    options = TaskOptions(concurrency_limit=2)

    async def execute(self, context: TaskContext[float]) -> None:
        await asyncio.sleep(context.parameters)


class Report(BackgroundTaskExecutable[int, int]):
    task_type = "write-report"

    async def execute(self, context: TaskContext[int]) -> None:
        await context.submit_subtasks("naps", [0.01] * context.parameters)

    async def on_subtasks_finished(self, context: TaskContext[int], summary: Any) -> int:
        return int(summary.succeeded)


class Account(BaseModel):
    account: int
    amount: float


class ChargeAccount(BackgroundTaskExecutable[Account, int]):
    """Gives the number of the account, which may be larger than what JavaScript counts to."""

    task_type = "charge-account"

    async def execute(self, context: TaskContext[Account]) -> int:
        if context.parameters.amount <= 0:
            raise NonRetryableError("there is nothing to charge")
        return context.parameters.account


class FailsWith(BackgroundTaskExecutable[str, None]):
    """Fails with the message that it is given."""

    task_type = "fails-with"

    async def execute(self, context: TaskContext[str]) -> None:
        raise NonRetryableError(context.parameters)


class GivesUp(BackgroundTaskExecutable[int, None]):
    task_type = "gives-up"
    options = TaskOptions(max_attempts=1)

    async def execute(self, context: TaskContext[int]) -> None:
        raise RetryableError("the provider is down")


class SecondTry(BackgroundTaskExecutable[None, None]):
    """Fails once, then tells how far it is and waits for its cancel."""

    task_type = "second-try"

    async def execute(self, context: TaskContext[None]) -> None:
        if context.attempt == 1:
            raise RetryableError("the connection broke", delay=0)
        await context.update_progress({"percent": 40, "step": "reading"})
        await asyncio.sleep(600)


class Later(BackgroundTaskExecutable[None, str]):
    """Its first attempt fails, and the second one is due in an hour."""

    task_type = "later"

    async def execute(self, context: TaskContext[None]) -> str:
        if context.attempt == 1:
            raise RetryableError("the provider is down", delay=3600)
        return "done"


class Stubborn(BackgroundTaskExecutable[int, None]):
    """Takes two seconds to stop after it was asked to."""

    task_type = "stubborn"

    async def execute(self, context: TaskContext[int]) -> None:
        try:
            await asyncio.sleep(600)
        finally:
            await asyncio.sleep(2)
