"""Lengths of time as people write them: `30s`, `1h30m`, `250ms`, or ISO-8601 such as `PT30S`."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer

_AMOUNT = r"\d+(?:\.\d+)?"
_PLAIN = re.compile(
    rf"(?:(?P<days>{_AMOUNT})d ?)?(?:(?P<hours>{_AMOUNT})h ?)?(?:(?P<minutes>{_AMOUNT})m ?)?"
    rf"(?:(?P<seconds>{_AMOUNT})s ?)?(?:(?P<milliseconds>{_AMOUNT})ms)?"
)
_ISO = re.compile(
    rf"P(?:(?P<years>{_AMOUNT})Y)?(?:(?P<weeks>{_AMOUNT})W)?(?:(?P<days>{_AMOUNT})D)?"
    rf"(?:T(?:(?P<hours>{_AMOUNT})H)?(?:(?P<minutes>{_AMOUNT})M)?(?:(?P<seconds>{_AMOUNT})S)?)?"
)
#: The length of a year in a `timedelta` that pydantic wrote.
_YEAR = timedelta(days=365)
_SUFFIXES = (
    ("d", timedelta(days=1)),
    ("h", timedelta(hours=1)),
    ("m", timedelta(minutes=1)),
    ("s", timedelta(seconds=1)),
)
_ACCEPTED = "a duration such as 30s, 5m, 1h30m, 250ms or PT30S"


def parse_duration(value: object) -> timedelta:
    """Read a length of time.

    Raises:
        ValueError: if it has no unit, is negative, or is not a length of time at all.
    """
    if isinstance(value, timedelta):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise ValueError(f"needs a unit: {value}s for seconds, or ms, m, h, d")
    text = value.strip() if isinstance(value, str) else ""
    if re.fullmatch(_AMOUNT, text):
        raise ValueError(f"needs a unit: {text}s for seconds, or ms, m, h, d")
    match = _PLAIN.fullmatch(text) or _ISO.fullmatch(text)
    if match is None or not any(match.groups()):
        raise ValueError(f"must be {_ACCEPTED}")
    amounts = {unit: float(amount) for unit, amount in match.groupdict().items() if amount}
    try:
        return _YEAR * amounts.pop("years", 0) + timedelta(**amounts)
    except OverflowError:
        raise ValueError("is too long") from None


def format_duration(value: timedelta) -> str:
    """Write a length of time so that `parse_duration` reads the same."""
    parts = []
    rest = value
    for suffix, unit in _SUFFIXES:
        count, rest = divmod(rest, unit)
        if count:
            parts.append(f"{count}{suffix}")
    if rest:
        parts.append(f"{rest / timedelta(milliseconds=1):g}ms")
    return "".join(parts) or "0s"


Duration = Annotated[timedelta, BeforeValidator(parse_duration), PlainSerializer(format_duration, return_type=str)]
