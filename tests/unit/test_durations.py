from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from taskframework.durations import format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30s", timedelta(seconds=30)),
        ("5m", timedelta(minutes=5)),
        ("1h30m", timedelta(hours=1, minutes=30)),
        ("1h 30m", timedelta(hours=1, minutes=30)),
        ("250ms", timedelta(milliseconds=250)),
        ("1.5h", timedelta(minutes=90)),
        ("7d", timedelta(days=7)),
        ("0s", timedelta(0)),
        (" 10s ", timedelta(seconds=10)),
        ("PT30S", timedelta(seconds=30)),
        ("PT0.25S", timedelta(milliseconds=250)),
        ("P1DT2H3M4S", timedelta(days=1, hours=2, minutes=3, seconds=4)),
        ("P7D", timedelta(days=7)),
        ("P1Y2W3DT4H", timedelta(days=365 + 14 + 3, hours=4)),
        (timedelta(seconds=2), timedelta(seconds=2)),
    ],
)
def test_lengths_of_time_are_read(text: object, expected: timedelta) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize("value", [30, 0, 1.5, "30", "1.5", " 7 "])
def test_a_number_is_refused_and_the_unit_asked_for(value: object) -> None:
    with pytest.raises(ValueError, match=f"needs a unit: {str(value).strip()}s for seconds"):
        parse_duration(value)


@pytest.mark.parametrize("value", ["", "s", "-5s", "5 weeks", "30m1h", "P", "PT", "P1M", "PT5", True, None, [], "5s5s"])
def test_a_text_that_is_no_duration_is_refused_with_examples(value: object) -> None:
    with pytest.raises(ValueError, match="must be a duration such as 30s, 5m, 1h30m, 250ms or PT30S"):
        parse_duration(value)


def test_a_length_beyond_counting_is_refused() -> None:
    with pytest.raises(ValueError, match="is too long"):
        parse_duration("9999999999999d")


@pytest.mark.parametrize("text", ["0s", "30s", "5m", "1h30m", "250ms", "7d", "1d2h3m4s5ms", "1m1ms", "0.001ms"])
def test_lengths_are_written_as_people_write_them(text: str) -> None:
    assert format_duration(parse_duration(text)) == text


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=100_000)))
def test_a_duration_that_was_written_is_read_as_the_same(length: timedelta) -> None:
    assert parse_duration(format_duration(length)) == length


@given(st.timedeltas(min_value=timedelta(microseconds=1), max_value=timedelta(days=100_000)))
def test_a_duration_that_pydantic_wrote_is_read_as_the_same(length: timedelta) -> None:
    """The HTTP client writes its options with it, and it counts years."""
    assert parse_duration(TypeAdapter(timedelta).dump_python(length, mode="json")) == length
