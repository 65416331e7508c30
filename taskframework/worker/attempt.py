"""A running attempt, and the way to stop it."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from taskframework.clock import Clock
from taskframework.model.task import Task
from taskframework.model.task_fields import CancelRequest
from taskframework.model.transitions import Fence
from taskframework.worker.containment import cancel_own

#: Seconds within which task code must end after it was asked to stop.
STOP_TIMEOUT_SECONDS = 5.0


class StopReason(enum.Enum):
    """Why an attempt is stopped from outside."""

    CANCELLED = "cancelled"
    LEASE_LOST = "lease lost"
    RELEASED = "released"


class LeaseLostError(Exception):
    """The attempt lost its lease: nothing that it did may be written any more."""


@dataclass(slots=True)
class RunningAttempt:
    """One attempt in this process, from claim to settlement."""

    task: Task
    fence: Fence
    #: The end of the lease by this process's clock, in monotonic seconds. It is never later than the real end of the
    #: lease. The code must have stopped before this time.
    lease_ends: float
    stop_reason: StopReason | None = None
    cancel: CancelRequest | None = None
    _code_task: asyncio.Task[Any] | None = field(default=None, repr=False)
    _on_given_up: Callable[[], None] = field(default=lambda: None, repr=False)

    def attach(self, code_task: asyncio.Task[Any], on_given_up: Callable[[], None]) -> None:
        """Name the asyncio task that `stop` cancels; if `stop` was called before, cancel the asyncio task now.

        `on_given_up` is called when the code did not stop in time; it must end the wait for the code.
        """
        self._code_task, self._on_given_up = code_task, on_given_up
        if self.stop_reason is not None:
            self._cancel_code()

    def lease_may_be_over(self, clock: Clock) -> bool:
        """Return whether the lease may have ended, so that another worker may have the task."""
        return clock.monotonic() > self.lease_ends

    @property
    def code_has_ended(self) -> bool:
        """Whether the code has ended, so that a stop has no effect any more."""
        return self._code_task is not None and self._code_task.done()

    def stop(self, reason: StopReason, cancel: CancelRequest | None = None) -> None:
        """Ask the code to stop. The first reason counts, but a lost lease replaces it: then nothing may be written."""
        self.cancel = self.cancel or cancel
        if self.code_has_ended and reason is not StopReason.LEASE_LOST:
            return  # how the code ended counts
        # Do not cancel twice for one reason: the second cancellation would interrupt the clean-up after the first.
        if self.stop_reason is None or (reason is StopReason.LEASE_LOST and self.stop_reason is not reason):
            self.stop_reason = reason
            self._cancel_code()

    def _cancel_code(self) -> None:
        if self._code_task is None or self._code_task.done():
            return
        cancel_own(self._code_task)
        asyncio.get_running_loop().call_later(STOP_TIMEOUT_SECONDS, self._on_given_up)
