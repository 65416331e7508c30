"""Admission: a chain of checks before the claim. Each check lets a delivery continue, or puts its task off."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

from taskframework.errors import TaskUnreadableError
from taskframework.model.attempts import Claim, TakenSlot
from taskframework.model.message import TaskMessage
from taskframework.model.status import CLAIMABLE, Priority
from taskframework.model.task import Task
from taskframework.stores.reading import JointReads
from taskframework.tasks.registry import Registration

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PutOff:
    """The task may not begin now. It waits in the store, not in the queue, and no attempt is counted."""

    #: When the task is due again: a time by the store's clock, or a delay from now.
    until: datetime | timedelta
    #: The id of a limit under which the task has a turn at that time. It is written into the task.
    limit: str | None = None

    def delay(self, now: datetime) -> timedelta:
        """Return how long the task waits from `now`, a time by the store's clock, until it is due again."""
        return self.until if isinstance(self.until, timedelta) else max(timedelta(0), self.until - now)


#: For a delivery that has waited here for as long as the broker allows: its task is due again after this time.
WAITED_TOO_LONG = PutOff(timedelta(minutes=1))


class Waits(Protocol):
    """Lets a delivery wait for something."""

    async def __call__(self, awaited: Awaitable[T]) -> T | None:
        """Wait.

        Returns:
            The result of `awaited`; None if the delivery may not wait any longer or the worker stops.
        """
        ...


async def _wait(awaited: Awaitable[T]) -> T | None:
    return await awaited


@dataclass(slots=True)
class Candidate:
    """A delivery that has a slot and is about to be claimed."""

    message: TaskMessage
    headers: Mapping[str, str]
    #: None for a task type that this worker does not run.
    registration: Registration | None
    #: The id of the claim that follows. A repeated claim has the same id.
    claim_id: str
    #: A check adds callbacks here that are called when the delivery ends: put off, refused, settled or lost.
    holding: AsyncExitStack
    #: A check uses this for every wait that takes longer than some milliseconds: other deliveries use the slot
    #: meanwhile. Then the delivery takes a slot again, which takes long if all slots are taken.
    without_slot: Waits = _wait
    #: For a short wait that keeps the slot.
    with_slot: Waits = _wait
    #: A check adds callbacks here that are called only if it is certain that the task is not claimed.
    unless_claimed: ExitStack = field(default_factory=ExitStack)
    #: The lane from which the message came.
    lane: Priority = Priority.NORMAL
    #: The slot of a concurrency limit that a check took for the claim.
    slot: TakenSlot | None = None
    #: For a debounced task: the hash of the parameters that the checks have read. The claim is refused for others.
    parameters_hash: str | None = None
    #: Whether a check has read the task from the store.
    is_task_known: bool = False

    async def claimable(self, tasks: JointReads) -> Task | None:
        """Read the task, because its message has no parameters; return None if the claim will refuse the task.

        Raises:
            StoreUnavailableError: if the store does not answer.
        """
        try:
            task = await tasks.get(self.message.task_id)
        except TaskUnreadableError:
            return None
        self.is_task_known = self.is_task_known or task is not None
        if task is None or task.dispatch_epoch != self.message.dispatch_epoch or task.status not in CLAIMABLE:
            return None
        if task.debounce is not None and self.parameters_hash is None:
            self.parameters_hash = task.parameters_hash
        return task

    def conditions(self, claim: Claim) -> Claim:
        """Return the claim with what the checks took and read for it."""
        if self.slot is None and self.parameters_hash is None:
            return claim
        return replace(claim, slot=self.slot, parameters_hash=self.parameters_hash)


class AdmissionCheck(Protocol):
    """One reason to put a task off. A check knows nothing of other checks."""

    async def admit(self, candidate: Candidate) -> PutOff | None:
        """Check a delivery; None lets it continue.

        The delivery keeps its slot meanwhile, so a check must answer within seconds. Longer waits use
        `candidate.without_slot`.

        Raises:
            StoreUnavailableError: if the store does not answer. When it answers again, all checks are asked again.
        """
        ...


class Admission:
    """The checks of one worker, in their order."""

    def __init__(self, checks: Sequence[AdmissionCheck]) -> None:
        self._checks = checks

    async def admit(self, candidate: Candidate) -> PutOff | None:
        """Ask one check after the other, until one puts the task off.

        Raises:
            StoreUnavailableError: if a check could not reach the store. All that the checks took has been given back.
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
