"""Admission: a chain of checks before the claim. Each lets a delivery go on, or puts its task off."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

from taskframework.errors import TaskUnreadableError
from taskframework.model.message import TaskMessage
from taskframework.model.scope import EVERYONE
from taskframework.model.status import CLAIMABLE, Priority
from taskframework.model.task import Task
from taskframework.model.transitions import TakenSlot
from taskframework.stores.base import TaskStore
from taskframework.tasks.registry import Registration

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PutOff:
    """Not now. The task waits in the store, not in the queue, and no attempt is counted."""

    #: When it is due again: a time by the store's clock, or a delay from now.
    until: datetime | timedelta
    #: The id of a limit in whose line the task has a turn then, which the task notes.
    limit: str | None = None

    def delay(self, now: datetime) -> timedelta:
        """How long that is from `now` on, by the store's clock."""
        return self.until if isinstance(self.until, timedelta) else max(timedelta(0), self.until - now)


class WaitsWithoutSlot(Protocol):
    """Waits with the slot lent to others."""

    async def __call__(self, awaited: Awaitable[T]) -> T | None:
        """What was awaited, with a slot again; None if a delivery may wait no longer, or the worker stops."""
        ...


async def _with_slot(awaited: Awaitable[T]) -> T | None:
    return await awaited


@dataclass(slots=True)
class Candidate:
    """A delivery that has a slot and is about to be claimed."""

    message: TaskMessage
    headers: Mapping[str, str]
    #: None for a task type that nobody here runs.
    registration: Registration | None
    #: The id of the claim that follows. It is the same however often the claim is asked for.
    claim_id: str
    #: What a check enters here is left when everything about this delivery is over: put off, refused, settled, lost.
    holding: AsyncExitStack
    #: For what takes longer than some milliseconds.
    without_slot: WaitsWithoutSlot = _with_slot
    #: What a check enters here is left if the delivery is surely not claimed.
    unless_claimed: ExitStack = field(default_factory=ExitStack)
    #: Where its message travelled.
    lane: Priority = Priority.NORMAL
    #: What a check says of the claim that follows: the slot of a concurrency limit that it took for it.
    slot: TakenSlot | None = None

    async def claimable(self, store: TaskStore) -> Task | None:
        """The task, with the parameters that its message does not carry; None if the claim will refuse it.

        Raises:
            StoreUnavailableError: if the store cannot be asked.
        """
        try:
            task = await store.get(self.message.task_id, EVERYONE)
        except TaskUnreadableError:
            return None
        is_present = task is not None and task.dispatch_epoch == self.message.dispatch_epoch
        return task if is_present and task is not None and task.status in CLAIMABLE else None


class AdmissionCheck(Protocol):
    """One reason to put a task off. A check knows nothing of the others."""

    async def admit(self, candidate: Candidate) -> PutOff | None:
        """Look at a delivery; None lets it go on.

        Its slot waits for the answer, so that takes seconds at most. `candidate.without_slot` waits for longer.

        Raises:
            StoreUnavailableError: the delivery waits for the store, and then every check is asked again.
        """
        ...


class Admission:
    """The checks of one worker, in their order."""

    def __init__(self, checks: Sequence[AdmissionCheck]) -> None:
        self._checks = checks

    async def admit(self, candidate: Candidate) -> PutOff | None:
        """Ask one check after the other, until one puts the task off.

        Raises:
            StoreUnavailableError: if a check could not ask the store; the candidate holds nothing then.
        """
        try:
            for check in self._checks:
                if (put_off := await check.admit(candidate)) is not None:
                    return put_off
        except BaseException:
            candidate.unless_claimed.close()
            await candidate.holding.aclose()
            raise
        return None
