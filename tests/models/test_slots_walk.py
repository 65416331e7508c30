"""No walk lets more run than there are slots, or loses one; and each rule that is left out shows."""

from __future__ import annotations

import pytest

from tests.models.slots_walk import Without, walk

_SEEDS = 150


@pytest.mark.parametrize("part", range(3))
def test_every_running_task_holds_a_slot_and_no_slot_is_lost(part: int) -> None:
    for seed in range(part, _SEEDS, 3):
        walk(seed, Without())


@pytest.mark.parametrize("rule", list(Without.__dataclass_fields__))
def test_a_walk_without_a_rule_fails(rule: str) -> None:
    def fails(seed: int) -> bool:
        try:
            walk(seed, Without(**{rule: True}))
        except AssertionError:
            return True
        return False

    assert any(fails(seed) for seed in range(2 * _SEEDS)), f"nobody misses the rule {rule!r}"
