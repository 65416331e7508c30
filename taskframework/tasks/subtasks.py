"""Sub-tasks and signals in task code: how the code plans them, waits for them, and reads their outcomes.

Like steps, everything here works on any event loop and in any thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, Self, overload

from typing_extensions import TypeVar  # with a default before Python 3.13

from taskframework.errors import WHOLE, InvalidParametersError, InvalidRequestError, ValueNotStorableError
from taskframework.model.status import SUCCEEDED, TaskStatus
from taskframework.model.task import Task
from taskframework.model.task_fields import Subtasks
from taskframework.model.values import NAME_RULE, Json, is_name
from taskframework.model.view import error_view
from taskframework.tasks.kinds import AnyKind, AnyTaskType, KindOf, kind_of, read_result
from taskframework.tasks.limits import as_timedelta, is_duration
from taskframework.tasks.steps import refuse_on_event_loop
from taskframework.tasks.values import check_iterable, own_copy

T = TypeVar("T")
R = TypeVar("R", default=Any, covariant=True)

#: How many sub-tasks are planned in one step. Between two steps the event loop can do other work.
_SUBTASKS_PER_STEP = 100
#: Longest time that a task may wait for a signal.
MAX_SIGNAL_WAIT = timedelta(days=3650)


@dataclass(frozen=True, slots=True)
class WantedSubtasks:
    """Sub-tasks of one type that are planned together."""

    task_type: AnyTaskType
    options: Mapping[str, Any]
    #: When the round is decided; None: an earlier call, or the options of the task type, say it.
    policy: str | None
    parameters: tuple[Any, ...] = field(default=(), repr=False)
    #: How many parameters of the same call came before these; None for a call with a single sub-task.
    before: int | None = None

    def numbered(self) -> Iterator[tuple[int | None, Any]]:
        """The parameters, each with its number in the call; None as the number for a single sub-task."""
        for number, parameters in enumerate(self.parameters, self.before or 0):
            yield None if self.before is None else number, parameters


@contextmanager
def adding_number_to_errors(number: int | None) -> Iterator[None]:
    """Add the number of the parameters to the errors that are raised inside, which say what is wrong with them."""
    try:
        yield
    except InvalidParametersError as error:
        if number is None:
            raise
        fields = [f"{number}.{wrong['field']}".removesuffix(f".{WHOLE}") for wrong in error.problems]
        problems = [{**wrong, "field": field} for field, wrong in zip(fields, error.problems, strict=True)]
        raise InvalidParametersError(error.task_type, problems) from None
    except ValueNotStorableError as error:
        if number is None:
            raise
        raise ValueNotStorableError(f"{error.what} {number}", error.reason) from None


@dataclass(frozen=True, slots=True)
class SubtaskOutcome(Generic[R]):
    """The outcome of one sub-task, whose result is an R.

    Attributes:
        slot: its place among the sub-tasks of its round, from 0, in the order in which they were submitted.
        parameters: as JSON; they identify the item, also if it failed.
        status: a final status, or the status of a sub-task that is being cancelled because it is no longer needed.
        result: an R if `outcomes` was given the class, otherwise plain JSON; None if the sub-task did not succeed.
        error: `{"code", "type", "message", "retryable", "fingerprint"}`; None if it did not fail.
    """

    slot: int
    task_id: str
    parameters: Json = field(repr=False)
    status: TaskStatus
    result: R = field(repr=False)
    error: dict[str, Any] | None

    @classmethod
    def of(cls, subtask: Task) -> Self:
        """The outcome of a task that has a parent."""
        assert subtask.parent is not None, "listed as a sub-task"
        return cls(
            subtask.parent.slot,
            subtask.task_id,
            subtask.parameters,
            subtask.status,
            subtask.result,
            error_view(subtask.error),
        )


class Family(Protocol):
    """What a worker does for a task with sub-tasks. The methods can be called from any thread and do not wait."""

    def plan(self, wanted: WantedSubtasks) -> Future[list[str]]:
        """Add sub-tasks to the plan of the attempt; the future gives their ids."""
        ...

    def outcomes(self, after_slot: int) -> Future[list[SubtaskOutcome]]:
        """The outcomes of the next sub-tasks of the newest round, in slot order; an empty list after the last one."""
        ...


@dataclass(frozen=True, slots=True)
class SubtaskSummary:
    """How a round of sub-tasks ended, as it was when the policy was decided.

    Attributes:
        round: which round it was, from 1; a task that is replayed begins again.
        total: how many sub-tasks were submitted; those that no other number includes were no longer needed.
    """

    round: int
    total: int
    succeeded: int
    failed: int
    cancelled: int
    family: Family = field(repr=False)

    @classmethod
    def of(cls, subtasks: Subtasks, family: Family) -> Self:
        """The summary of a round that is decided."""
        assert subtasks.planned is not None, "a round that is still open is not decided"
        return cls(subtasks.round, subtasks.planned, subtasks.succeeded, subtasks.failed, subtasks.cancelled, family)

    @overload
    def outcomes(self) -> AsyncIterator[SubtaskOutcome[Any]]: ...
    @overload
    def outcomes(self, kind: KindOf[Any, R]) -> AsyncIterator[SubtaskOutcome[R | None]]: ...
    async def outcomes(self, kind: AnyKind | None = None) -> AsyncIterator[SubtaskOutcome[Any]]:
        """The outcome of each sub-task, in slot order, read from the store page by page.

        Args:
            kind: the class of the sub-tasks if all have the same class; it reads their results.

        Raises:
            ResultUnreadableError: if a result is not of the type that the class says.
            asyncio.CancelledError: if the lease was lost: the attempt is stopped, another worker does the task.
        """
        after = -1
        while page := await _wait_shielded(self.family.outcomes(after)):
            for outcome in page:
                yield _with_typed_result(outcome, kind)
            after = page[-1].slot

    @overload
    def outcomes_blocking(self) -> Iterator[SubtaskOutcome[Any]]: ...
    @overload
    def outcomes_blocking(self, kind: KindOf[Any, R]) -> Iterator[SubtaskOutcome[R | None]]: ...
    def outcomes_blocking(self, kind: AnyKind | None = None) -> Iterator[SubtaskOutcome[Any]]:
        """`outcomes` for a plain `def`, in a thread or a process.

        Raises:
            RuntimeError: on an event loop, which must not wait; use `async for` there.
            asyncio.CancelledError: as `outcomes`.
        """
        refuse_on_event_loop("outcomes_blocking", "async for ... in summary.outcomes()")
        after = -1
        while page := self.family.outcomes(after).result():
            yield from (_with_typed_result(outcome, kind) for outcome in page)
            after = page[-1].slot


@dataclass(frozen=True, slots=True)
class WaitForSignal:
    """The result of `TaskContext.wait_for`, which task code has to return."""

    signal: str
    #: None: forever.
    timeout: timedelta | None

    if not TYPE_CHECKING:  # a type checker shall refuse to await it

        def __await__(self) -> NoReturn:
            raise TypeError("write `return context.wait_for(...)`: it is returned, not awaited")

    @classmethod
    def new(cls, signal: str, timeout: timedelta | float | None) -> Self:
        """Check the signal and the timeout that task code gives.

        Raises:
            InvalidRequestError: names the wrong argument.
        """
        if not is_name(signal):
            raise InvalidRequestError("signal", f"{NAME_RULE}, not {signal!r:.50}", "Give a name such as 'approved'.")
        if timeout is None:
            return cls(signal, None)
        if not is_duration(timeout) or not timeout or as_timedelta(timeout) > MAX_SIGNAL_WAIT:
            raise InvalidRequestError(
                "timeout",
                f"{timeout!r:.50} is no time to wait",
                "Use a timedelta or seconds, above zero and at most ten years, or None to wait forever.",
            )
        return cls(signal, as_timedelta(timeout))


def _with_typed_result(outcome: SubtaskOutcome, kind: AnyKind | None) -> SubtaskOutcome[Any]:
    if kind is None or outcome.status not in SUCCEEDED:
        return outcome
    return replace(outcome, result=read_result(kind_of(kind), outcome.result))


async def plan_subtasks(family: Family, wanted: WantedSubtasks) -> list[str]:
    """Plan these sub-tasks in one step; `TaskContext.submit_subtask`."""
    return await _wait_shielded(family.plan(wanted))


def plan_subtasks_blocking(family: Family, wanted: WantedSubtasks) -> list[str]:
    """`plan_subtasks` for a thread; `TaskContext.submit_subtask_blocking`."""
    refuse_on_event_loop("submit_subtask_blocking", "await context.submit_subtask(...)")
    return family.plan(wanted).result()


async def plan_in_parts(
    family: Family, wanted: WantedSubtasks, parameters: Iterable[Any] | AsyncIterable[Any]
) -> list[str]:
    """Plan a sub-task for each of these parameters; `TaskContext.submit_subtasks`."""
    ids: list[str] = []
    async for part in _split_async(check_iterable(parameters)):
        ids += await plan_subtasks(family, replace(wanted, parameters=part, before=len(ids)))
    return ids


def plan_in_parts_blocking(family: Family, wanted: WantedSubtasks, parameters: Iterable[Any]) -> list[str]:
    """`plan_in_parts` for a thread; `TaskContext.submit_subtasks_blocking`."""
    refuse_on_event_loop("submit_subtasks_blocking", "await context.submit_subtasks(...)")
    ids: list[str] = []
    for part in _split(check_iterable(parameters)):
        ids += family.plan(replace(wanted, parameters=part, before=len(ids))).result()
    return ids


async def _wait_shielded(future: Future[T]) -> T:
    # Shielded: a caller that is cancelled must not interrupt a request that has begun.
    return await asyncio.shield(asyncio.wrap_future(future))


async def _split_async(parameters: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[tuple[Any, ...]]:
    """All parameters, in parts of at most `_SUBTASKS_PER_STEP`; one empty part if there are none, to check the type."""
    if isinstance(parameters, Iterable):
        for part in _split(parameters):
            yield part
        return
    collected: list[Any] = []
    is_first = True
    async for each in parameters:
        collected.append(own_copy(each))
        if len(collected) == _SUBTASKS_PER_STEP:
            yield tuple(collected)
            collected, is_first = [], False
    if collected or is_first:
        yield tuple(collected)


def _split(parameters: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    rest = iter(parameters if isinstance(parameters, Sequence) else map(own_copy, parameters))
    part = tuple(islice(rest, _SUBTASKS_PER_STEP))
    yield part
    while len(part) == _SUBTASKS_PER_STEP and (part := tuple(islice(rest, _SUBTASKS_PER_STEP))):
        yield part
