"""What a worker tells of itself: where it is, what it can run, and how much it runs now."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from taskframework.model.records import RecordKind

#: How often a worker tells it.
TOLD_EVERY = timedelta(seconds=10)
#: A worker that has told nothing for this long was killed, is frozen, or cannot reach the store.
LOST_AFTER = timedelta(seconds=30)
#: How long after its last news the record of a worker may be deleted.
FORGOTTEN_AFTER = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class Presence:
    """A worker process as it was when it told of itself last. Times are of the store's clock."""

    worker_id: str
    host: str
    pid: int
    #: Version of taskframework.
    release: str
    task_types: tuple[str, ...]
    #: How many attempts it can run at once.
    concurrency: int
    #: How many it ran.
    in_flight: int
    started_at: datetime
    seen_at: datetime

    def is_lost(self, now: datetime) -> bool:
        """Whether it has told nothing for too long."""
        return now - self.seen_at > LOST_AFTER


#: The record of a worker, by its id. A worker that stops in order deletes its own.
PRESENCE = RecordKind("worker", Presence)
