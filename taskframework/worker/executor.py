"""The executor: runs task code within its timeout and turns its result or error into an outcome."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from collections.abc import Callable
from typing import Any

from taskframework.clock import Clock
from taskframework.errors import InvalidParametersError, InvalidRequestError, NonRetryableError, TaskframeworkError
from taskframework.model.outcome import Outcome, Released, classify, failure
from taskframework.model.task import Task
from taskframework.model.task_fields import Subtasks
from taskframework.model.transitions import BY_DEADLINE, DEADLINE_PASSED
from taskframework.moves import TaskMoves
from taskframework.tasks.chunks import for_each
from taskframework.tasks.context import AttemptControl, TaskContext
from taskframework.tasks.extensions import NO_EXTENSIONS, WorkerExtensions
from taskframework.tasks.limits import as_timedelta
from taskframework.tasks.registry import Registration
from taskframework.tasks.stages import Call
from taskframework.telemetry import AttemptCode, running_as
from taskframework.worker.attempt import STOP_TIMEOUT_SECONDS, LeaseLostError, RunningAttempt, StopReason
from taskframework.worker.attempt_outcome import BadResultError, outcome_of, refuse_forgotten_calls
from taskframework.worker.containment import cancel_own
from taskframework.worker.family import FamilyServices
from taskframework.worker.forks import ForkedProcessesEnd
from taskframework.worker.pooled_process import ExecutionFailedError
from taskframework.worker.processes import ProcessPool
from taskframework.worker.reports import AttemptReports
from taskframework.worker.threads import ThreadPool

logger = logging.getLogger(__name__)
_task_logger = logging.getLogger("taskframework.task")
_NO_RESOURCES: dict[str, Any] = {}


class AttemptTimeoutError(TaskframeworkError, TimeoutError):
    """The attempt ran longer than the timeout of its task type."""

    retryable = True


class AttemptCancelledError(NonRetryableError):
    """The task was asked to stop."""


class MissingMethodError(NonRetryableError):
    """The task type no longer has the method with which the task would continue."""


class TaskExecutorService:
    """Runs attempts: coroutines on the event loop, plain functions in a bounded number of threads or processes."""

    def __init__(
        self,
        moves: TaskMoves,
        clock: Clock,
        families: FamilyServices,
        *,
        threads: int,
        processes: int | None,
        extensions: WorkerExtensions = NO_EXTENSIONS,
    ) -> None:
        self._extensions = extensions
        self._moves = moves
        self._clock = clock
        self._families = families
        self._threads = ThreadPool(threads)
        self._processes = ProcessPool(processes or os.cpu_count() or 1)

    async def execute(self, registration: Registration, attempt: RunningAttempt) -> Outcome:
        """Run one attempt to its end.

        Returns:
            How the attempt ended. Every error of the code becomes part of the outcome.

        Raises:
            LeaseLostError: if the lease was lost meanwhile; the result is discarded.
        """
        reports = AttemptReports(attempt, self._moves, self._clock, self._families)
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
        ended = asyncio.Event()  # the code has ended, or its end is awaited no longer

        def on_timeout() -> None:
            # Code that was asked to stop has time to do so; another cancellation would interrupt its clean-up.
            if attempt.stop_reason is None:
                limit.is_over = True
                ended.set()

        limit = _TimeLimit(as_timedelta(registration.executable.options.timeout).total_seconds(), on_timeout)
        with running_as(code):
            try:
                call = _call_of(registration, attempt.task)
                context = _make_context(registration, attempt, reports)
            except InvalidParametersError as error:
                return failure(error, error.code)
            except BaseException as error:  # the author's validator failed or exits, or there is no method to call
                return classify(error, registration.executable.options.retry_on)
            # A separate asyncio task: cancelling it stops the code and nothing else.
            code_task = asyncio.create_task(self._call(registration, call, context, limit))
        code_task.add_done_callback(lambda _: ended.set())
        attempt.attach(code_task, on_given_up=ended.set)
        try:
            await ended.wait()
            if not code_task.done():
                return await _stop(code_task, attempt, limit)
        finally:
            cancel_own(code_task)
            limit.end()
        try:
            subtasks = await reports.planned(registration) if _has_result(code_task) else None
        except InvalidRequestError as error:
            return classify(error)
        with running_as(code):
            return self._outcome(registration, attempt, code_task, subtasks)

    @staticmethod
    def _outcome(
        registration: Registration, attempt: RunningAttempt, code_task: asyncio.Task[Any], subtasks: Subtasks | None
    ) -> Outcome:
        call = Call.of(attempt.task)
        try:
            return outcome_of(registration, attempt.task, code_task.result(), subtasks)
        except asyncio.CancelledError as error:
            return _outcome_of_stop(attempt, error)
        except BadResultError as error:
            return failure(error, "bad_result")
        except ExecutionFailedError as error:
            return error.outcome
        except BaseException as error:
            # A coroutine was cancelled: this is an error of its clean-up, or in place of the cancellation.
            if attempt.stop_reason is not None and registration.stages.get(call.stage):
                logger.info("task %s raised %s when it was stopped", attempt.task.task_id, type(error).__name__)
                return _outcome_of_stop(attempt)
            return classify(error, registration.executable.options.retry_on)

    async def _call(self, registration: Registration, call: Call, context: TaskContext[Any], limit: _TimeLimit) -> Any:
        try:
            if not self._extensions.middleware:
                return await self._execute(registration, call, limit, context)
            limit.start()  # a middleware that hangs must time out too
            return await self._extensions.around(functools.partial(self._execute, registration, call, limit))(context)
        except (KeyboardInterrupt, SystemExit) as error:
            # An asyncio task does not keep these two errors: they would end the event loop, and the worker with it.
            raise ExecutionFailedError(classify(error, registration.executable.options.retry_on)) from error

    async def _execute(
        self, registration: Registration, call: Call, limit: _TimeLimit, context: TaskContext[Any]
    ) -> Any:
        executable, resources = registration.executable, _NO_RESOURCES
        if registration.resources:
            resources = self._extensions.resources.given(registration.resources.get(call.stage, _NO_RESOURCES))
        if registration.stages[call.stage]:
            limit.start()
            with ForkedProcessesEnd():
                returned = await call.make(executable, context, resources)
        else:
            limit.end()
            if executable.options.run_in == "process":  # the child process refuses forgotten calls itself
                return await self._processes.run(executable, call, context, on_start=limit.start)
            make = functools.partial(call.make, executable, resources=resources)
            returned = await self._threads.run(make, context, on_start=limit.start)
        refuse_forgotten_calls(context, returned)
        return returned


async def _stop(code_task: asyncio.Task[Any], attempt: RunningAttempt, limit: _TimeLimit) -> Outcome:
    """Stop code whose time is over, or give up code that was asked to stop and goes on; return the outcome."""
    if not limit.is_over:
        logger.warning("task %s ignores the request to stop", attempt.task.task_id)
        return _outcome_of_stop(attempt)
    if attempt.stop_reason is None:  # otherwise it was asked to stop just after its time was over, and is cancelled
        cancel_own(code_task)
    await asyncio.wait([code_task], timeout=STOP_TIMEOUT_SECONDS)
    if not code_task.done():
        logger.warning("task %s ignores its timeout; its code may run beside the next attempt", attempt.task.task_id)
    return _timeout_outcome(limit.seconds)


class _TimeLimit:
    """The timeout of one attempt. It begins with the code, not while the code waits for a thread or a process."""

    def __init__(self, seconds: float, on_over: Callable[[], None]) -> None:
        self.seconds = seconds
        #: Whether the time was over while the code still ran and had not been asked to stop.
        self.is_over = False
        self._on_over = on_over
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.seconds, self._on_over)

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


@functools.lru_cache
def _logger_of(task_type: str) -> logging.Logger:
    return _task_logger.getChild(task_type)


def _call_of(registration: Registration, task: Task) -> Call:
    call = Call.of(task)
    if call.stage not in registration.stages:
        raise MissingMethodError(
            f"Task type {task.task_type!r} no longer has the method {call.method}, with which this task would continue."
        )
    return call


def _has_result(code_task: asyncio.Task[Any]) -> bool:
    return not code_task.cancelled() and code_task.exception() is None


def _make_context(registration: Registration, attempt: RunningAttempt, control: AttemptControl) -> TaskContext[Any]:
    task = attempt.task
    return TaskContext(
        task_id=task.task_id,
        task_type=task.task_type,
        user_id=task.user_id,
        parameters=_validated_parameters(registration, task),
        attempt=task.attempts,
        max_attempts=task.max_attempts,
        fencing_token=task.fencing_token,
        idempotency_key=task.idempotency_key or task.task_id,
        correlation_id=task.correlation_id,
        parent_task_id=task.parent.task_id if task.parent else None,
        logger=_logger_of(task.task_type),
        control=control,
    )


def _validated_parameters(registration: Registration, task: Task) -> Any:
    if task.batch is not None:
        return None
    if task.parent is not None and task.parent.is_chunk:
        return for_each(registration.validate_parameters, task.parameters)
    return registration.validate_parameters(task.parameters)


def _outcome_of_stop(attempt: RunningAttempt, cancelled: asyncio.CancelledError | None = None) -> Outcome:
    match attempt.stop_reason:
        case StopReason.RELEASED | StopReason.LEASE_LOST:
            return Released()
        case StopReason.CANCELLED:
            by_deadline = attempt.cancel is not None and attempt.cancel.by == BY_DEADLINE
            error = AttemptCancelledError(DEADLINE_PASSED if by_deadline else None)
            return failure(error, "deadline" if by_deadline else "cancelled")
        case None:  # the code cancelled itself, or awaited something that was cancelled
            error_of_code = RuntimeError("the task code cancelled itself")
            return failure(error_of_code.with_traceback(None if cancelled is None else cancelled.__traceback__))


def _timeout_outcome(seconds: float) -> Outcome:
    error = AttemptTimeoutError(f"The attempt ran longer than its timeout of {seconds:g} s.")
    return failure(error, "timeout", retryable=True)
