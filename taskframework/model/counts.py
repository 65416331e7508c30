"""How many tasks the store holds, as one process counted them for all."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from taskframework.model.records import RecordKind


@dataclass(frozen=True, slots=True)
class TaskCounts:
    """The numbers of tasks in the store at the last count, and when the next count is due."""

    next_count_at: datetime
    #: All statuses; empty until the first count is done.
    by_status: dict[str, int] = field(default_factory=dict)
    undriven: int = 0
    #: Streams that wait for an operator, because the task that has the turn failed.
    halted_streams: int = 0
    #: Tasks that are FAILED or DEAD_LETTER and not discarded; None if there are too many to look at each of them.
    dead_letters: int | None = None
    #: When this count began; None: there is none yet, or an earlier release counted.
    counted_at: datetime | None = None


#: The record of the counts of all tasks.
COUNTS = RecordKind("counts", TaskCounts)
