"""A history by task: what the rules look things up in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from tests.chaos.history import Observation

#: Types of history entries that end a task.
FINAL_TYPES = frozenset({"completed", "completed_with_errors", "failed", "dead_letter", "cancelled"})
#: After these an end is not the last one any more.
BEGIN_ANEW = frozenset({"replayed", "reopened"})
FINAL_STATUSES = frozenset(name.upper() for name in FINAL_TYPES)
#: A history is cut to this many entries.
KEPT = 100


@dataclass(frozen=True, slots=True)
class Entry:
    """One lifecycle event of a task."""

    sequence: int
    type: str
    at: float
    worker_id: str | None
    #: Why, where the type alone does not tell.
    code: str | None = None

    @property
    def pid(self) -> int | None:
        """The process of the worker (its id is `host:pid:random`)."""
        parts = (self.worker_id or "").split(":")
        return int(parts[-2]) if len(parts) >= 3 else None


@dataclass(slots=True)
class Submission:
    """One intention to submit, however often it was tried."""

    not_before: float | None = None
    accepted: set[str] = field(default_factory=set)
    is_unclear: bool = False


@dataclass(slots=True)
class Story:
    """Everything seen of one task."""

    task_id: str
    document: Mapping[str, Any] | None = None
    starts: list[Observation] = field(default_factory=list)
    #: Starts, effects and returns, in the order of time.
    activity: list[Observation] = field(default_factory=list)
    ends: dict[int, Observation] = field(default_factory=dict)
    finals: list[Observation] = field(default_factory=list)

    @property
    def entries(self) -> list[Entry]:
        """The document's own history, oldest first."""
        if self.document is None:
            return []
        return [
            Entry(
                entry["sequence"],
                entry["type"],
                seconds(entry["at"]),
                entry.get("worker_id"),
                (entry.get("data") or {}).get("code"),
            )
            for entry in self.document.get("history", ())
        ]

    @property
    def is_whole(self) -> bool:
        """Whether no entry was cut off."""
        return len(self.entries) < KEPT

    def claimed_at(self, token: int) -> float | None:
        """When the attempt with this token was claimed; None where the history was cut or does not say it."""
        claims = [entry.at for entry in self.entries if entry.type == "started"]
        return claims[token - 1] if self.is_whole and token <= len(claims) else None


@dataclass
class World:
    """A history, indexed."""

    history: Sequence[Observation]
    stories: dict[str, Story] = field(default_factory=dict)
    submissions: dict[str, Submission] = field(default_factory=dict)
    #: Task ids by the submission they came from.
    by_submission: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    #: Events by subscriber and task, in the order of arrival.
    heard: dict[str, dict[str, list[Observation]]] = field(default_factory=dict)

    @classmethod
    def of(cls, history: Sequence[Observation]) -> World:
        world = cls(history)
        for seen in history:
            world._take(seen)
        return world

    def of_kind(self, kind: str) -> Iterator[Observation]:
        return (seen for seen in self.history if seen.kind == kind)

    @cached_property
    def faults(self) -> list[tuple[Observation, float]]:
        """Each fault with the time of its end; for ever, if it has none."""
        ends: dict[tuple[str, str], list[float]] = defaultdict(list)
        for seen in self.of_kind("fault.stop"):
            ends[seen["fault"], seen["target"]].append(seen.monotonic)
        return [
            (seen, min((end for end in ends[seen["fault"], seen["target"]] if end >= seen.monotonic), default=2e18))
            for seen in self.of_kind("fault.start")
        ]

    def monotonic(self, wall: float) -> float:
        """A time in a document as seconds of the machine's monotonic clock."""
        first = self.history[0]
        return wall - first.wall + first.monotonic

    def was_faulty(self, pid: int, since: float, until: float) -> bool:
        """Whether a fault touched this process in this time (monotonic seconds)."""
        return any(
            (fault["pids"] is None or pid in fault["pids"]) and fault.monotonic <= until and end >= since
            for fault, end in self.faults
        )

    def _take(self, seen: Observation) -> None:
        kind = seen.kind
        if kind.startswith("submit."):
            self._take_submission(seen)
        elif kind.startswith("execution."):
            self._take_execution(self._story(seen["task"]), seen)
        elif kind == "final":
            self._story(seen["task"]).finals.append(seen)
        elif kind == "document":
            document = seen["document"]
            self._story(document["_id"]).document = document
            if document.get("parent") is None:  # sub-tasks carry the correlation id of the task above
                self.by_submission[document["correlation_id"]].append(document["_id"])
        elif kind == "subscriber.start":
            self.heard.setdefault(seen["subscriber"], defaultdict(list))
        elif kind == "event":
            self.heard.setdefault(seen["subscriber"], defaultdict(list))[seen["task"]].append(seen)

    def _take_submission(self, seen: Observation) -> None:
        submission = self.submissions.setdefault(seen["submission"], Submission())
        if seen.kind == "submit.invoke":
            submission.not_before = seen.get("not_before")
        elif seen.kind == "submit.ok":
            submission.accepted.add(seen["task"])
        elif seen.kind == "submit.unknown":
            submission.is_unclear = True

    @staticmethod
    def _take_execution(story: Story, seen: Observation) -> None:
        if seen.kind == "execution.start":
            story.starts.append(seen)
        elif seen.kind == "execution.end":
            story.ends[seen["token"]] = seen
        if seen.kind != "execution.end" or seen["outcome"] == "returned":
            story.activity.append(seen)

    def _story(self, task_id: str) -> Story:
        return self.stories.setdefault(task_id, Story(task_id))


def seconds(moment: str) -> float:
    """A time in a document as seconds since 1970."""
    return datetime.fromisoformat(moment).timestamp()
