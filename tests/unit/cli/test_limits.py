"""`limits`: when the next attempt may begin, in a unit that people read."""

from __future__ import annotations

from datetime import timedelta

import pytest

from taskframework.cli.limits import _bucket_row, _waiting_text
from taskframework.model.rate_limits import AttemptLimit
from taskframework.model.slots import Slots
from taskframework.operations.limits import LimitState, SlotsState
from tests.unit.model.scenes import NOW


@pytest.mark.parametrize(("ahead", "shown"), [(timedelta(milliseconds=3), "in 3 ms"), (timedelta(hours=2), "in 2 h")])
def test_turns_are_shown_in_the_unit_that_fits(ahead: timedelta, shown: str) -> None:
    state = LimitState("openai", None, AttemptLimit(5, 1), 0, NOW + ahead, NOW + ahead)
    assert _bucket_row(state, NOW)[-2:] == (shown, shown)
    assert _bucket_row(LimitState("openai", None, AttemptLimit(5, 1), 1, None, None), NOW)[-2:] == ("", "")


@pytest.mark.parametrize(
    ("key", "shown"), [(None, ""), ("", "(empty)"), ("alice", "alice"), ("a\x1b[2J", "a\ufffd[2J")]
)
def test_a_key_is_shown_as_options_take_it(key: str | None, shown: str) -> None:
    assert _bucket_row(LimitState("openai", key, AttemptLimit(5, 1), 1, None, None), NOW)[1] == shown


@pytest.mark.parametrize(("key", "waiting", "shown"), [("acme", 499, "499"), ("acme", 500, "500+"), (None, 500, "500")])
def test_a_number_of_waiting_tasks_at_which_counting_stopped_is_shown_as_such(
    key: str | None, waiting: int, shown: str
) -> None:
    assert _waiting_text(SlotsState("charge", key, Slots(1, ()), waiting)) == shown
