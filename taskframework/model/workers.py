"""What a worker reports of itself: where it is, which task types it can run, and how much it runs now."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from taskframework.model.records import RecordKind

#: How often a worker reports its presence.
REPORT_INTERVAL = timedelta(seconds=10)
#: A worker without a report for this long has missed one.
_SILENT_AFTER = REPORT_INTERVAL * 1.5
#: A worker without a report for this long was killed, is frozen, or cannot reach the store.
LOST_AFTER = timedelta(seconds=30)
#: How long after its last report the record of a worker may be deleted.
FORGOTTEN_AFTER = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class Presence:
    """A worker process at the time of its last report. Times are by the store's clock."""

    worker_id: str
    host: str
    pid: int
    #: Version of taskframework.
    release: str
    task_types: tuple[str, ...]
    #: How many attempts it can run at once.
    concurrency: int
    #: How many attempts it ran at the time of the report.
    in_flight: int
    started_at: datetime
    seen_at: datetime

    @property
    def has_free_slot(self) -> bool:
        """Whether it could run another attempt at the time of the report."""
        return self.in_flight < self.concurrency

    def is_lost(self, now: datetime) -> bool:
        """Return whether the last report is too old."""
        return now - self.seen_at > LOST_AFTER

    def is_silent(self, now: datetime) -> bool:
        """Return whether a report is missing, so that the worker may be lost."""
        return now - self.seen_at > _SILENT_AFTER

    def replaces(self, other: Presence) -> bool:
        """Return whether this worker can stand in for another: it was started on the same host after the last report of
        the other, and runs all its task types.
        """
        is_later = self.started_at > other.seen_at
        return is_later and self.host == other.host and set(self.task_types) >= set(other.task_types)


def missing_workers(workers: Collection[Presence], now: datetime) -> list[Presence]:
    """Return the lost workers in whose place no other was started. Each worker takes the place of one at most."""
    missing, successors = [], list(workers)
    # Those that were lost last go first: the fewest workers can take their places.
    for lost in sorted((it for it in workers if it.is_lost(now)), key=lambda it: it.seen_at, reverse=True):
        successor = next((it for it in successors if it.replaces(lost)), None)
        if successor is None:
            missing.append(lost)
        else:
            successors.remove(successor)
    return missing


def start_hint(*, is_embedded: bool) -> str:
    """How to get a worker for a type that no live worker runs. On the embedded broker, one process executes all."""
    if is_embedded:
        one = "One process executes all tasks here. Start it, or restart it, with a program that has this type"
        return f"{one}: taskframework dev --app MODULE"
    return "Start a worker whose program has this type: taskframework worker --app MODULE"


#: The record of a worker, by its id. A worker that stops normally deletes its own record.
PRESENCE = RecordKind("worker", Presence)
