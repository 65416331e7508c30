"""When a schedule comes round: time zones, changes of the clocks, leap days, and what is refused."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from taskframework.model.recurrence import (
    Cron,
    Interval,
    Recurrence,
    check_cron,
    latest_time,
    nearest_zone,
    zone,
    zone_hint,
)

BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"
#: Where clocks change by half an hour.
LORD_HOWE = "Australia/Lord_Howe"


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def times(recurrence: Recurrence, after: str, number: int) -> list[datetime]:
    found = [recurrence.next_after(at(after))]
    while len(found) < number:
        found.append(recurrence.next_after(found[-1]))
    return found


@pytest.mark.parametrize(
    ("cron", "timezone", "after", "expected"),
    [
        pytest.param(
            "30 2 * * *",
            BERLIN,
            "2026-03-28T12:00Z",
            ["2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"],
            id="left out in Berlin: right after the gap",
        ),
        pytest.param(
            "30 2 * * *",
            BERLIN,
            "2026-10-24T12:00Z",
            ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"],
            id="twice in Berlin: at the first",
        ),
        pytest.param(
            "30 2 * * *",
            NEW_YORK,
            "2026-03-07T12:00Z",
            ["2026-03-08T03:00-04:00", "2026-03-09T02:30-04:00"],
            id="left out in New York: right after the gap",
        ),
        pytest.param(
            "30 1 * * *",
            NEW_YORK,
            "2026-10-31T12:00Z",
            ["2026-11-01T01:30-04:00", "2026-11-02T01:30-05:00"],
            id="twice in New York: at the first",
        ),
        pytest.param(
            "0,30 2,3 * * *",
            BERLIN,
            "2026-03-29T00:00+01:00",
            ["2026-03-29T03:00+02:00", "2026-03-29T03:30+02:00", "2026-03-30T02:00+02:00"],
            id="what is left out and what comes then anyway are one",
        ),
        pytest.param(
            "30 * * * *",
            BERLIN,
            "2026-10-25T01:45+02:00",
            ["2026-10-25T02:30+02:00", "2026-10-25T02:30+01:00", "2026-10-25T03:30+01:00"],
            id="each hour in Berlin, also the one that there is twice",
        ),
        pytest.param(
            "30 * * * *",
            NEW_YORK,
            "2026-03-08T01:45-05:00",
            ["2026-03-08T03:30-04:00", "2026-03-08T04:30-04:00"],
            id="each hour in New York, not the one that there is not",
        ),
        pytest.param(
            "0 */6 * * *",
            LORD_HOWE,
            "2026-04-04T18:00+11:00",
            ["2026-04-05T00:00+11:00", "2026-04-05T06:00+10:30", "2026-04-05T12:00+10:30"],
            id="an hour with a step, on a day that is half an hour longer",
        ),
        pytest.param(
            "30 * * * *",
            LORD_HOWE,
            "2026-04-05T00:45+11:00",
            ["2026-04-05T01:30+11:00", "2026-04-05T01:30+10:30", "2026-04-05T02:30+10:30"],
            id="a half hour that comes twice",
        ),
        pytest.param(
            "*/10 2 * * *",
            LORD_HOWE,
            "2026-10-03T03:00+10:30",
            ["2026-10-04T02:30+11:00", "2026-10-04T02:40+11:00", "2026-10-04T02:50+11:00", "2026-10-05T02:00+11:00"],
            id="half an hour that is left out; the first minute after the gap counts",
        ),
        pytest.param(
            "0 */6 * * SUN",
            "America/Havana",
            "2026-03-07T00:00-05:00",
            ["2026-03-08T06:00-04:00", "2026-03-08T12:00-04:00"],
            id="a midnight that there is not",
        ),
        pytest.param("0 0 29 2 *", "UTC", "2026-01-01T00:00Z", ["2028-02-29T00:00Z", "2032-02-29T00:00Z"], id="leap"),
        pytest.param("0 12 L 2 *", "UTC", "2026-01-01T00:00Z", ["2026-02-28T12:00Z", "2027-02-28T12:00Z"], id="last"),
        pytest.param("0 9 * * MON-FRI", "UTC", "2026-01-02T09:00Z", ["2026-01-05T09:00Z"], id="weekdays"),
        pytest.param("0 9 * * MON", "Asia/Kolkata", "2026-01-01T00:00Z", ["2026-01-05T03:30Z"], id="half an hour"),
    ],
)
def test_a_cron_expression_gives_its_next_times(cron: str, timezone: str, after: str, expected: list[str]) -> None:
    assert times(Cron(cron, timezone), after, len(expected)) == [at(text) for text in expected]


def test_in_the_second_of_two_equal_hours_the_first_one_is_over() -> None:
    second = "2026-10-25T02:10+01:00"
    assert times(Cron("30 2 * * *", BERLIN), second, 1) == [at("2026-10-26T02:30+01:00")]


@pytest.mark.parametrize("cron", ["30 2 * * *", "15 */6 * * *", "*/20 * * * *", "0 9 * * MON-FRI"])
@pytest.mark.parametrize("timezone", [BERLIN, NEW_YORK, "America/Santiago", LORD_HOWE])
def test_the_next_time_is_the_same_from_every_moment_before_it(cron: str, timezone: str) -> None:
    """All times of the days around a change of the clocks, whatever moment between two of them one asks from."""
    rule = Cron(cron, timezone)
    for change in ("2026-03-07", "2026-03-28", "2026-04-04", "2026-10-03", "2026-10-24", "2026-10-31"):
        moment, end = at(f"{change}T00:00Z"), at(f"{change}T00:00Z") + timedelta(days=3)
        following = rule.next_after(moment)
        while moment < end:
            assert rule.next_after(moment) == following, moment
            assert following > moment
            moment += timedelta(minutes=23)
            while moment >= following:
                following = rule.next_after(following)


def test_an_interval_is_counted_from_its_beginning_and_not_by_clocks() -> None:
    rule = Interval(timedelta(hours=8), at("2026-03-28T20:07:30+01:00"))
    assert times(rule, "2026-03-28T23:00+01:00", 2) == [
        at("2026-03-29T05:07:30+02:00"),
        at("2026-03-29T13:07:30+02:00"),
    ]
    assert times(rule, "2020-01-01T00:00Z", 1) == [at("2026-03-29T05:07:30+02:00")], "not before it has begun"


@pytest.mark.parametrize(
    ("rule", "until", "expected"),
    [
        (Interval(timedelta(seconds=1), at("2026-01-01T00:00Z")), "2027-01-01T00:00:00.500Z", "2027-01-01T00:00Z"),
        (Cron("* * * * *", BERLIN), "2026-12-31T23:59:59Z", "2026-12-31T23:59Z"),
        (Cron("* * * 1 MON", BERLIN), "2036-06-01T00:00Z", "2036-01-28T22:59Z"),
        (Cron("0 0 1 1 *", "UTC"), "2029-06-01T00:00Z", "2029-01-01T00:00Z"),
        (Cron("0 0 1 1 *", "UTC"), "2026-06-01T00:00Z", None),
        (Cron("30 2 * * *", BERLIN), "2026-10-25T02:10+01:00", "2026-10-25T02:30+02:00"),
    ],
)
def test_the_latest_of_very_many_times_is_found(rule: Recurrence, until: str, expected: str | None) -> None:
    asked = Asked(rule)
    assert latest_time(asked, at("2026-01-01T00:00Z"), at(until)) == (at(expected) if expected else None)
    assert asked.times < 70, "however many there are"


class Asked:
    """A rule that counts how often it is asked."""

    def __init__(self, rule: Recurrence) -> None:
        self._rule, self.times = rule, 0

    def next_after(self, moment: datetime) -> datetime:
        self.times += 1
        return self._rule.next_after(moment)


@pytest.mark.parametrize(
    "rule", [Cron("*/7 3,4 * * MON", BERLIN), Interval(timedelta(hours=5), at("2026-01-01T00:00Z"))]
)
def test_the_latest_is_the_one_before_the_next(rule: Recurrence) -> None:
    begin = at("2026-01-01T00:00Z")
    every = times(rule, "2026-01-01T00:00Z", 200)
    for found, following in pairwise(every):
        assert latest_time(rule, begin, found) == found
        assert latest_time(rule, begin, following - timedelta(milliseconds=1)) == found


@pytest.mark.parametrize(
    ("cron", "told"),
    [
        ("61 * * * *", "wrong minute '61': it is 0-59"),
        ("0 24 * * *", "wrong hour '24': it is 0-23"),
        ("0 0 32 * *", "wrong day-of-month '32'"),
        ("0 0 30 2 *", "wrong day-of-month '30'"),
        ("0 0 * FOO *", "wrong month 'FOO': it is 1-12 or JAN-DEC"),
        ("0 0 * * MON#7", "wrong day-of-week 'MON#7'"),
        ("*/0 * * * *", "wrong minute"),
        ("* * *", "needs five fields, not 3"),
        ("0 0 0 * * *", "for seconds there is `every`"),
        ("", "needs five fields, not 0"),
        ("1," * 200 + "1 * * * *", "has more than 200 characters"),
    ],
)
def test_a_wrong_cron_expression_names_the_field(cron: str, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        check_cron(cron)


def test_a_right_cron_expression_is_kept_as_it_is() -> None:
    assert check_cron("  30  2 * * mon-fri ") == "30 2 * * mon-fri"


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("Europe/Berln", "Europe/Berlin"),
        ("new_york", "America/New_York"),
        ("../../etc/passwd", None),
        ("", None),
        ("x" * 5_000, None),
        ("a\0b", None),
    ],
)
def test_an_unknown_time_zone_is_refused_with_the_nearest_one(name: str, nearest: str | None) -> None:
    with pytest.raises(ValueError, match="is not a time zone"):
        zone(name)
    assert nearest_zone(name) == nearest


@pytest.mark.parametrize("name", ["localtime", "Factory", "posixrules", "right/Europe/Berlin"])
def test_a_name_that_means_another_time_elsewhere_is_no_time_zone(name: str) -> None:
    with pytest.raises(ValueError, match="is not a time zone"):
        zone(name)
    assert nearest_zone(name) != name


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("UTC+2", "or Etc/GMT-2, which is the same time with the opposite sign."),
        ("gmt-03:00", "or Etc/GMT+3,"),
        ("+0530", "Give a place with this time"),
        ("UTC+99", "Give a place with this time"),
        ("berlin", "Did you mean Europe/Berlin?"),
        ("CEST", "Give a place with this time"),
        ("AEST", "Give a place with this time"),
        ("", "Give a name of the IANA database"),
    ],
)
def test_a_wrong_time_zone_is_refused_with_a_hint_of_the_right_one(name: str, hint: str) -> None:
    assert hint in zone_hint(name)
