"""The class people extend to write a task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, TypeVar

from taskframework.tasks.context import TaskContext
from taskframework.tasks.options import TaskOptions

P = TypeVar("P")
R = TypeVar("R")


class BackgroundTaskExecutable(ABC, Generic[P, R]):
    """One type of background task.

    P and R are anything pydantic validates. `execute` is `async def`, or a plain `def` that then runs in a thread
    (or, with `options.run_in="process"`, in a process of its own). One instance serves all attempts, so keep no state
    of an attempt on `self`.

    An attempt may be repeated: the process can die after the work is done and before that is known. Use
    `context.once`, `context.idempotency_key` and `context.fencing_token` where an effect must not happen twice.
    """

    #: Name on the wire and over HTTP: `[a-z0-9][a-z0-9._-]*`, at most 100 characters.
    task_type: ClassVar[str]
    options: ClassVar[TaskOptions] = TaskOptions()

    @abstractmethod
    def execute(self, context: TaskContext[P]) -> Any:
        """Do the work.

        Args:
            context: the parameters and everything else about this attempt.

        Returns:
            R, or a coroutine that gives R.

        Raises:
            RetryableError: to be tried again, after `delay` if given.
            NonRetryableError: to fail for good.
        """


#: An executable as users name it: an instance, or a class that needs no arguments.
AnyExecutable = BackgroundTaskExecutable[Any, Any] | type[BackgroundTaskExecutable[Any, Any]]
