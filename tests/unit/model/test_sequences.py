"""How far a process got with each task."""

from __future__ import annotations

from taskframework.model.sequences import Sequences


def test_the_highest_sequence_counts_whatever_comes_later() -> None:
    sequences = Sequences()
    assert sequences.of("a") == 0
    assert sequences.raise_to("a", 3) == 3
    assert sequences.raise_to("a", 2) == 3
    assert sequences.of("a") == 3


def test_the_task_whose_sequence_was_raised_longest_ago_is_forgotten_first() -> None:
    sequences = Sequences(most=2)
    sequences.raise_all({"a": 1, "b": 1})
    sequences.raise_all({"a": 2, "c": 1})
    assert [sequences.of(task_id) for task_id in "abc"] == [2, 0, 1]
