"""The reports of task code while it runs, progress and steps, and how they are written into the task."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import Future
from functools import partial
from typing import Any

from taskframework import failpoint
from taskframework.clock import Clock
from taskframework.errors import StoreError, StoreUnavailableError
from taskframework.model.attempts import RecordStep, ReportProgress
from taskframework.model.task_fields import StepOutcome, Subtasks
from taskframework.model.values import MAX_PROGRESS_BYTES
from taskframework.moves import TaskMoves
from taskframework.tasks.registry import Registration
from taskframework.tasks.steps import Steps
from taskframework.tasks.values import to_storable_json
from taskframework.worker.attempt import RunningAttempt, StopReason
from taskframework.worker.errands import Errands
from taskframework.worker.family import AttemptFamily, FamilyServices
from taskframework.worker.store_breaker import until_available

logger = logging.getLogger(__name__)


class AttemptReports:
    """`AttemptControl` of an attempt, and the `Recorder` of its steps.

    Of progress only the newest value is written, one write at a time. Writing the outcome of a step is repeated until
    the lease may be over, also after a cancel and while the store is away, because the step has had its effect already.
    """

    def __init__(self, attempt: RunningAttempt, moves: TaskMoves, clock: Clock, services: FamilyServices) -> None:
        self._steps: Steps | None = None
        self._family: AttemptFamily | None = None
        self._attempt = attempt
        self._moves = moves
        self._clock = clock
        self._services = services
        self._errands = Errands()
        self._newest_progress: Any = None
        self._has_new_progress = False
        self._writing_progress: asyncio.Task[None] | None = None
        self._lock = threading.Lock()

    @property
    def steps(self) -> Steps:
        # Made on demand: the two objects refer to each other, so each pair costs the garbage collector work.
        with self._lock:
            if self._steps is None:
                self._steps = Steps(self._attempt.task.steps, self)
            return self._steps

    @property
    def family(self) -> AttemptFamily:
        # Made on demand too, because few attempts need it.
        with self._lock:
            if self._family is None:
                self._family = AttemptFamily(self._services, self._attempt, self._errands)
            return self._family

    async def planned(self, registration: Registration) -> Subtasks | None:
        """Return the sub-tasks that the code submitted, if any; see `AttemptFamily.planned`."""
        return None if self._family is None else await self._family.planned(registration)

    @property
    def cancel_requested(self) -> bool:
        return self._attempt.stop_reason is not None

    @property
    def is_open(self) -> bool:
        return not self._errands.is_closed and self._attempt.stop_reason is not StopReason.LEASE_LOST

    async def report_progress(self, value: object) -> None:
        self._set_progress(to_storable_json(value, "progress", MAX_PROGRESS_BYTES))
        if self._writing_progress is not None:
            # Shielded: a cancellation of this caller must not interrupt the write, which may have a later value.
            await asyncio.shield(self._writing_progress)

    def report_progress_soon(self, value: object) -> None:
        self._errands.call_soon(self._set_progress, to_storable_json(value, "progress", MAX_PROGRESS_BYTES))

    def record(self, outcome: StepOutcome) -> Future[StepOutcome | None]:
        recorded: Future[StepOutcome | None] = Future()
        if not self._errands.submit(partial(self._record, outcome, recorded)):
            recorded.set_result(None)
        return recorded

    async def close(self) -> None:
        """Wait until all reports of the code are written. From now on no more steps are recorded."""
        await self._errands.close()
        while self._writing_progress is not None and not self._writing_progress.done():
            await asyncio.wait([self._writing_progress])
        await self._errands.finished()

    def _set_progress(self, value: Any) -> None:
        self._newest_progress, self._has_new_progress = value, True
        if self._writing_progress is None or self._writing_progress.done():  # done: cancelled before it began
            self._writing_progress = asyncio.get_running_loop().create_task(
                self._write_progress(), context=self._errands.context
            )

    async def _write_progress(self) -> None:
        try:
            while self._has_new_progress:
                self._has_new_progress = False
                try:
                    written = await self._moves.make(ReportProgress(self._attempt.fence, self._newest_progress))
                except StoreError as error:  # the attempt continues without this value; a newer one is written
                    logger.info("progress of task %s not written: %s", self._attempt.task.task_id, error.message)
                    continue
                if written is None:
                    self._attempt.stop(StopReason.LEASE_LOST)
                    return
        finally:
            self._writing_progress = None

    async def _record(self, outcome: StepOutcome, recorded: Future[StepOutcome | None]) -> None:
        try:
            await failpoint.reached("step.before_write")
            recorded.set_result(await self._write_step(outcome))
        except Exception as error:
            recorded.set_exception(error)
        finally:  # a waiting thread must get an answer even if the event loop ends
            if not recorded.done():
                recorded.set_result(None)

    async def _write_step(self, outcome: StepOutcome) -> StepOutcome | None:
        record = RecordStep(self._attempt.fence, outcome.step, outcome.outcome)
        try:
            task = await until_available(
                lambda: self._moves.make(record), lambda: self._attempt.lease_may_be_over(self._clock)
            )
        except StoreUnavailableError:
            task = None
        if task is not None:
            return task.outcome_of(record.step)
        logger.warning(
            "task %s: step %r is done but not recorded, because the lease was lost; another attempt repeats it",
            record.task_id,
            record.step,
        )
        self._attempt.stop(StopReason.LEASE_LOST)
        return None
