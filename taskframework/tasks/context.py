"""The context of a running attempt: its data, and the requests that its code can make."""

from __future__ import annotations

import functools
import logging
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Generic, Protocol, TypeVar, cast, overload

from taskframework.model.values import Json
from taskframework.tasks.kinds import AnyTaskType, KindOf
from taskframework.tasks.steps import Steps
from taskframework.tasks.subtasks import (
    Family,
    WaitForSignal,
    WantedSubtasks,
    plan_in_parts,
    plan_in_parts_blocking,
    plan_subtasks,
    plan_subtasks_blocking,
)

P = TypeVar("P")
Q = TypeVar("Q")
Method = TypeVar("Method", bound=Callable[..., Coroutine[Any, Any, Any]])


class AttemptControl(Protocol):
    """The part of the worker that a context calls: progress, steps, sub-tasks, cancel requests."""

    @property
    def cancel_requested(self) -> bool: ...

    @property
    def steps(self) -> Steps: ...

    @property
    def family(self) -> Family: ...

    async def report_progress(self, value: object) -> None: ...

    def report_progress_soon(self, value: object) -> None:
        """`report_progress` from any thread, without waiting."""
        ...


def _must_be_awaited(method: Method) -> Method:
    """Count the calls of a method that have not begun: without `await` it does nothing, and the task would succeed."""

    name = method.__name__

    @functools.wraps(method)
    def call(context: TaskContext[Any], *args: Any, **options: Any) -> Coroutine[Any, Any, Any]:
        async def begin() -> Any:
            context._not_begun[name] -= 1
            return await method(context, *args, **options)

        context._not_begun[name] = context._not_begun.get(name, 0) + 1
        begin.__qualname__ = method.__qualname__  # Python's own warning names it
        return begin()

    vars(call)["must_be_awaited"] = True  # `inspect` takes it for a plain function
    return cast(Method, call)


@dataclass(frozen=True)  # without slots: a generic class with them cannot be made as TaskContext[P](...) on Python 3.11
class TaskContext(Generic[P]):
    """One attempt of one task.

    Attributes:
        attempt: which attempt this is, from 1.
        fencing_token: grows with every claim of the task and is never reset; an external system that remembers the
            highest token it saw can refuse a worker that was presumed dead.
        idempotency_key: the same for every attempt of the task; pass it on to systems that know such keys.
        logger: writes log lines that carry the task's ids.
        item: which item of a chunk this is, from 0 within the task; None if the task is no chunk of a batch.
    """

    task_id: str
    task_type: str
    user_id: str
    parameters: P = field(repr=False)
    attempt: int
    max_attempts: int
    fencing_token: int
    idempotency_key: str
    correlation_id: str
    parent_task_id: str | None
    logger: logging.Logger
    control: AttemptControl
    item: int | None = None
    #: What `wait_for` gave to the code, which has to return it.
    _waits: list[WaitForSignal] = field(default_factory=list, repr=False, compare=False)
    #: By method: how many calls the code made and did not await.
    _not_begun: dict[str, int] = field(default_factory=dict, repr=False, compare=False)

    async def update_progress(self, value: Json) -> None:
        """Store and publish the progress of the task.

        Several calls in quick succession may become one; the newest value wins.

        Args:
            value: JSON of at most 16 KiB, for example `{"percent": 50}`, or a pydantic model.

        Raises:
            ValueNotStorableError: if it is anything else.
        """
        await self.control.report_progress(value)

    def update_progress_soon(self, value: Json) -> None:
        """`update_progress` for a plain `def execute`: checks the value, hands it over and returns at once.

        Raises:
            ValueNotStorableError: as `update_progress`.
        """
        self.control.report_progress_soon(value)

    @_must_be_awaited
    async def once(self, step: str, function: Callable[[], Awaitable[Any] | Any]) -> Any:
        """Do a step of the task once.

        The result of `function` is recorded in the task; a later attempt, also after a replay, gets this result and
        does not call `function` again. If a process dies after `function` and before the result is recorded, a later
        attempt calls it again: at least once, not exactly once. So use `idempotency_key` where a second call would do
        harm. Two calls for one step at the same time become one; if it fails, the other caller calls `function`.

        Args:
            step: the name of the step within the task, the same in each attempt: 1 to 200 printable characters.
            function: called without arguments; a coroutine function, or a plain function that does not block the loop.

        Returns:
            The result of `function` as plain JSON, the same in the first attempt and in later attempts; a pydantic
            model becomes its JSON form.

        Raises:
            ValueNotStorableError: if the result of `function` is not JSON of at most 256 KiB, or the task has more than
                1,000 steps or 1 MiB of them. Another attempt would not help.
            asyncio.CancelledError: if the lease was lost: the attempt is stopped, another worker does the task.
            Exception: any error of `function`; then nothing is recorded.
        """
        return await self.control.steps.once(step, function, item=self.item)

    def once_blocking(self, step: str, function: Callable[[], Awaitable[Any] | Any]) -> Any:
        """`once` for a plain `def execute`, in a thread or a process: returns when the step is recorded.

        Raises:
            RuntimeError: on an event loop, which must not wait; await `once` there.
            BaseException: as `once`.
        """
        return self.control.steps.once_blocking(step, function, item=self.item)

    @overload
    async def submit_subtask(
        self, task_type: str, parameters: Any = None, *, policy: str | None = None, **options: Any
    ) -> str: ...
    @overload
    async def submit_subtask(
        self, task_type: KindOf[None, Any], parameters: None = None, *, policy: str | None = None, **options: Any
    ) -> str: ...
    @overload
    async def submit_subtask(
        self, task_type: KindOf[Q, Any], parameters: Q, *, policy: str | None = None, **options: Any
    ) -> str: ...
    @_must_be_awaited
    async def submit_subtask(
        self, task_type: AnyTaskType, parameters: Any = None, *, policy: str | None = None, **options: Any
    ) -> str:
        """Submit one sub-task; see `submit_subtasks`.

        Returns:
            Its id.

        Raises:
            BaseException: as `submit_subtasks`.
        """
        [task_id] = await plan_subtasks(self.control.family, WantedSubtasks(task_type, options, policy, (parameters,)))
        return task_id

    @overload
    def submit_subtask_blocking(
        self, task_type: str, parameters: Any = None, *, policy: str | None = None, **options: Any
    ) -> str: ...
    @overload
    def submit_subtask_blocking(
        self, task_type: KindOf[None, Any], parameters: None = None, *, policy: str | None = None, **options: Any
    ) -> str: ...
    @overload
    def submit_subtask_blocking(
        self, task_type: KindOf[Q, Any], parameters: Q, *, policy: str | None = None, **options: Any
    ) -> str: ...
    def submit_subtask_blocking(
        self, task_type: AnyTaskType, parameters: Any = None, *, policy: str | None = None, **options: Any
    ) -> str:
        """`submit_subtask` for a plain `def`, in a thread or a process.

        Raises:
            RuntimeError: on an event loop, which must not wait; await `submit_subtask` there.
            BaseException: as `submit_subtasks`.
        """
        [task_id] = plan_subtasks_blocking(
            self.control.family, WantedSubtasks(task_type, options, policy, (parameters,))
        )
        return task_id

    @overload
    async def submit_subtasks(
        self,
        task_type: str,
        parameters: Iterable[Any] | AsyncIterable[Any],
        *,
        policy: str | None = None,
        **options: Any,
    ) -> list[str]: ...
    @overload
    async def submit_subtasks(
        self,
        task_type: KindOf[Q, Any],
        parameters: Iterable[Q] | AsyncIterable[Q],
        *,
        policy: str | None = None,
        **options: Any,
    ) -> list[str]: ...
    @_must_be_awaited
    async def submit_subtasks(
        self,
        task_type: AnyTaskType,
        parameters: Iterable[Any] | AsyncIterable[Any],
        *,
        policy: str | None = None,
        **options: Any,
    ) -> list[str]:
        """Submit a sub-task for each of these parameters.

        They are stored when this attempt has ended without an error, all or none; an attempt that fails or dies has
        submitted nothing. The task then waits for them, and takes no slot of a worker while it waits.

        Args:
            task_type: the class of a task type, an instance of the class, or the name of the type.
            parameters: for each sub-task a value that the type's model accepts; also a generator of 100,000 values.
            policy: for the whole round, instead of `options.subtasks` of this task type.
            options: `priority`, `max_attempts`, `not_before`, `deadline` and `correlation_id` of `SubmissionOptions`.
                The correlation id is that of this task if none is given.

        Returns:
            Their ids, in the order given; the same in each attempt.

        Raises:
            SubmissionError: if the type is unknown, parameters or an option are wrong, the round has more than 100,000
                sub-tasks, or a sub-task would have more than 16 tasks above it. Sub-tasks that the same call submitted
                before the error stay submitted.
            TypeError: for an option that sub-tasks do not have.
            asyncio.CancelledError: if the lease was lost: the attempt is stopped, another worker does the task.
        """
        return await plan_in_parts(self.control.family, WantedSubtasks(task_type, options, policy), parameters)

    @overload
    def submit_subtasks_blocking(
        self, task_type: str, parameters: Iterable[Any], *, policy: str | None = None, **options: Any
    ) -> list[str]: ...
    @overload
    def submit_subtasks_blocking(
        self, task_type: KindOf[Q, Any], parameters: Iterable[Q], *, policy: str | None = None, **options: Any
    ) -> list[str]: ...
    def submit_subtasks_blocking(
        self, task_type: AnyTaskType, parameters: Iterable[Any], *, policy: str | None = None, **options: Any
    ) -> list[str]:
        """`submit_subtasks` for a plain `def`, in a thread or a process.

        Raises:
            RuntimeError: on an event loop, which must not wait; await `submit_subtasks` there.
            BaseException: as `submit_subtasks`.
        """
        return plan_in_parts_blocking(self.control.family, WantedSubtasks(task_type, options, policy), parameters)

    def wait_for(self, *, signal: str, timeout: timedelta | float | None = None) -> WaitForSignal:
        """Wait for a signal, or for the sub-tasks if some were submitted and finish first.

        Write `return context.wait_for(...)`. The task takes no slot of a worker while it waits, and continues in
        `on_signal`; if the signal was sent before, it continues at once.

        Args:
            signal: the name of the signal, 1 to 200 printable ASCII characters.
            timeout: how long to wait, as a timedelta or in seconds; None waits forever. After this time `on_signal` is
                called without the signal: it gets an object whose `timed_out` is true.

        Returns:
            The value that the method has to return.

        Raises:
            InvalidRequestError: if the name or the timeout is not valid.
        """
        self._waits.append(wait := WaitForSignal.new(signal, timeout))
        return wait

    @property
    def is_cancel_requested(self) -> bool:
        """Whether this task was asked to stop; a long loop should check this regularly."""
        return self.control.cancel_requested


def forgotten_await(context: TaskContext[Any]) -> str | None:
    """The name of a method that code called and did not await, so that it did nothing; None if there is none."""
    return next((name for name, calls in context._not_begun.items() if calls), None)


def has_forgotten_wait(context: TaskContext[Any], returned: object) -> bool:
    """Whether code called `wait_for` and then returned something else, so that its task would not wait. The code of a
    chunk returns a list.
    """
    returns = returned if isinstance(returned, list) else [returned]
    return bool(context._waits) and not any(isinstance(value, WaitForSignal) for value in returns)
