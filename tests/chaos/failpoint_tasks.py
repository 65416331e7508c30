"""The task types of the failpoint scenarios. Run by the processes under test, in the scenario's folder."""

from __future__ import annotations

import asyncio
import functools
import os
from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from taskframework import (
    BackgroundTaskExecutable,
    ConcurrencyLimit,
    RateLimit,
    RetryableError,
    Signal,
    SubtaskSummary,
    TaskContext,
    TaskOptions,
)
from taskframework.aggregation import parent_work
from taskframework.limits import slots
from taskframework.model import subtasks
from taskframework.recovery import batches, parents
from tests.chaos.failpoint_files import GO, MENDED, STEP
from tests.chaos.history import Recorder

# What a killed process had in hand is taken up by others after this long, instead of after half a minute.
for module in (parent_work, parents, batches):
    vars(module)["RESERVATION_TIME"] = timedelta(seconds=2)
# And what a sleeping process may still store is looked for this long, instead of a minute.
vars(subtasks)["LATE_SPAWN_TIME"] = timedelta(seconds=2)
# All servers have one clock here.
vars(slots)["MAX_CLOCK_DIFFERENCE_SECONDS"] = 1.0

_LOOK_SECONDS = 0.02


class Wanted(BaseModel):
    """What the task does besides reporting progress and doing a step."""

    #: How many attempts fail.
    fails: int = 0
    #: The first attempt that waits until it may go; 0 for none.
    waits_from: int = 0
    is_broken: bool = False
    #: How many sub-tasks a family has.
    subtasks: int = 3


class Probe(BackgroundTaskExecutable[Wanted, dict[str, int]]):
    """Writes down that it runs, passes whatever a task can pass, and returns its token."""

    task_type = "probe"

    async def execute(self, context: TaskContext[Wanted]) -> dict[str, int]:
        _note("start", context, attempt=context.attempt)
        outcome = "stopped"
        try:
            await self._work(context)
            outcome = "returned"
        except RetryableError:
            outcome = "raised"
            raise
        finally:
            _note("end", context, outcome=outcome, delay=None)
        return {"token": context.fencing_token, "attempt": context.attempt}

    @staticmethod
    async def _work(context: TaskContext[Wanted]) -> None:
        wanted = context.parameters
        await context.update_progress({"attempt": context.attempt})
        await context.once("step", lambda: _recorder().record(STEP, task=context.task_id, token=context.fencing_token))
        if context.attempt <= wanted.fails:
            raise RetryableError("not yet", delay=0.5, pause_limit=True)
        if wanted.is_broken and not MENDED.exists():
            raise ValueError("broken until it is mended")
        while 0 < wanted.waits_from <= context.attempt and not GO.exists():  # noqa: ASYNC110 - another process makes the file
            await asyncio.sleep(_LOOK_SECONDS)
        _note("effect", context)


class Limited(Probe):
    """Begins as its bucket allows."""

    task_type = "limited"
    options = TaskOptions(rate_limit="default")


class Keyed(Probe):
    """Begins as the bucket of those allows that wait as it does."""

    task_type = "keyed"
    options = TaskOptions(rate_limit=RateLimit("default", key="waits_from"))


class Single(Probe):
    """One runs at once."""

    task_type = "single"
    options = TaskOptions(concurrency_limit=1)


class SingleOfKey(Probe):
    """One runs at once of those that wait as it does."""

    task_type = "single-of-key"
    options = TaskOptions(concurrency_limit=ConcurrencyLimit(1, key="waits_from"))


class Family(BackgroundTaskExecutable[Wanted, dict[str, int]]):
    """Plans probes and returns what it saw of them."""

    task_type = "family"

    async def execute(self, context: TaskContext[Wanted]) -> dict[str, int]:
        _note("start", context, attempt=context.attempt)
        await context.submit_subtasks("probe", [context.parameters] * context.parameters.subtasks)
        _note("end", context, outcome="returned", delay=None)
        return {}

    async def on_subtasks_finished(self, context: TaskContext[Wanted], summary: SubtaskSummary) -> dict[str, Any]:
        _note("start", context, attempt=context.attempt)
        slots = [outcome.slot async for outcome in summary.outcomes()]
        _note("end", context, outcome="returned", delay=None)
        return {"token": context.fencing_token, "is_whole": slots == list(range(context.parameters.subtasks))}


class Patient(BackgroundTaskExecutable[Wanted, dict[str, Any]]):
    """Waits for a signal and returns its payload."""

    task_type = "patient"

    async def execute(self, context: TaskContext[Wanted]) -> Any:
        _note("start", context, attempt=context.attempt)
        _note("end", context, outcome="returned", delay=None)
        return context.wait_for(signal="go")

    async def on_signal(self, context: TaskContext[Wanted], signal: Signal) -> dict[str, Any]:
        _note("start", context, attempt=context.attempt)
        _note("end", context, outcome="returned", delay=None)
        return {"token": context.fencing_token, "payload": signal.payload, "timed_out": signal.timed_out}


def _note(what: str, context: TaskContext[Any], **fields: Any) -> None:
    _recorder().record(
        f"execution.{what}", task=context.task_id, token=context.fencing_token, pid=os.getpid(), **fields
    )


@functools.cache
def _recorder() -> Recorder:
    return Recorder.from_environment()
