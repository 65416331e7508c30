"""What a worker does for a task with sub-tasks: it plans the next round, and reads the outcomes of the last one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from taskframework.clock import Clock
from taskframework.errors import StoreUnavailableError
from taskframework.model.query import RoundOfSubtasks
from taskframework.model.records import Record
from taskframework.model.task_fields import Subtasks
from taskframework.stores.base import TaskStore
from taskframework.tasks.registry import Registration
from taskframework.tasks.subtasks import SubtaskOutcome, WantedSubtasks
from taskframework.worker.attempt import LeaseLostError, RunningAttempt, StopReason
from taskframework.worker.errands import Errands
from taskframework.worker.plan import AttemptPlan, SubtaskKind
from taskframework.worker.store_breaker import until_available

T = TypeVar("T")

#: How many sub-tasks one read returns; each may have a result of a megabyte.
_PAGE_SIZE = 100
_ATTEMPT_OVER = "The attempt lost its lease or has ended."


class SubtaskKinds(Protocol):
    """The check of `submission` for the sub-tasks that an attempt wants to plan."""

    async def find(self, task_type: object, options: Mapping[str, Any]) -> SubtaskKind: ...


@dataclass(frozen=True, slots=True)
class FamilyServices:
    """The services that the families of all attempts share."""

    store: TaskStore
    kinds: SubtaskKinds
    clock: Clock


class AttemptFamily:
    """`Family` of one attempt.

    While the store is away, calls that need it wait until the lease may be over. Then the attempt is lost.
    """

    def __init__(self, services: FamilyServices, attempt: RunningAttempt, errands: Errands) -> None:
        self._services = services
        self._attempt = attempt
        self._errands = errands
        self._plan: AttemptPlan | None = None
        self._is_planned = False
        #: Lets only one call plan at a time, so that slots are given in the order of the calls.
        self._planning = asyncio.Lock()

    def plan(self, wanted: WantedSubtasks) -> Future[list[str]]:
        return self._submit(partial(self._plan_subtasks, wanted))

    def outcomes(self, after_slot: int) -> Future[list[SubtaskOutcome]]:
        return self._submit(partial(self._read_outcomes, after_slot))

    async def planned(self, registration: Registration) -> Subtasks | None:
        """Return the round that begins when the attempt is settled; None if its code submitted no sub-tasks.

        Raises:
            InvalidRequestError: if its policy can never be met.
            LeaseLostError: if the lease was lost before a large plan was written.
        """
        async with self._planning:
            self._is_planned = True
            if self._plan is None:
                return None
            options = registration.executable.options
            return await self._plan.end(options.subtasks, resumes="resume" in registration.stages)

    def _submit(self, errand: Callable[[], Awaitable[T]]) -> Future[T]:
        answer: Future[T] = Future()
        is_lost = self._attempt.stop_reason is StopReason.LEASE_LOST
        if is_lost or not self._errands.submit(partial(_set_answer, answer, errand)):
            answer.set_exception(asyncio.CancelledError(_ATTEMPT_OVER))
        return answer

    async def _plan_subtasks(self, wanted: WantedSubtasks) -> list[str]:
        async with self._planning:
            if self._is_planned:  # a thread that the code left behind called this
                raise LeaseLostError
            kind = await self._call_store(lambda: self._services.kinds.find(wanted.task_type, wanted.options))
            if self._plan is None:
                self._plan = AttemptPlan(self._attempt.task, self._services.store.now, self._write)
            return await self._plan.add(kind, wanted)

    async def _read_outcomes(self, after_slot: int) -> list[SubtaskOutcome]:
        task, store = self._attempt.task, self._services.store
        if task.subtasks is None:
            return []
        round = RoundOfSubtasks(task.task_id, task.generation, task.subtasks.round)
        found = await self._call_store(lambda: store.list_subtasks(round, limit=_PAGE_SIZE, after_slot=after_slot))
        return [SubtaskOutcome.of(subtask) for subtask in found]

    async def _write(self, part: Record) -> None:
        # Nobody else writes a record with this id: if the record exists, we wrote it, and the reply was lost.
        await self._call_store(lambda: self._services.store.write_records([part]))

    async def _call_store(self, call: Callable[[], Awaitable[T]]) -> T:
        attempt, clock = self._attempt, self._services.clock
        try:
            return await until_available(call, lambda: attempt.lease_may_be_over(clock))
        except StoreUnavailableError:
            attempt.stop(StopReason.LEASE_LOST)
            raise LeaseLostError from None


async def _set_answer(answer: Future[T], errand: Callable[[], Awaitable[T]]) -> None:
    try:
        answer.set_result(await errand())
    except LeaseLostError:  # `finally` makes it a cancellation, which task code does not catch by `except Exception`
        pass
    except Exception as error:
        answer.set_exception(error)
    finally:  # a waiting thread must get an answer even if the event loop ends
        if not answer.done():
            answer.set_exception(asyncio.CancelledError(_ATTEMPT_OVER))
