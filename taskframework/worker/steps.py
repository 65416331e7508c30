"""The way of a step's outcome into its task."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from concurrent.futures import Future

from taskframework import failpoint
from taskframework.clock import Clock
from taskframework.errors import StoreUnavailableError
from taskframework.model.task import StepOutcome
from taskframework.model.transitions import RecordStep
from taskframework.moves import TaskMoves
from taskframework.worker.attempt import RunningAttempt, StopReason
from taskframework.worker.patience import until_available

logger = logging.getLogger(__name__)


class StepRecorder:
    """`Recorder` of an attempt: writes what its steps gave, for as long as the lease may last.

    The effect of a step has been made by then, so neither a cancel nor a store that is away is a reason to give up.
    """

    def __init__(self, attempt: RunningAttempt, moves: TaskMoves, clock: Clock) -> None:
        self._attempt = attempt
        self._moves = moves
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        #: Of the worker: what records is no part of the task code that made the step.
        self._context = contextvars.copy_context()
        self._writing: set[asyncio.Task[None]] = set()
        self._is_over = False
        self._was_handed_over = False
        self._closing = threading.Lock()

    @property
    def is_open(self) -> bool:
        return not self._is_over and self._attempt.stop_reason is not StopReason.LEASE_LOST

    def record(self, outcome: StepOutcome) -> Future[StepOutcome | None]:
        recorded: Future[StepOutcome | None] = Future()
        with self._closing:
            if not self._is_over:
                self._was_handed_over = True
                self._loop.call_soon_threadsafe(self._begin, outcome, recorded)
                return recorded
        recorded.set_result(None)  # here, because the event loop may not run again, and a thread would wait for ever
        return recorded

    async def close(self) -> None:
        """Wait until what the code did is written. Code that was left behind records nothing from now on."""
        with self._closing:
            self._is_over = True
        if self._was_handed_over:
            await asyncio.sleep(0)  # lets in what was handed over before
        while self._writing:
            await asyncio.wait(self._writing)

    def _begin(self, outcome: StepOutcome, recorded: Future[StepOutcome | None]) -> None:
        writing = self._loop.create_task(self._write(outcome, recorded), context=self._context)
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)

    async def _write(self, outcome: StepOutcome, recorded: Future[StepOutcome | None]) -> None:
        try:
            await failpoint.reached("step.before_write")
            written = await self._written(outcome)
            recorded.set_result(written)
        except Exception as error:
            recorded.set_exception(error)
        finally:  # a thread that waits must hear it even if the event loop ends
            if not recorded.done():
                recorded.set_result(None)

    async def _written(self, outcome: StepOutcome) -> StepOutcome | None:
        record = RecordStep(self._attempt.fence, outcome.step, outcome.outcome)
        try:
            task = await until_available(
                lambda: self._moves.make(record), lambda: self._clock.monotonic() > self._attempt.lease_ends
            )
        except StoreUnavailableError:
            task = None
        if task is None:
            logger.warning(
                "task %s: step %r is done and not recorded, the lease was lost; another attempt does it again",
                record.task_id,
                record.step,
            )
            self._attempt.stop(StopReason.LEASE_LOST)
            return None
        return task.outcome_of(record.step)
