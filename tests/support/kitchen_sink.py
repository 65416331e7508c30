"""Task types for tests: one for each way an attempt can go."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from datetime import timedelta
from typing import Any, ClassVar

from pydantic import BaseModel

from taskframework import BackgroundTaskExecutable, NonRetryableError, RetryableError, TaskContext, TaskOptions


class Text(BaseModel):
    text: str


class Words(BaseModel):
    words: int


class CountWords(BackgroundTaskExecutable[Text, Words]):
    """Succeeds, with one progress report."""

    task_type = "count-words"

    async def execute(self, context: TaskContext[Text]) -> Words:
        await context.update_progress({"percent": 50})
        return Words(words=len(context.parameters.text.split()))


class Flaky(BackgroundTaskExecutable[dict[str, Any], int]):
    """Fails with a retryable error until the attempt named in `succeed_at`; tells the attempt that succeeded."""

    task_type = "flaky"

    def execute(self, context: TaskContext[dict[str, Any]]) -> int:
        if context.attempt < context.parameters["succeed_at"]:
            raise RetryableError("not yet", delay=context.parameters.get("delay"))
        return context.attempt


class Broken(BackgroundTaskExecutable[None, None]):
    """Has a bug."""

    task_type = "broken"

    async def execute(self, context: TaskContext[None]) -> None:
        raise ValueError("a bug")


class Refuses(BackgroundTaskExecutable[None, None]):
    """Says itself that there is no point in another attempt."""

    task_type = "refuses"

    async def execute(self, context: TaskContext[None]) -> None:
        raise NonRetryableError("never")


class Returns(BackgroundTaskExecutable[Any, Any]):
    """Returns something that cannot be stored, by name."""

    task_type = "returns"

    async def execute(self, context: TaskContext[Any]) -> Any:
        return {
            "huge": "x" * 3_000_000,
            "not-a-number": float("nan"),
            "big-integer": 2**70,
            "surrogate": "\ud800",
            "object": object(),
        }[context.parameters]


class Waits(BackgroundTaskExecutable[None, str]):
    """Runs until it is cancelled, or until `gate` is opened by a test in the same process."""

    task_type = "waits"
    gate = asyncio.Event()
    started = 0

    async def execute(self, context: TaskContext[None]) -> str:
        type(self).started += 1
        await self.gate.wait()
        return "done"


class WaitsInThread(BackgroundTaskExecutable[None, str]):
    """A plain function that looks whether it should stop."""

    task_type = "waits-in-thread"
    started = threading.Event()

    def execute(self, context: TaskContext[None]) -> str:
        self.started.set()
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            if context.is_cancel_requested:
                return "stopped"
            time.sleep(0.01)
        return "never asked"


class TooSlow(BackgroundTaskExecutable[None, None]):
    """Runs longer than its own timeout."""

    task_type = "too-slow"
    options = TaskOptions(timeout=timedelta(milliseconds=100), max_attempts=2, initial_delay=timedelta(0))

    async def execute(self, context: TaskContext[None]) -> None:
        await asyncio.sleep(60)


class InProcess(BackgroundTaskExecutable[int, dict[str, int]]):
    """Computes in a process of its own."""

    task_type = "in-process"
    options = TaskOptions(run_in="process")

    def execute(self, context: TaskContext[int]) -> dict[str, int]:
        context.update_progress_soon({"percent": 10})
        return {"sum": sum(range(context.parameters)), "process": os.getpid()}


class Counts(BackgroundTaskExecutable[None, int]):
    """Counts its executions in this process, by task id."""

    task_type = "counts"
    executions: ClassVar[dict[str, int]] = {}

    async def execute(self, context: TaskContext[None]) -> int:
        self.executions[context.task_id] = self.executions.get(context.task_id, 0) + 1
        return self.executions[context.task_id]


ALL: tuple[type[BackgroundTaskExecutable[Any, Any]], ...] = (
    CountWords,
    Flaky,
    Broken,
    Refuses,
    Returns,
    Waits,
    WaitsInThread,
    TooSlow,
    InProcess,
    Counts,
)
