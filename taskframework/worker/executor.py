"""The executor: runs task code within its time and turns whatever happens into an outcome."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from taskframework.clock import Clock
from taskframework.errors import InvalidParametersError, NonRetryableError, TaskframeworkError
from taskframework.model.outcome import Failed, Outcome, Released, Succeeded, classify, describe
from taskframework.model.transitions import DEADLINE, DEADLINE_PASSED
from taskframework.model.values import MAX_RESULT_BYTES, check_storable, in_one_line
from taskframework.moves import TaskMoves
from taskframework.tasks.context import AttemptControl, TaskContext
from taskframework.tasks.options import as_timedelta
from taskframework.tasks.registry import Registration
from taskframework.tasks.values import refuse_non_finite
from taskframework.telemetry import AttemptCode, running_as
from taskframework.worker.attempt import STOP_PATIENCE, RunningAttempt, StopReason
from taskframework.worker.containment import cancel_own
from taskframework.worker.processes import ExecutionFailedError, ProcessPool
from taskframework.worker.reports import AttemptReports
from taskframework.worker.threads import ThreadPool

logger = logging.getLogger(__name__)
_task_logger = logging.getLogger("taskframework.task")


class AttemptTimeoutError(TaskframeworkError, TimeoutError):
    """The attempt ran longer than the timeout of its task type."""

    retryable = True


class AttemptCancelledError(NonRetryableError):
    """The task was asked to stop."""


class BadResultError(NonRetryableError):
    """The result cannot be stored."""


class LeaseLostError(Exception):
    """The attempt is no longer ours: nothing it did may be written."""


class TaskExecutorService:
    """Runs attempts: coroutines on the loop, plain functions in threads or processes, both bounded."""

    def __init__(self, moves: TaskMoves, clock: Clock, *, threads: int, processes: int | None) -> None:
        self._moves = moves
        self._clock = clock
        self._threads = ThreadPool(threads)
        self._processes = ProcessPool(processes or os.cpu_count() or 1)

    async def execute(self, registration: Registration, attempt: RunningAttempt) -> Outcome:
        """Run one attempt to its end.

        Returns:
            How it ended. Whatever the code raises becomes part of the outcome.

        Raises:
            LeaseLostError: if the lease was lost meanwhile; the result is discarded.
        """
        reports = AttemptReports(attempt, self._moves, self._clock)
        code = AttemptCode(attempt.task.task_type, attempt.task.task_id)
        try:
            outcome = await self._run(registration, attempt, reports, code)
        finally:
            code.is_over = True
            await reports.close()
        if attempt.stop_reason is StopReason.LEASE_LOST:
            raise LeaseLostError
        return outcome

    async def close(self) -> None:
        self._threads.close()
        await self._processes.close()

    async def _run(
        self, registration: Registration, attempt: RunningAttempt, reports: AttemptReports, code: AttemptCode
    ) -> Outcome:
        loop = asyncio.get_running_loop()
        something: asyncio.Future[None] = loop.create_future()

        def happened(_: object = None) -> None:
            if not something.done():
                something.set_result(None)

        def is_over() -> None:
            # Code that was asked to stop has its own time for it; another cancellation would tear its clean-up.
            if attempt.stop_reason is None:
                happened()

        limit = _TimeLimit(as_timedelta(registration.executable.options.timeout).total_seconds(), is_over)
        with running_as(code):
            try:
                context = _context(registration, attempt, reports)
            except InvalidParametersError as error:
                return Failed(describe(error, False, error.code), False)
            except Exception as error:  # a validator of the author's broke
                return classify(error, registration.executable.options.retry_on)
            # A task of its own: cancelling it stops the code and nothing else.
            run = loop.create_task(self._call(registration, context, limit))
        run.add_done_callback(happened)
        attempt.runs(run, on_given_up=happened)
        try:
            await something
            if not run.done() and attempt.stop_reason is None:
                cancel_own(run)
                await asyncio.wait([run], timeout=STOP_PATIENCE)
                return _timed_out(limit.seconds)
            if not run.done():
                logger.warning("task %s does not react to being stopped", attempt.task.task_id)
                return _stopped(attempt)
        finally:
            cancel_own(run)
            limit.end()
        with running_as(code):
            return self._outcome(registration, attempt, run)

    @staticmethod
    def _outcome(registration: Registration, attempt: RunningAttempt, run: asyncio.Task[Any]) -> Outcome:
        try:
            return Succeeded(_storable_result(registration, run.result()))
        except asyncio.CancelledError:
            return _stopped(attempt)
        except BadResultError as error:
            return Failed(describe(error, False, "bad_result"), False)
        except ExecutionFailedError as error:
            return error.outcome
        except BaseException as error:
            return classify(error, registration.executable.options.retry_on)

    async def _call(self, registration: Registration, context: TaskContext[Any], limit: _TimeLimit) -> Any:
        try:
            return await self._execute(registration, context, limit)
        except (KeyboardInterrupt, SystemExit) as error:
            # Out of an asyncio task these two leave the event loop, and would end the worker with everything in it.
            raise RuntimeError(f"the task code raised {type(error).__name__}") from error

    async def _execute(self, registration: Registration, context: TaskContext[Any], limit: _TimeLimit) -> Any:
        execute = registration.executable.execute
        if registration.is_async:
            limit.start()
            return await execute(context)
        if registration.executable.options.run_in == "process":
            return await self._processes.run(registration.executable, context, on_start=limit.start)
        return await self._threads.run(execute, context, on_start=limit.start)


class _TimeLimit:
    """The time of one attempt. It runs from the moment the code starts, not while it waits for a thread or process."""

    def __init__(self, seconds: float, on_over: Callable[[], None]) -> None:
        self.seconds = seconds
        self._on_over = on_over
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.seconds, self._on_over)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


@functools.lru_cache
def _logger_of(task_type: str) -> logging.Logger:
    return _task_logger.getChild(task_type)


def _context(registration: Registration, attempt: RunningAttempt, control: AttemptControl) -> TaskContext[Any]:
    task = attempt.task
    return TaskContext(
        task_id=task.task_id,
        task_type=task.task_type,
        user_id=task.user_id,
        parameters=registration.validate_parameters(task.parameters),
        attempt=task.attempts,
        max_attempts=task.max_attempts,
        fencing_token=task.fencing_token,
        idempotency_key=task.idempotency_key or task.task_id,
        correlation_id=task.correlation_id,
        parent_task_id=task.parent.task_id if task.parent else None,
        logger=_logger_of(task.task_type),
        control=control,
    )


def _storable_result(registration: Registration, value: Any) -> Any:
    """The result as JSON; a result that cannot be stored would fail on every attempt, so it is final."""
    try:
        validated = registration.result.validate_python(value)
        refuse_non_finite(registration.result.dump_python(validated, by_alias=True), "result")
        plain = registration.result.dump_python(validated, mode="json", by_alias=True)
        check_storable(plain, "result", MAX_RESULT_BYTES)
    except ValidationError as error:
        raise BadResultError(f"The result is not the declared type: {in_one_line(error)}."[:2000]) from None
    except (TaskframeworkError, ValueError, TypeError, RecursionError) as error:
        raise BadResultError(f"The result cannot be stored: {error}"[:2000]) from None
    return plain


def _stopped(attempt: RunningAttempt) -> Outcome:
    match attempt.stop_reason:
        case StopReason.RELEASED | StopReason.LEASE_LOST:
            return Released()
        case StopReason.CANCELLED:
            by_deadline = attempt.cancel is not None and attempt.cancel.by == DEADLINE
            error = AttemptCancelledError(DEADLINE_PASSED if by_deadline else None)
            return Failed(describe(error, False, "deadline" if by_deadline else "cancelled"), False)
        case None:  # the code cancelled itself
            return Failed(describe(RuntimeError("the task code cancelled itself"), False), False)


def _timed_out(seconds: float) -> Failed:
    error = AttemptTimeoutError(f"The attempt ran longer than its timeout of {seconds:g} s.")
    return Failed(describe(error, True, "timeout"), True)
