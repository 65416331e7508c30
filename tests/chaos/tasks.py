"""Task types whose code writes down what it does. Run by the workers under test, in processes of their own."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import BaseModel

from taskframework import BackgroundTaskExecutable, RetryableError, Signal, SubtaskSummary, TaskContext, WaitForSignal
from tests.chaos.history import Recorder

_SLICE = 0.02
#: A worker that is in a hurry does its work in this part of the time.
_PACE = float(os.environ.get("CHAOS_PACE", "1"))

recorder = Recorder.from_environment()


class Work(BaseModel):
    """What to do: take time, and fail in the first attempts."""

    seconds: float = 0.05
    fails: int = 0
    delay: float = 0.2

    @property
    def half(self) -> float:
        """Seconds until the middle of the work."""
        return self.seconds * _PACE / 2


class _StoppedError(Exception):
    """The code saw that nobody wants it to go on."""


class AsyncWork(BackgroundTaskExecutable[Work, dict[str, int]]):
    """Waits on the event loop."""

    task_type = "async-work"

    async def execute(self, context: TaskContext[Work]) -> dict[str, int]:
        with _written_down(context):
            await asyncio.sleep(context.parameters.half)
            _act(context)
            await asyncio.sleep(context.parameters.half)
            _fail_in_time(context)
        return _result(context)


class PlainWork(BackgroundTaskExecutable[Work, dict[str, int]]):
    """A plain function: nobody can stop its thread from outside."""

    task_type = "plain-work"

    def execute(self, context: TaskContext[Work]) -> dict[str, int]:
        with _written_down(context):
            _sleep(context, context.parameters.half)
            _act(context)
            _sleep(context, context.parameters.half)
            _fail_in_time(context)
        return _result(context)


class Tree(BaseModel):
    """A tree of tasks: so many levels, on each so many sub-tasks a task; the lowest ones take time."""

    children: int
    levels: int = 1
    seconds: float = 0.0


class Parent(BackgroundTaskExecutable[Tree, dict[str, Any]]):
    """Plans sub-tasks, and tells in its result which outcomes it saw."""

    task_type = "parent"

    async def execute(self, context: TaskContext[Tree]) -> dict[str, Any]:
        tree = context.parameters
        with _written_down(context):
            if tree.levels > 1:
                below = tree.model_copy(update={"levels": tree.levels - 1})
                await context.submit_subtasks("parent", [below] * tree.children)
            else:
                await context.submit_subtasks("async-work", [Work(seconds=tree.seconds)] * tree.children)
        return {}

    async def on_subtasks_finished(self, context: TaskContext[Tree], summary: SubtaskSummary) -> dict[str, Any]:
        with _written_down(context):
            slots = [outcome.slot async for outcome in summary.outcomes() if outcome.status == "COMPLETED"]
        is_whole = slots == list(range(context.parameters.children))
        return {**_result(context), "is_whole": is_whole, "succeeded": summary.succeeded}


class Asks(BackgroundTaskExecutable[None, dict[str, Any]]):
    """Waits until somebody says yes."""

    task_type = "asks"

    async def execute(self, context: TaskContext[None]) -> WaitForSignal:
        with _written_down(context):
            return context.wait_for(signal="answer")

    async def on_signal(self, context: TaskContext[None], signal: Signal) -> dict[str, Any]:
        with _written_down(context):
            return {**_result(context), "answer": signal.payload}


class Exits(BackgroundTaskExecutable[None, None]):
    """Takes its worker with it."""

    task_type = "exits"

    async def execute(self, context: TaskContext[None]) -> None:
        _note("start", context, attempt=context.attempt)
        await asyncio.sleep(0.3)  # until others run beside it
        os._exit(139)


def _sleep(context: TaskContext[Work], seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(min(_SLICE, seconds))
        if context.is_cancel_requested:
            raise _StoppedError


def _act(context: TaskContext[Any]) -> None:
    _note("effect", context)


def _fail_in_time(context: TaskContext[Work]) -> None:
    if context.attempt <= context.parameters.fails:
        raise RetryableError("not yet", delay=context.parameters.delay)


def _result(context: TaskContext[Any]) -> dict[str, int]:
    return {"token": context.fencing_token, "attempt": context.attempt, "pid": os.getpid()}


@contextmanager
def _written_down(context: TaskContext[Any]) -> Iterator[None]:
    _note("start", context, attempt=context.attempt)
    try:
        yield
    except RetryableError as error:
        _note("end", context, outcome="raised", delay=error.delay.total_seconds() if error.delay else None)
        raise
    except BaseException:
        _note("end", context, outcome="stopped")
        raise
    _note("end", context, outcome="returned")


def _note(what: str, context: TaskContext[Any], **fields: Any) -> None:
    recorder.record(f"execution.{what}", task=context.task_id, token=context.fencing_token, pid=os.getpid(), **fields)
