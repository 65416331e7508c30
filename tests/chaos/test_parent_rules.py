"""The rules for parents find what they should: a good family is clean, and for each rule a bad one is not."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.chaos import parent_rules
from tests.chaos.history import Observation
from tests.chaos.story import World

_START = 1_800_000_000.0
Family = dict[str, dict[str, Any]]


def _family() -> Family:
    """A parent that waited for three sub-tasks and went on with all of them."""
    types = ("submitted", "started", "waiting", "resumed", "started", "completed")
    history = [
        {"sequence": number, "type": kind, "at": _moment(number), "worker_id": None}
        for number, kind in enumerate(types, start=1)
    ]
    counts = {"round": 1, "planned": 3, "done": 3, "succeeded": 3, "failed": 0, "cancelled": 0}
    parent = _task("parent") | {"history": history, "subtasks": counts, "result": {"is_whole": True}}
    return {"parent": parent} | {f"child-{slot}": _child(slot) for slot in range(3)}


def _task(task_id: str) -> dict[str, Any]:
    left = dict.fromkeys(("spawn_at", "cascade_at", "parent", "subtasks", "result"))
    return {"_id": task_id, "correlation_id": "s-1", "status": "COMPLETED", "generation": 0, "history": [], **left}


def _child(slot: int) -> dict[str, Any]:
    link = {"task_id": "parent", "generation": 0, "round": 1, "slot": slot}
    return _task(f"child-{slot}") | {"parent": link, "finished_at": _moment(3.5)}


def _moment(at: float) -> str:
    return datetime.fromtimestamp(_START + at, UTC).isoformat(timespec="milliseconds")


def _violations(family: Family) -> set[str]:
    seen = [
        Observation("document", "test", at, _START + at, {"document": task}) for at, task in enumerate(family.values())
    ]
    return {violation.rule for rule in parent_rules.ALL for violation in rule(World.of(seen))}


def _resumed_twice(family: Family) -> None:
    family["parent"]["history"][4]["type"] = "resumed"


def _miscounted(family: Family) -> None:
    family["child-1"]["status"] = "FAILED"


def _one_is_missing(family: Family) -> None:
    del family["child-1"]


def _doubled(family: Family) -> None:
    family["other"] = _child(1) | {"_id": "other"}


def _beyond_the_plan(family: Family) -> None:
    family["child-1"]["parent"]["slot"] = 3


def _orphan(family: Family) -> None:
    del family["parent"]


def _ended_late(family: Family) -> None:
    family["child-2"]["finished_at"] = _moment(4.5)


def _saw_too_little(family: Family) -> None:
    family["parent"]["result"] = {"is_whole": False}


def _left_undone(family: Family) -> None:
    family["parent"]["cascade_at"] = _moment(9)


BAD: list[tuple[str, Callable[[Family], None]]] = [
    ("resumed_twice", _resumed_twice),
    ("miscounted", _miscounted),
    ("miscounted", _one_is_missing),
    ("not_planned", _doubled),
    ("not_planned", _beyond_the_plan),
    ("not_planned", _orphan),
    ("went_on_early", _ended_late),
    ("went_on_early", _saw_too_little),
    ("left_undone", _left_undone),
]


def test_a_good_family_is_clean() -> None:
    assert _violations(_family()) == set()


@pytest.mark.parametrize(("rule", "spoil"), BAD, ids=[f"{rule}-{spoil.__name__[1:]}" for rule, spoil in BAD])
def test_a_bad_family_is_found_out(rule: str, spoil: Callable[[Family], None]) -> None:
    family = _family()
    spoil(family)
    assert rule in _violations(family)


def test_there_is_a_bad_family_for_every_rule() -> None:
    assert {rule.__name__ for rule in parent_rules.ALL} == {rule for rule, _ in BAD}
