"""Dead letters in groups."""

from __future__ import annotations

from datetime import timedelta

import pytest

from taskframework.model.letters import (
    TREND_HOURS,
    DeadCount,
    LetterFilter,
    count_messages,
    group_by_cause,
    message_fingerprint,
)
from taskframework.model.query import MessageOutline
from tests.unit.model.scenes import NOW

HOUR = timedelta(hours=1)


def _count(cause: str | None, task_type: str, hours_ago: int, count: int) -> DeadCount:
    ended = NOW - hours_ago * HOUR
    return DeadCount(cause, task_type, hours_ago, count, ended - HOUR / 2, ended, "ValueError", f"{hours_ago} h ago")


def test_counts_of_one_cause_are_one_group_and_the_largest_comes_first() -> None:
    counts = [
        _count("a", "mail", 0, 2),
        _count("b", "mail", 1, 9),
        _count("a", "sms", 3, 1),
        _count("a", "mail", 24, 4),
    ]
    large, small = group_by_cause(counts)
    assert (large.fingerprint, large.count, large.task_types) == ("b", 9, ("mail",))
    assert (small.fingerprint, small.count, small.task_types) == ("a", 7, ("mail", "sms"))
    assert (small.first_at, small.last_at) == (NOW - 24.5 * HOUR, NOW)
    assert small.error_message == "0 h ago", "the newest one tells what it is"


def test_a_trend_has_the_last_day_by_hours_and_ends_with_the_present_one() -> None:
    [group] = group_by_cause([_count("a", "mail", 0, 2), _count("a", "sms", 0, 1), _count("a", "mail", 23, 5)])
    assert group.trend == (5, *[0] * (TREND_HOURS - 2), 3)
    [old] = group_by_cause([_count("a", "mail", TREND_HOURS, 7)])
    assert (old.count, sum(old.trend)) == (7, 0)


def test_tasks_without_an_error_are_a_group_too() -> None:
    assert [group.fingerprint for group in group_by_cause([_count(None, "mail", 0, 1)])] == [""]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("it is not JSON (line 1 column 2 (char 1))", "it is not JSON (line 3 column 4 (char 95))"),
        ("its task_id is 'a'", "its task_id is 'b'"),
        ("Of its 1,234 bytes the first 10 are kept.", "Of its 99 bytes the first 10 are kept."),
    ],
)
def test_details_of_one_message_do_not_change_its_fingerprint(one: str, other: str) -> None:
    assert message_fingerprint(one) == message_fingerprint(other) != message_fingerprint("it is not a JSON object")


def test_messages_are_counted_each_by_its_age() -> None:
    ages = (timedelta(0), HOUR, 99 * HOUR, -HOUR)
    counts = count_messages([MessageOutline("m", "not JSON", None, NOW - age) for age in ages], NOW)
    assert [count.hours_ago for count in counts] == [0, 1, TREND_HOURS, 0]
    [group] = group_by_cause(counts)
    assert (group.count, group.task_types, group.error_message) == (4, (), "not JSON")


@pytest.mark.parametrize(("text", "found"), [("JSON", True), ("json", True), ("übung", False), ("ÜBUNG", True)])
def test_a_text_is_found_in_either_case_of_ascii_letters_only(text: str, found: bool) -> None:
    """As in tasks: an action on many by a text must do the same with both."""
    message = MessageOutline("m", "not Json in Übung", None, NOW)
    assert LetterFilter(text=text).matches(message) is found
