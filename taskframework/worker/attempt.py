"""A running attempt, and the way to stop it."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from taskframework.model.task import CancelRequest, Task
from taskframework.model.transitions import Fence
from taskframework.worker.containment import cancel_own

#: Seconds that code has to end after it was asked to stop.
STOP_PATIENCE = 5.0


class StopReason(enum.Enum):
    """Why a run is stopped from outside."""

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
    #: The end of the lease by our own clock (monotonic seconds), never too late. Before it the code must have stopped.
    lease_ends: float
    stop_reason: StopReason | None = None
    cancel: CancelRequest | None = None
    _run: asyncio.Task[Any] | None = field(default=None, repr=False)
    _on_given_up: Callable[[], None] = field(default=lambda: None, repr=False)

    def runs(self, run: asyncio.Task[Any], on_given_up: Callable[[], None]) -> None:
        """Name the asyncio task to cancel on `stop`; if the stop came earlier, it is cancelled now.

        `on_given_up` is called when the code has not stopped in its time and is no longer waited for.
        """
        self._run, self._on_given_up = run, on_given_up
        if self.stop_reason is not None:
            self._cancel_run()

    @property
    def code_has_ended(self) -> bool:
        """Whether nothing is left that a stop could reach."""
        return self._run is not None and self._run.done()

    def stop(self, reason: StopReason, cancel: CancelRequest | None = None) -> None:
        """Ask the code to stop. The first reason counts, except that a lost lease overrides: nothing may be written."""
        self.cancel = self.cancel or cancel
        # Not twice for one reason: a second cancellation would interrupt the clean-up that the first one began.
        if self.stop_reason is None or (reason is StopReason.LEASE_LOST and self.stop_reason is not reason):
            self.stop_reason = reason
            self._cancel_run()

    def _cancel_run(self) -> None:
        if self._run is None or self._run.done():
            return
        cancel_own(self._run)
        asyncio.get_running_loop().call_later(STOP_PATIENCE, self._on_given_up)
