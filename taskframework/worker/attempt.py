"""A running attempt: the way to stop it, and the way its progress takes back to the task."""

from __future__ import annotations

import asyncio
import contextvars
import enum
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from taskframework.errors import StoreError
from taskframework.model.task import CancelRequest, Task
from taskframework.model.transitions import Fence, ReportProgress
from taskframework.model.values import MAX_PROGRESS_BYTES
from taskframework.moves import TaskMoves
from taskframework.tasks.steps import Steps
from taskframework.tasks.values import storable
from taskframework.worker.containment import cancel_own

logger = logging.getLogger(__name__)

#: Seconds that code has to end after it was asked to stop.
STOP_PATIENCE = 5.0


class StopReason(enum.Enum):
    """Why a run is stopped from outside."""

    CANCELLED = "cancelled"
    LEASE_LOST = "lease lost"
    RELEASED = "released"


@dataclass(slots=True)
class RunningAttempt:
    """One attempt in this process, from claim to settlement."""

    task: Task
    fence: Fence
    #: Our own time (monotonic seconds) at which the lease ends at the latest; before it we must have stopped.
    lease_ends: float
    stop_reason: StopReason | None = None
    cancel: CancelRequest | None = None
    _run: asyncio.Task[Any] | None = field(default=None, repr=False)
    _on_given_up: Callable[[], None] = field(default=lambda: None, repr=False)

    def runs(self, run: asyncio.Task[Any], on_given_up: Callable[[], None]) -> None:
        """Name the asyncio task to cancel on `stop`; a stop that came earlier counts.

        `on_given_up` is called when the code had its time to stop and is not waited for any longer.
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
        # Once for each reason: a second cancellation would tear the clean-up that the first one began.
        if self.stop_reason is None or (reason is StopReason.LEASE_LOST and self.stop_reason is not reason):
            self.stop_reason = reason
            self._cancel_run()

    def _cancel_run(self) -> None:
        if self._run is None or self._run.done():
            return
        cancel_own(self._run)
        asyncio.get_running_loop().call_later(STOP_PATIENCE, self._on_given_up)


class ProgressReporter:
    """`AttemptControl` of an attempt: writes progress, newest value only, one write under way at a time.

    The attempt's steps, which have a `StepRecorder` of their own, are only handed on.
    """

    def __init__(self, attempt: RunningAttempt, moves: TaskMoves, steps: Steps) -> None:
        self.steps = steps
        self._attempt = attempt
        self._moves = moves
        self._loop = asyncio.get_running_loop()
        #: Of the worker: what writes is no part of the task code that gave the value.
        self._context = contextvars.copy_context()
        self._newest: Any = None
        self._has_newest = False
        self._was_handed_over = False
        self._writing: asyncio.Task[None] | None = None

    @property
    def cancel_requested(self) -> bool:
        return self._attempt.stop_reason is not None

    async def report_progress(self, value: object) -> None:
        self._take(storable(value, "progress", MAX_PROGRESS_BYTES))
        if self._writing is not None:
            # Shielded: a cancelled task must not tear a write that other values may ride on.
            await asyncio.shield(self._writing)

    def report_progress_soon(self, value: object) -> None:
        self._was_handed_over = True
        self._loop.call_soon_threadsafe(self._take, storable(value, "progress", MAX_PROGRESS_BYTES))

    async def flush(self) -> None:
        """Wait until the newest progress is written."""
        if self._was_handed_over:
            await asyncio.sleep(0)  # lets values in that a thread handed over just before it ended
        while self._writing is not None:
            await asyncio.wait([self._writing])

    def _take(self, value: Any) -> None:
        self._newest, self._has_newest = value, True
        if self._writing is None:
            self._writing = self._loop.create_task(self._write(), context=self._context)

    async def _write(self) -> None:
        try:
            while self._has_newest:
                self._has_newest = False
                if await self._moves.make(ReportProgress(self._attempt.fence, self._newest)) is None:
                    self._attempt.stop(StopReason.LEASE_LOST)
                    return
        except StoreError as error:  # progress is a courtesy; the attempt goes on without it
            logger.info("progress of task %s not written: %s", self._attempt.task.task_id, error.message)
        finally:
            self._writing = None
