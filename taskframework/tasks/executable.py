"""The class that authors extend to write a task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable
from typing import Any, ClassVar, TypeAlias, TypeVar

from taskframework.model.task_fields import Signal
from taskframework.tasks.context import TaskContext
from taskframework.tasks.kinds import TaskKind
from taskframework.tasks.options import TaskOptions
from taskframework.tasks.subtasks import SubtaskSummary, WaitForSignal

P = TypeVar("P")
R = TypeVar("R")

#: What `execute` returns. If the task continues in another method: None, or the result of `context.wait_for`.
Returned: TypeAlias = R | WaitForSignal | Awaitable[R | WaitForSignal | None] | None


class BackgroundTaskExecutable(TaskKind[P, R], ABC):
    """One type of background task.

    P and R are any types that pydantic validates. `execute` is `async def`, or a plain `def` that then runs in a thread
    (or, with `options.run_in="process"`, in a process of its own). One instance serves all attempts, so keep no state
    of an attempt on `self`.

    A task that submits sub-tasks, or waits for a signal, continues in `on_subtasks_finished` or `on_signal`. Both are
    written and run like `execute`, each with a full number of attempts of its own. Both may also do the same: give the
    result, submit the next round of sub-tasks, wait again. A task type that needs neither leaves them out.

    An attempt may be repeated: the process can die after the work is done and before the store knows this. Use
    `context.once`, `context.idempotency_key` and `context.fencing_token` where an effect must not happen twice.
    """

    options: ClassVar[TaskOptions] = TaskOptions()

    @abstractmethod
    def execute(self, context: TaskContext[P]) -> Returned[R]:
        """Do the work.

        Args:
            context: the parameters and everything else about this attempt.

        Returns:
            R, or a coroutine that gives R; or the result of `context.wait_for`. With sub-tasks and
            `on_subtasks_finished` it may be None, because that method gives the result.

        Raises:
            RetryableError: to be tried again, after `delay` if given.
            NonRetryableError: to fail for good.
        """

    def on_subtasks_finished(self, context: TaskContext[P], summary: SubtaskSummary) -> Returned[R]:
        """Continue when the sub-tasks have met the policy.

        Without this method the task is then done, and its result is the value that `execute` returned.

        Args:
            context: as for `execute`, with the same parameters.
            summary: how the sub-tasks ended.

        Returns:
            As `execute`.

        Raises:
            Exception: as `execute`.
        """
        raise NotImplementedError

    def on_batch_finished(self, context: TaskContext[None], summary: SubtaskSummary) -> Any:
        """Give a batch of this type a result, when its tasks have met the policy.

        Without this method the batch then ends without a result of its own. The method runs as an attempt of the batch,
        with retries and a timeout like any other attempt, but can neither submit sub-tasks nor wait.

        Args:
            context: of the batch; its parameters are None.
            summary: how the tasks ended.

        Returns:
            Plain JSON, or a pydantic model.

        Raises:
            Exception: as `execute`.
        """
        raise NotImplementedError

    def on_signal(self, context: TaskContext[P], signal: Signal) -> Returned[R]:
        """Continue when the signal that the task waits for has come, or has not come in time.

        Args:
            context: as for `execute`, with the same parameters.
            signal: with its `name` and `payload`; `timed_out` says that it did not come in time.

        Returns:
            As `execute`.

        Raises:
            Exception: as `execute`.
        """
        raise NotImplementedError


#: An executable as users name it: an instance, or a class that needs no arguments.
AnyExecutable = BackgroundTaskExecutable[Any, Any] | type[BackgroundTaskExecutable[Any, Any]]
