"""When a schedule is due: by a cron expression in a time zone, or at an interval.

When clocks are set forward or back, the rule is that of Debian's cron:

- A fixed time (neither minute nor hour begins with `*`): if the clocks skip the time, the schedule is due right after
  the gap; if they show it twice, the schedule is due at the first of the two.
- With `*` at the beginning of minute or hour: if the clocks skip a time, the schedule is not due for it; if they show a
  time twice, the schedule is due twice.
"""

from __future__ import annotations

import difflib
import re
import zoneinfo
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Protocol

from cronsim import CronSim, CronSimError

_MINUTE, _DAY = timedelta(minutes=1), timedelta(days=1)
#: Characters of a cron expression.
MAX_CRON_CHARACTERS = 200
#: The accepted values of each field of a cron expression, by the name that cronsim gives the field.
_FIELDS = {
    "minute": "0-59",
    "hour": "0-23",
    "day-of-month": "1-31, L for the last day or LW for the last weekday, and one that a named month has",
    "month": "1-12 or JAN-DEC",
    "day-of-week": "0-7 or SUN-SAT, 5L for the last Friday or FRI#2 for the second",
}

#: An offset from UTC, which some people write in place of a time zone.
_UTC_OFFSET = re.compile(r"(?:UTC|GMT)?([+-])(\d{1,2})(?::?(\d\d))?", re.IGNORECASE)
#: A short name of a time, such as CEST or AEST. Most are no names of the IANA database, and some mean several times.
_ABBREVIATION = re.compile(r"[A-Z]{2,5}")
#: Names under which some systems keep files that are no zone of the IANA database, or count leap seconds. Another
#: machine may not know them, or mean another time.
_LOCAL_NAMES = re.compile(r"localtime|posixrules|Factory|(?:posix|right)/.*")


class Recurrence(Protocol):
    """A rule for the times of a schedule."""

    def next_after(self, moment: datetime) -> datetime:
        """The first time after a moment, in UTC."""
        ...


@dataclass(frozen=True, slots=True)
class Interval:
    """Times at a fixed interval. Changes of local clocks have no effect."""

    every: timedelta
    #: The time from which intervals are counted; it is not a time of the rule itself.
    since: datetime

    def next_after(self, moment: datetime) -> datetime:
        return self.since + max((moment - self.since) // self.every + 1, 1) * self.every


@dataclass(frozen=True, slots=True)
class Cron:
    """Times of a cron expression, in the local time of a zone."""

    expression: str
    timezone: str

    # A next time always exists: every calendar date comes again within 40 years, and cronsim looks 50 years ahead.
    def next_after(self, moment: datetime) -> datetime:
        minute, hour, *_ = self.expression.split()
        if minute.startswith("*") or hour.startswith("*"):
            return self._next_of_each(moment)
        times = CronSim(self.expression, moment.astimezone(zone(self.timezone)))
        found = next(times).astimezone(UTC)
        # If clocks show an hour twice, cronsim begins in the first hour, although the moment may be in the second.
        while found <= moment:
            found = next(times).astimezone(UTC)
        return found

    def _next_of_each(self, moment: datetime) -> datetime:
        """The next time of an expression with `*` in minute or hour.

        Between two clock changes the offset from UTC is fixed, and each such part is searched by itself. With a zone,
        cronsim takes steps of whole hours: it would miss times where clocks change by half an hour, and find a midnight
        that does not exist.
        """
        start, searched_until = moment, moment
        while True:
            offset = _offset_at(start, self.timezone)
            local = (searched_until + offset).replace(tzinfo=None)
            found = next(CronSim(self.expression, local)).replace(tzinfo=UTC) - offset
            change = _first_clock_change(start, found, self.timezone)
            if change is None:
                return found
            # The first minute after the change may be a time of the expression: cronsim begins with the next minute.
            start, searched_until = change, change - _MINUTE


def _offset_at(moment: datetime, timezone: str) -> timedelta:
    return moment.astimezone(zone(timezone)).utcoffset() or timedelta(0)


def _first_clock_change(start: datetime, end: datetime, timezone: str) -> datetime | None:
    """The first moment after `start`, until `end`, with another offset from UTC; None if the offset stays."""
    offset = _offset_at(start, timezone)
    while start < end:
        later = min(start + _DAY, end)
        if _offset_at(later, timezone) != offset:
            while later - start > _MINUTE:  # clocks change at the beginning of a minute
                middle = start + (later - start) / 2
                start, later = (middle, later) if _offset_at(middle, timezone) == offset else (start, middle)
            return later.replace(second=0, microsecond=0)
        start = later
    return None


def latest_time(recurrence: Recurrence, after: datetime, until: datetime) -> datetime | None:
    """The last time of a rule in a span; None if the span contains no time.

    Halves the span repeatedly, so that a year with a time each minute takes little longer than a day.

    Args:
        recurrence: the rule.
        after: the beginning of the span; the span does not include it.
        until: the end of the span; the span includes it.
    """
    found, end = recurrence.next_after(after), until
    if found > until:
        return None
    while (following := recurrence.next_after(found)) <= until:
        middle = following + (end - following) / 2
        later = recurrence.next_after(middle)
        if later <= until:
            found = later
        else:
            found, end = following, middle
    return found


def check_cron(expression: str) -> str:
    """A cron expression with one space between its fields.

    Raises:
        ValueError: names the field that is wrong, and its accepted values, or says what else is wrong.
    """
    parts = expression.split()
    if len(expression) > MAX_CRON_CHARACTERS:
        raise ValueError(f"has more than {MAX_CRON_CHARACTERS} characters")
    if len(parts) != len(_FIELDS):  # the description of the field, which follows as a hint, names the five
        raise ValueError(f"needs five fields, not {len(parts)}; for seconds there is `every`")
    try:
        next(CronSim(expression, datetime.now(UTC)))
    except CronSimError as error:
        name = str(error).removeprefix("Bad ")
        field = parts[list(_FIELDS).index(name)]
        raise ValueError(f"has a wrong {name} {field!r}: it is {_FIELDS[name]}, with * , - and /") from None
    except StopIteration:
        raise ValueError("matches no day in the next 50 years") from None
    return " ".join(parts)


@cache
def zone(name: str) -> zoneinfo.ZoneInfo:
    """A time zone by its name; the first call for a name reads a file.

    Raises:
        ValueError: if no time zone of the IANA database has this name.
    """
    try:
        if _LOCAL_NAMES.fullmatch(name):
            raise ValueError
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"{name[:100]!r} is not a time zone") from None


def nearest_zone(name: str) -> str | None:
    """The time zone that a user probably meant. Reads many files."""
    by_place: dict[str, str] = {}
    for known in sorted(filter(lambda each: not _LOCAL_NAMES.fullmatch(each), zoneinfo.available_timezones())):
        by_place.setdefault(known.lower(), known)
        by_place.setdefault(known.rpartition("/")[2].lower(), known)
    close = difflib.get_close_matches(name[:100].lower(), by_place, 1)
    return by_place[close[0]] if close else None


def zone_hint(name: str) -> str:
    """A hint for a user who gave a name that is not a time zone. Reads many files."""
    if offset := _UTC_OFFSET.fullmatch(name):
        sign, hours, minutes = offset.groups()
        fixed = f"Etc/GMT{'-' if sign == '+' else '+'}{int(hours)}"
        if not int(minutes or 0) and fixed in zoneinfo.available_timezones():
            return f"Give a place, such as Europe/Berlin; or {fixed}, which is the same time with the opposite sign."
        return "Give a place with this time, such as Europe/Berlin."
    if _ABBREVIATION.fullmatch(name):  # a name that looks like it may be hours away
        return "Give a place with this time, such as Europe/Berlin."
    nearest = nearest_zone(name)
    return f"Did you mean {nearest}?" if nearest else "Give a name of the IANA database, such as Europe/Berlin."
