"""What no history of parents and sub-tasks may show."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

from tests.chaos.judging import Violation, documents
from tests.chaos.story import World, seconds


def resumed_twice(world: World) -> Iterator[Violation]:
    """A parent goes on once for each time that it waited."""
    for story, _ in documents(world):
        waits = [entry.type for entry in story.entries if entry.type in ("waiting", "resumed", "reopened")]
        for kind, run in groupby(waits):
            if kind == "resumed" and len(list(run)) > 1:
                yield Violation("resumed_twice", story.task_id, f"its history is {waits}")


def miscounted(world: World) -> Iterator[Violation]:
    """What a parent says of its sub-tasks is what they are, once the round is over as a whole."""
    below = _below(world)
    for story, document in documents(world):
        counts = document.get("subtasks")
        if counts is None or counts["planned"] is None or counts["done"] < counts["planned"]:
            continue
        found = Counter(child["status"] for child in below[story.task_id, document["generation"], counts["round"]])
        failed, cancelled = found["FAILED"] + found["DEAD_LETTER"], found["CANCELLED"]
        succeeded = found["COMPLETED"] + found["COMPLETED_WITH_ERRORS"]
        told = (counts["planned"], counts["succeeded"], counts["failed"], counts["cancelled"])
        if told != (found.total(), succeeded, failed, cancelled):
            yield Violation("miscounted", story.task_id, f"it says {counts}, its sub-tasks are {dict(found)}")


def not_planned(world: World) -> Iterator[Violation]:
    """No sub-task is there twice, or beyond the plan."""
    for (parent_id, generation, round_), children in _below(world).items():
        parent = world.stories[parent_id].document if parent_id in world.stories else None
        if parent is None:
            yield Violation("not_planned", children[0]["_id"], f"its parent {parent_id} is not there")
            continue
        slots = Counter(child["parent"]["slot"] for child in children)
        is_newest = (parent["generation"], parent["subtasks"]["round"]) == (generation, round_)
        planned = parent["subtasks"]["planned"] if is_newest else None
        if max(slots.values()) > 1 or (planned is not None and max(slots) >= planned):
            yield Violation("not_planned", parent_id, f"{len(children)} sub-tasks, planned are {planned}")


def went_on_early(world: World) -> Iterator[Violation]:
    """A parent that waits for all goes on after the last of them ended, and has seen every outcome."""
    below = _below(world)
    for story, document in documents(world):
        result = document["result"]
        if document["status"] != "COMPLETED" or not isinstance(result, dict) or "is_whole" not in result:
            continue
        if not result["is_whole"]:
            yield Violation("went_on_early", story.task_id, f"it has not seen every outcome: {result}")
        resumed = max((entry.at for entry in story.entries if entry.type == "resumed"), default=0.0)
        children = below[story.task_id, document["generation"], document["subtasks"]["round"]]
        if children and resumed < max(seconds(child["finished_at"]) for child in children):
            yield Violation("went_on_early", story.task_id, "a sub-task ended after it went on")


def left_undone(world: World) -> Iterator[Violation]:
    """When everything is at rest, nothing of parents is left to do."""
    for story, document in documents(world):
        left = [name for name in ("spawn_at", "cascade_at") if document.get(name) is not None]
        if left and document["status"] != "WAITING":
            yield Violation("left_undone", story.task_id, f"{document['status']} with {', '.join(left)}")


ALL: tuple[Callable[[World], Iterator[Violation]], ...] = (
    resumed_twice,
    miscounted,
    not_planned,
    went_on_early,
    left_undone,
)


def _below(world: World) -> dict[tuple[str, int, int], list[Any]]:
    """The sub-tasks of each round of each parent."""
    below: dict[tuple[str, int, int], list[Any]] = defaultdict(list)
    for _, document in documents(world):
        if (link := document.get("parent")) is not None:
            below[link["task_id"], link["generation"], link["round"]].append(document)
    return below
