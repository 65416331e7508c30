"""What a worker tells of itself: where it is, what it can run, and how much of that it does."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from taskframework.model.records import RecordKind

#: How often a worker tells it.
TOLD_EVERY = timedelta(seconds=10)
#: Who has not told it for so long was killed, is frozen, or cannot reach the store.
LOST_AFTER = timedelta(seconds=30)
#: When the retention may delete what a worker told last.
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
        """Whether it should have told of itself again long ago."""
        return now - self.seen_at > LOST_AFTER


#: The record of a worker, by its id. A worker that stops in order deletes its own.
PRESENCE = RecordKind("worker", Presence)
