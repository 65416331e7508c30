"""Admission: a chain of checks before the claim. Each lets a delivery go on, or puts its task off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from taskframework.model.message import TaskMessage
from taskframework.tasks.registry import Registration


@dataclass(frozen=True, slots=True)
class PutOff:
    """Not now. The task waits in the store, not in the queue, and no attempt is counted."""

    #: When it is due again: a time by the store's clock, or a delay from now.
    until: datetime | timedelta

    def delay(self, now: datetime) -> timedelta:
        """How long that is from `now` on, by the store's clock."""
        return self.until if isinstance(self.until, timedelta) else max(timedelta(0), self.until - now)


@dataclass(frozen=True, slots=True)
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


class AdmissionCheck(Protocol):
    """One reason to put a task off. A check knows nothing of the others."""

    async def admit(self, candidate: Candidate) -> PutOff | None:
        """Look at a delivery; None lets it go on. Its slot waits for the answer, so that takes seconds at most.

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
            await candidate.holding.aclose()
            raise
        return None
