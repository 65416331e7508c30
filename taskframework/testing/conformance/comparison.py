"""Comparing task records: every field exactly and with its type, times within a tolerance."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from taskframework.model.task import Task

#: How far a store's clock, as far as a test knows it, may be from the time a write really happened.
TOLERANCE = timedelta(seconds=20)


def differences(actual: Task, expected: Task, tolerance: timedelta = TOLERANCE) -> list[str]:
    """What differs between two records, one line each; empty if nothing does.

    `1`, `1.0` and `True` are three different values, as they are in JSON.
    """
    left, right = (dict(_leaves(task.to_document())) for task in (actual, expected))
    return [
        f"{path}: {left.get(path, 'missing')!r}, expected {right.get(path, 'missing')!r}"
        for path in sorted(left.keys() | right.keys())
        if path not in left or path not in right or not _equal(left[path], right[path], tolerance)
    ]


def same_json(actual: Any, expected: Any) -> bool:
    """Whether two JSON values are the same, types included."""
    left, right = dict(_leaves(actual)), dict(_leaves(expected))
    return left.keys() == right.keys() and all(_equal(left[path], right[path], timedelta(0)) for path in left)


def _leaves(value: Any, path: tuple[object, ...] = ()) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from _leaves(item, (*path, index))
    else:
        yield repr(path), value


def _equal(actual: Any, expected: Any, tolerance: timedelta) -> bool:
    if isinstance(actual, datetime) and isinstance(expected, datetime):
        return abs(actual - expected) <= tolerance
    return type(actual) is type(expected) and bool(actual == expected)
