"""Numbers in texts: one task, and many tasks."""

from __future__ import annotations

import pytest

from taskframework.model.wording import pluralize


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0 tasks"), (1, "1 task"), (2, "2 tasks"), (1_000, "1,000 tasks"), (1.0, "1 task"), (0.5, "0.5 tasks")],
)
def test_a_noun_follows_its_number(number: float, shown: str) -> None:
    assert pluralize(number, "task") == shown


def test_a_plural_of_its_own() -> None:
    assert [pluralize(number, "delivery", "deliveries") for number in (1, 2)] == ["1 delivery", "2 deliveries"]
