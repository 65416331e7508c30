"""How many tasks the store holds, as one process counted them for all."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from taskframework.model.records import RecordKind


@dataclass(frozen=True, slots=True)
class TaskCounts:
    """What the store held at the last count, and when the next count is due."""

    next_count_at: datetime
    #: All statuses; empty as long as nobody has counted.
    by_status: dict[str, int] = field(default_factory=dict)
    undriven: int = 0
    #: Streams that wait for somebody, since the task whose turn it is failed.
    halted_streams: int = 0
    #: Tasks that are FAILED or DEAD_LETTER and not discarded; None if there are too many to look at each.
    dead_letters: int | None = None


#: The record of the counts of all tasks.
COUNTS = RecordKind("counts", TaskCounts)
