"""What a running attempt knows and may do."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from taskframework.model.values import Json
from taskframework.tasks.steps import Steps

P = TypeVar("P")


class AttemptControl(Protocol):
    """What the worker gives a context: the way back to the task."""

    @property
    def cancel_requested(self) -> bool: ...

    @property
    def steps(self) -> Steps: ...

    async def report_progress(self, value: object) -> None: ...

    def report_progress_soon(self, value: object) -> None:
        """The same from any thread, without waiting."""
        ...


@dataclass(frozen=True)  # without slots: a generic class with them cannot be made as TaskContext[P](...) on Python 3.11
class TaskContext(Generic[P]):
    """One attempt of one task.

    Attributes:
        attempt: which attempt this is, from 1.
        fencing_token: grows with every claim of the task and is never reset; an outside system that remembers the
            highest token it saw can refuse a worker that was presumed dead.
        idempotency_key: the same for every attempt of the task; pass it on to systems that know such keys.
        logger: writes log lines that carry the task's ids.
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

    async def update_progress(self, value: Json) -> None:
        """Store and tell how far the task is.

        Several calls in quick succession may become one; the newest value wins.

        Args:
            value: JSON of at most 16 KiB, for example `{"percent": 50}`; a pydantic model will do.

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

    async def once(self, step: str, function: Callable[[], Awaitable[Any] | Any]) -> Any:
        """Do a step of the task once.

        What `function` gives is recorded under the task; a later attempt, also one after a replay, gets that and does
        not call it again. A process that dies after `function` and before the record calls it again all the same: at
        least once, not exactly once. So pass `idempotency_key` on where calling twice would harm. Two calls for one
        step at a time become one; if it fails, the other one tries itself.

        Args:
            step: names the step within the task, always the same way: 1 to 200 printable characters.
            function: called without arguments; a coroutine function or a plain one, which should not block the loop.

        Returns:
            What `function` gave as plain JSON, the same on the first attempt and on later ones; a pydantic model
            becomes its JSON form.

        Raises:
            ValueNotStorableError: if what `function` gave is not JSON of at most 256 KiB, or the task has more than
                1,000 steps or 1 MiB of them. Another attempt would not help.
            asyncio.CancelledError: if the lease was lost: the attempt is stopped, another worker does the task.
            Exception: whatever `function` raises; then nothing is recorded.
        """
        return await self.control.steps.once(step, function)

    def once_blocking(self, step: str, function: Callable[[], Awaitable[Any] | Any]) -> Any:
        """`once` for a plain `def execute`, in a thread or a process: returns when the step is recorded.

        Raises:
            RuntimeError: on an event loop, which must not wait; await `once` there.
            BaseException: as `once`.
        """
        return self.control.steps.once_blocking(step, function)

    @property
    def is_cancel_requested(self) -> bool:
        """Whether somebody asked this task to stop; a long loop should look at it now and then."""
        return self.control.cancel_requested
