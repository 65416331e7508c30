"""Puts off deliveries of paused task types that this worker has taken already."""

from __future__ import annotations

from datetime import timedelta

from taskframework.limits.pauses import Pauses
from taskframework.worker.admission import Candidate, PutOff

#: When the sweeper looks at the task again, if the pause does not end before. During the pause it delays the task more.
_PUT_OFF_TIME = timedelta(seconds=20)


class PausedTypes:
    """`AdmissionCheck` that puts off tasks of paused types."""

    def __init__(self, pauses: Pauses) -> None:
        self._pauses = pauses

    async def admit(self, candidate: Candidate) -> PutOff | None:
        """Let a delivery continue unless its type is paused."""
        return PutOff(_PUT_OFF_TIME) if self._pauses.is_paused(candidate.message.task_type) else None
