"""How many tasks the store holds, as somebody counted them for all processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from taskframework.model.records import RecordKind


@dataclass(frozen=True, slots=True)
class TaskCounts:
    """What the store held when it was counted last, and when somebody is to count again."""

    next_count_at: datetime
    by_status: dict[str, int] = field(default_factory=dict)
    undriven: int = 0
    #: Streams that wait for somebody, since the task whose turn it is failed.
    halted_streams: int = 0


#: The record of the counts of all tasks.
COUNTS = RecordKind("counts", TaskCounts)
