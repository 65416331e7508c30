"""Task types with sub-tasks and signals, in each colour. A module of their own: child processes import it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

from taskframework import (
    BackgroundTaskExecutable,
    InvalidParametersError,
    Signal,
    SubtaskOutcome,
    SubtaskSummary,
    TaskContext,
    TaskOptions,
    ValueNotStorableError,
)


class Parent(BackgroundTaskExecutable[int, Any]):
    """Submits as many sub-tasks as its parameters say."""

    task_type = "parent"

    async def execute(self, context: TaskContext[int]) -> Any:
        async def numbers() -> AsyncIterator[int]:
            for number in range(context.parameters):
                yield number

        first = await context.submit_subtask("child", -1, priority="high")
        return [first, *await context.submit_subtasks("child", numbers())]

    async def on_subtasks_finished(self, context: TaskContext[int], summary: SubtaskSummary) -> Any:
        return _told(summary, [outcome async for outcome in summary.outcomes()])

    async def on_signal(self, context: TaskContext[int], signal: Signal) -> Any:
        return [signal.name, signal.payload, signal.timed_out]


class ParentInThread(BackgroundTaskExecutable[int, Any]):
    """The same as plain functions."""

    task_type = "parent-in-thread"

    def execute(self, context: TaskContext[int]) -> Any:
        first = context.submit_subtask_blocking("child", -1, priority="high")
        return [first, *context.submit_subtasks_blocking("child", iter(range(context.parameters)))]

    def on_subtasks_finished(self, context: TaskContext[int], summary: SubtaskSummary) -> Any:
        return _told(summary, list(summary.outcomes_blocking()))

    def on_signal(self, context: TaskContext[int], signal: Signal) -> Any:
        return [signal.name, signal.payload, signal.timed_out]


class ParentInProcess(ParentInThread):
    """The same in a process."""

    task_type = "parent-in-process"
    options = TaskOptions(run_in="process")


class ChooserInProcess(BackgroundTaskExecutable[Any, Any]):
    """Hears in its process what is wrong with what it submits, and waits for a signal all the same."""

    task_type = "chooser-in-process"
    options = TaskOptions(run_in="process")

    def execute(self, context: TaskContext[Any]) -> Any:
        for wrong in (3, "many", object()):
            try:
                context.submit_subtasks_blocking("child", self._values(wrong))
            except (InvalidParametersError, ValueNotStorableError) as error:
                context.update_progress_soon({type(error).__name__: str(error)})
        return context.wait_for(signal="go on", timeout=60)

    def on_signal(self, context: TaskContext[Any], signal: Signal) -> Any:
        return None

    @staticmethod
    def _values(last: Any) -> Iterator[Any]:
        yield 0
        yield last


COLOURS = (Parent, ParentInThread, ParentInProcess)


def _told(summary: SubtaskSummary, outcomes: list[SubtaskOutcome]) -> Any:
    counts = [summary.total, summary.succeeded, summary.failed, summary.cancelled]
    return {"counts": counts, "outcomes": [[each.slot, each.status, each.result, each.error] for each in outcomes]}
