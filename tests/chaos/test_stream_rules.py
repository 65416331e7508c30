"""The rule for serial streams finds what it should, by the clock of the tasks and not by that of the documents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.chaos import stream_rules
from tests.chaos.history import Observation
from tests.chaos.story import World


def _ran(name: str, position: int, *attempts: tuple[int, float, float | None], **fields: Any) -> Iterator[Observation]:
    """A task at a position; each attempt has a token, a start and, unless it was killed, an end."""
    for token, start, end in attempts:
        told = {"task": name, "token": token, "pid": 1}
        yield Observation("execution.start", "test", start, 0.0, told)
        if end is not None:
            yield Observation("execution.end", "test", end, 0.0, {**told, "outcome": "returned"})
    place = {"key": "s", "mode": "serial", "position": position}
    document = {"_id": name, "correlation_id": name, "user_id": "u", "generation": 0, "stream": place, **fields}
    yield Observation("document", "test", 100.0, 0.0, {"document": document})


def _subjects(*tasks: Iterator[Observation]) -> list[str]:
    seen = sorted((each for task in tasks for each in task), key=lambda each: each.monotonic)
    return [violation.subject for violation in stream_rules.out_of_turn(World.of(seen))]


def test_tasks_that_run_one_after_the_other_are_no_violation() -> None:
    assert _subjects(_ran("a", 0, (1, 1.0, 2.0)), _ran("b", 1, (1, 2.5, None), (2, 3.0, 4.0))) == []


def test_two_tasks_of_a_stream_at_once_are_a_violation() -> None:
    assert _subjects(_ran("a", 0, (1, 1.0, 2.0)), _ran("b", 1, (1, 1.5, 4.0))) == ["b"]


def test_a_later_task_that_runs_first_is_a_violation() -> None:
    assert _subjects(_ran("a", 5, (1, 3.0, 4.0)), _ran("b", 6, (1, 1.0, 2.0))) == ["b"]


def test_a_retry_after_the_next_task_is_a_violation() -> None:
    assert _subjects(_ran("a", 0, (1, 1.0, 2.0), (2, 6.0, 7.0)), _ran("b", 1, (1, 3.0, 4.0))) == ["b"]


def test_a_frozen_worker_that_continues_late_is_no_violation() -> None:
    assert _subjects(_ran("a", 0, (1, 1.0, 9.0), (2, 2.0, 3.0)), _ran("b", 1, (1, 4.0, 5.0))) == []


def test_tasks_of_other_streams_and_replays_are_not_compared() -> None:
    other = {"stream": {"key": "t", "mode": "serial", "position": 1}}
    results = {"stream": {"key": "s", "mode": "ordered_results", "position": 2}}
    running = _ran("a", 0, (1, 1.0, 9.0))
    assert _subjects(running, _ran("b", 1, (1, 2.0, 3.0), **other), _ran("c", 2, (1, 2.0, 3.0), **results)) == []
    assert _subjects(_ran("a", 0, (1, 8.0, 9.0), generation=1), _ran("b", 1, (1, 2.0, 3.0))) == []
