"""Compares task records: every field exactly and with its type, times within a tolerance."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import zip_longest
from typing import Any

from taskframework.model.task import Task

#: How far a store's time of a write, as far as a test knows that clock, may be from the real time of the write.
TOLERANCE = timedelta(seconds=20)

#: The path where two values differ, and both values.
_Difference = tuple[tuple[object, ...], Any, Any]


def differences(actual: Task, expected: Task, tolerance: timedelta = TOLERANCE) -> list[str]:
    """The differences of two records, one line each; empty if there are none.

    `1`, `1.0` and `True` are three different values, as they are in JSON.
    """
    found = _find_differences(actual.to_document(), expected.to_document(), tolerance)
    return sorted(f"{path!r}: {left!r}, expected {right!r}" for path, left, right in found)


def same_json(actual: Any, expected: Any) -> bool:
    """Return whether two JSON values are the same, types included."""
    return not any(_find_differences(actual, expected, timedelta(0)))


class _Missing:
    def __repr__(self) -> str:
        return "missing"


_MISSING = _Missing()


def _find_differences(
    left: Any, right: Any, tolerance: timedelta, path: tuple[object, ...] = ()
) -> Iterator[_Difference]:
    """The paths where two JSON values differ, with the value of each at this path."""
    if isinstance(left, dict) and isinstance(right, dict):
        for key in left.keys() | right.keys():
            item, other = left.get(key, _MISSING), right.get(key, _MISSING)
            if item is not other:  # most fields of two tasks are None in both
                yield from _find_differences(item, other, tolerance, (*path, key))
    elif isinstance(left, list) and isinstance(right, list):
        for index, (item, other) in enumerate(zip_longest(left, right, fillvalue=_MISSING)):
            yield from _find_differences(item, other, tolerance, (*path, index))
    elif not _is_equal(left, right, tolerance):
        yield path, left, right


def _is_equal(actual: Any, expected: Any, tolerance: timedelta) -> bool:
    if isinstance(actual, datetime) and isinstance(expected, datetime):
        return abs(actual - expected) <= tolerance
    return type(actual) is type(expected) and bool(actual == expected)
