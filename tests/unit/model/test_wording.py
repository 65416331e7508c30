"""Numbers in texts: one task, and many tasks; lengths of time."""

from __future__ import annotations

from datetime import timedelta

import pytest

from taskframework.model.wording import duration_text, pluralize


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0 tasks"), (1, "1 task"), (2, "2 tasks"), (1_000, "1,000 tasks"), (1.0, "1 task"), (0.5, "0.5 tasks")],
)
def test_a_noun_follows_its_number(number: float, shown: str) -> None:
    assert pluralize(number, "task") == shown


def test_a_noun_may_have_an_irregular_plural() -> None:
    assert [pluralize(number, "delivery", "deliveries") for number in (1, 2)] == ["1 delivery", "2 deliveries"]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-1, "0 ms"),
        (0, "0 ms"),
        (0.003, "3 ms"),
        (0.25, "250 ms"),
        (0.9999, "1.0 s"),
        (59.94, "59.9 s"),
        (60, "1 min"),
        (90, "1 min 30 s"),
        (3_600, "1 h"),
        (3_660, "1 h 1 min"),
        (7_200, "2 h"),
        (90_000, "1 d 1 h"),
    ],
)
def test_a_length_of_time_is_in_its_two_largest_units(seconds: float, shown: str) -> None:
    assert duration_text(seconds) == duration_text(timedelta(seconds=seconds)) == shown
