"""Task types for batches: chunks with steps, a failing item, and types that give a batch its result."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from taskframework import BackgroundTaskExecutable, RetryableError, SubtaskSummary, TaskContext, TaskOptions


class Charges(BackgroundTaskExecutable[str, str]):
    """Does a step for each item; the item `flaky` fails after its own step, in the first attempt."""

    task_type = "charges"
    options = TaskOptions(max_chunk_size=5)
    charged: ClassVar[list[tuple[str, str]]] = []

    async def execute(self, context: TaskContext[str]) -> str:
        receipt: str = await context.once("charge", lambda: self._charge(context))
        if context.parameters == "flaky" and context.attempt == 1:
            raise RetryableError("not yet", delay=0)
        if context.parameters == "broken":
            raise ValueError("a bug")
        return receipt

    def _charge(self, context: TaskContext[str]) -> str:
        self.charged.append((context.parameters, context.idempotency_key))
        return f"charged {context.parameters}"


def squared(number: int) -> int:
    if number < 0:
        raise ValueError("negative")
    return number**2


class Squares(BackgroundTaskExecutable[int, int]):
    """The same in a thread."""

    task_type = "squares"

    def execute(self, context: TaskContext[int]) -> int:
        return squared(context.parameters)


class SquaresInProcess(BackgroundTaskExecutable[int, int]):
    """And in a process of its own."""

    task_type = "squares-in-process"
    options = TaskOptions(run_in="process")

    def execute(self, context: TaskContext[int]) -> int:
        return squared(context.parameters)


class Lingers(BackgroundTaskExecutable[None, None]):
    """Goes on after it was asked to stop, until `gate` is opened by a test in the same process."""

    task_type = "lingers"
    gate = asyncio.Event()
    is_asked = asyncio.Event()

    async def execute(self, context: TaskContext[None]) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.is_asked.set()
            await self.gate.wait()


class Waiting(BackgroundTaskExecutable[None, None]):
    """Wants to wait, which an item of a chunk cannot."""

    task_type = "waiting"

    async def execute(self, context: TaskContext[None]) -> Any:
        return context.wait_for(signal="approved")

    async def on_signal(self, context: TaskContext[None], signal: Any) -> None:
        return None


class Summed(BackgroundTaskExecutable[int, int]):
    """A batch of these has the sum of what succeeded for a result; its end fails once."""

    task_type = "summed"

    async def execute(self, context: TaskContext[int]) -> int:
        if context.parameters < 0:
            raise ValueError("negative")
        return context.parameters

    async def on_batch_finished(self, context: TaskContext[None], summary: SubtaskSummary) -> dict[str, Any]:
        if context.attempt == 1:
            raise RetryableError("not yet", delay=0)
        results = [outcome.result async for outcome in summary.outcomes()]
        return {"sum": sum(result for result in results if result is not None), "failed": summary.failed}


ALL = (Charges, Squares, SquaresInProcess, Lingers, Waiting, Summed)
