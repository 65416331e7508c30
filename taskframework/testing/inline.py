"""`run`: one attempt of one task in a test, with a real context and without a framework."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypedDict, TypeVar, Unpack, overload

from pydantic import TypeAdapter

from taskframework.clock import SystemClock
from taskframework.errors import InvalidRequestError, ValueNotStorableError
from taskframework.model.outcome import classify
from taskframework.model.status import TaskStatus
from taskframework.model.task import new_task_id
from taskframework.model.task_fields import Signal, StepOutcome, Subtasks
from taskframework.model.values import (
    MAX_PROGRESS_BYTES,
    MAX_RESULT_BYTES,
    MAX_SIGNAL_BYTES,
    MAX_STEP_BYTES,
    Json,
    check_storable,
)
from taskframework.model.view import error_view
from taskframework.submission.acceptance import accept_name, refuse_unknown
from taskframework.submission.subtasks import accept_subtask_options
from taskframework.tasks.by_class import accept_by_class
from taskframework.tasks.context import TaskContext
from taskframework.tasks.executable import BackgroundTaskExecutable
from taskframework.tasks.extensions import Middleware, WorkerExtensions
from taskframework.tasks.kinds import kind_of, read_result, type_name
from taskframework.tasks.registry import Registration, TaskRegistry
from taskframework.tasks.resources import Resources
from taskframework.tasks.stages import METHODS, Part
from taskframework.tasks.steps import Steps
from taskframework.tasks.subtasks import (
    SubtaskOutcome,
    SubtaskSummary,
    WaitForSignal,
    WantedSubtasks,
    adding_number_to_errors,
)
from taskframework.tasks.values import copy_json, reason_of, to_storable_json
from taskframework.worker.attempt_outcome import outcome_of_one, refuse_forgotten_calls
from taskframework.worker.plan import common_policy, require_enough
from taskframework.worker.threads import value_of, value_or_error

P = TypeVar("P")
R = TypeVar("R")
Executable = BackgroundTaskExecutable[P, R] | type[BackgroundTaskExecutable[P, R]]


class About(TypedDict, total=False):
    """The options of `run`, which describe the attempt.

    `attempt` is its number, `user_id` the owner of the task, `steps` what earlier attempts recorded by `once`: JSON or
    models, by name; `cancelled` is the value of `is_cancel_requested`. With `outcomes`, `run` calls
    `on_subtasks_finished`; they are the results of the sub-tasks, or an exception for each that failed. With `signal`,
    the name of a signal, it calls `on_signal`; `payload` is the content of the signal, JSON or a model, which the code
    gets as JSON, and `timed_out` says that it did not come. `middleware` is around the code as in a worker, and
    `resources` are what the code can ask for: objects, or doubles of a subclass.
    """

    attempt: int
    user_id: str
    steps: Mapping[str, object]
    outcomes: Sequence[object]
    signal: str
    payload: object
    timed_out: bool
    cancelled: bool
    middleware: Sequence[Middleware]
    resources: Sequence[object]


@dataclass(frozen=True, slots=True)
class AskedSubtask:
    """A sub-task that the code submitted, with its parameters as they would be stored."""

    task_type: str
    parameters: Json
    options: Mapping[str, Any]
    policy: str | None


@dataclass(slots=True)
class Ran(Generic[R]):
    """The results of an attempt.

    Attributes:
        result: the value that the code returned, as a store gives it back; None if the task goes on in another method:
            a worker ignores what the code returned beside sub-tasks then.
        progress: every value of `update_progress`, as JSON.
        subtasks: the sub-tasks that were submitted, in this order.
        steps: the outcome of each step of `once`, also of steps of earlier attempts.
        waits_for: the return value of `wait_for`, if the code returned it.
    """

    result: R | None = None
    progress: list[Json] = field(default_factory=list)
    subtasks: list[AskedSubtask] = field(default_factory=list)
    steps: dict[str, Json] = field(default_factory=dict)
    waits_for: WaitForSignal | None = None


@overload
async def run(task: Executable[None, R], parameters: None = None, **about: Unpack[About]) -> Ran[R]: ...
@overload
async def run(task: Executable[P, R], parameters: P, **about: Unpack[About]) -> Ran[R]: ...
async def run(task: Executable[Any, Any], parameters: Any = None, **about: Unpack[About]) -> Ran[Any]:
    """Run one attempt of a task here and now: without a worker, without a store, and without passing time.

    Parameters, progress, steps and the result must be storable, as in a worker. Plain functions run in a thread,
    whatever `run_in` says.

    Args:
        task: the class, or an instance.
        parameters: as for `submit`.
        about: the attempt; see `About`.

    Raises:
        SubmissionError: if the parameters of the task do not fit, or what a sub-task was given.
        BadResultError: if the result does not fit the class, or cannot be stored.
        InvalidRequestError: if the class has no method for what `about` says, or for a signal that the code waits for.
        ValueNotStorableError: if steps, outcomes or the payload of a signal could not be stored.
        ConfigurationError: if the code asks for a resource that is not given.
        TypeError: for an argument that does not exist, which names the nearest one, or one that means nothing here.
        Exception: any error that the code raises.
    """
    _refuse_what_means_nothing(about)
    registration = TaskRegistry().register(task)
    steps = about.get("steps", {}).items()
    ran: Ran[Any] = Ran(steps={name: to_storable_json(it, f"step {name!r}", MAX_STEP_BYTES) for name, it in steps})
    control = _Control(ran, _outcomes_of(about.get("outcomes", ())), about.get("cancelled", False))
    context = _context(registration, control, registration.accept(parameters)[0], about)
    surroundings = WorkerExtensions(about.get("middleware", ()), Resources(about.get("resources", ())))
    match about:
        case {"signal": name}:
            payload = to_storable_json(about.get("payload"), "payload", MAX_SIGNAL_BYTES)
            is_late = about.get("timed_out", False)
            signal = Signal(accept_name(name, "signal"), name, SystemClock().now(), payload, timed_out=is_late)
            returned = await _call(registration, surroundings, "signal", context, signal)
        case {"outcomes": _}:
            returned = await _call(registration, surroundings, "resume", context, _summary(control))
        case _:
            returned = await _call(registration, surroundings, "execute", context)
    refuse_forgotten_calls(context, returned)
    subtasks = control.planned(registration)
    outcome = outcome_of_one(registration, returned, subtasks)
    if isinstance(returned, WaitForSignal):
        ran.waits_for = returned
    elif subtasks is None or not subtasks.resumes:
        ran.result = read_result(kind_of(task), outcome.result)
    return ran


def _refuse_what_means_nothing(about: About) -> None:
    """Refuse arguments that would have no effect: a test would seem to say more than it does."""
    refuse_unknown("run", about, About.__annotations__)
    if "signal" in about and "outcomes" in about:
        raise TypeError("run: signal calls on_signal, and outcomes calls on_subtasks_finished; give one of them")
    for name in ("payload", "timed_out"):
        if name in about and "signal" not in about:
            raise TypeError(f'run: {name} describes a signal; give its name too, such as signal="approved"')
    attempt: object = about.get("attempt", 1)
    if not isinstance(attempt, int) or attempt < 1:
        raise TypeError(f"run: attempt is the number of the attempt, from 1, not {attempt!r:.50}")


class _Control:
    """`AttemptControl`, `Recorder` and `Family` of an attempt; it only remembers the calls."""

    is_open = True

    def __init__(self, ran: Ran[Any], outcomes: Sequence[SubtaskOutcome], cancelled: bool) -> None:
        self._ran = ran
        self._outcomes = outcomes
        self._slot_numbers = itertools.count()
        self._is_planned = False
        self._policy: str | None = None
        self.cancel_requested = cancelled
        self.steps = Steps([StepOutcome(step, outcome) for step, outcome in ran.steps.items()], self)
        self.family = self

    async def report_progress(self, value: object) -> None:
        self.report_progress_soon(value)

    def report_progress_soon(self, value: object) -> None:
        self._ran.progress.append(to_storable_json(value, "progress", MAX_PROGRESS_BYTES))

    def record(self, outcome: StepOutcome) -> Future[StepOutcome | None]:
        self._ran.steps[outcome.step] = outcome.outcome
        return _completed_future(outcome)

    def plan(self, wanted: WantedSubtasks) -> Future[list[str]]:
        future: Future[list[str]] = Future()
        try:
            accept_subtask_options(wanted.options, SystemClock().now())
            policy = common_policy(self._policy, wanted.policy)
            subtasks = [_check_subtask(wanted, number, parameters) for number, parameters in wanted.numbered()]
        except Exception as error:
            future.set_exception(error)
        else:
            self._is_planned, self._policy = True, policy
            self._ran.subtasks += subtasks
            future.set_result([f"subtask-{next(self._slot_numbers)}" for _ in subtasks])
        return future

    def planned(self, registration: Registration) -> Subtasks | None:
        """The round that would begin now; None if the code submitted no sub-tasks.

        Raises:
            InvalidRequestError: if its policy can never be met.
        """
        if not self._is_planned:
            return None
        policy, planned = self._policy or registration.executable.options.subtasks, len(self._ran.subtasks)
        require_enough(policy, planned)
        return Subtasks(planned, None, policy=policy, resumes="resume" in registration.stages)

    def outcomes(self, after_slot: int) -> Future[list[SubtaskOutcome]]:
        return _completed_future(list(self._outcomes[after_slot + 1 :]))


T = TypeVar("T")


def _completed_future(value: T) -> Future[Any]:
    future: Future[T] = Future()
    future.set_result(value)
    return future


def _check_subtask(wanted: WantedSubtasks, number: int | None, parameters: Any) -> AskedSubtask:
    """One sub-task, checked as far as its class is known."""
    with adding_number_to_errors(number):
        stored_parameters = accept_by_class(wanted.task_type, parameters)
    return AskedSubtask(type_name(wanted.task_type), copy_json(stored_parameters), wanted.options, wanted.policy)


def _outcomes_of(outcomes: Sequence[object]) -> list[SubtaskOutcome]:
    return [_outcome_of(slot, outcome) for slot, outcome in enumerate(outcomes)]


def _outcome_of(slot: int, outcome: object) -> SubtaskOutcome:
    if isinstance(outcome, Exception):
        error = error_view(classify(outcome).error)
        return SubtaskOutcome(slot, f"subtask-{slot}", None, TaskStatus.FAILED, None, error)
    try:
        result = TypeAdapter(Any).dump_python(outcome, mode="json", by_alias=True)
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueNotStorableError(f"outcome {slot}", reason_of(error)) from None
    check_storable(result, f"outcome {slot}", MAX_RESULT_BYTES)
    return SubtaskOutcome(slot, f"subtask-{slot}", None, TaskStatus.COMPLETED, result, None)


def _summary(control: _Control) -> SubtaskSummary:
    ended = control._outcomes
    succeeded = sum(outcome.status is TaskStatus.COMPLETED for outcome in ended)
    return SubtaskSummary(1, len(ended), succeeded, len(ended) - succeeded, 0, control)


def _context(registration: Registration, control: _Control, parameters: Json, about: About) -> TaskContext[Any]:
    task_id, attempt = new_task_id(), about.get("attempt", 1)
    return TaskContext(
        task_id=task_id,
        task_type=registration.task_type,
        user_id=about.get("user_id", "test"),
        parameters=registration.validate_parameters(parameters),
        attempt=attempt,
        max_attempts=registration.max_attempts or max(5, attempt),
        fencing_token=attempt,
        idempotency_key=task_id,
        correlation_id=task_id,
        parent_task_id=None,
        logger=logging.getLogger(f"taskframework.task.{registration.task_type}"),
        control=control,
    )


async def _call(
    registration: Registration, surroundings: WorkerExtensions, stage: Part, context: TaskContext[Any], *about: object
) -> Any:
    if stage not in registration.stages:
        raise InvalidRequestError("task", f"{registration.task_type!r} has no {METHODS[stage]}", "Define it.")
    resources = surroundings.resources.given(registration.resources.get(stage, {}))
    method = partial(getattr(registration.executable, METHODS[stage]), **resources)

    async def code(context: TaskContext[Any]) -> Any:
        if registration.stages[stage]:
            return await method(context, *about)
        return value_of(*await asyncio.to_thread(value_or_error, partial(method, context, *about)))

    return await surroundings.around(code)(context)
