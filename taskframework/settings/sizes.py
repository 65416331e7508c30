"""Amounts of bytes as people write them: `1MiB`, `512KiB`, `1.5MB`, or a plain number of bytes."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer

_UNITS = {"": 1, "b": 1, "kb": 1000, "mb": 1000**2, "gb": 1000**3, "kib": 1024, "mib": 1024**2, "gib": 1024**3}
_SHOWN = (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024))
_TEXT = re.compile(r"(\d+(?:\.\d+)?) ?([a-z]*)", re.IGNORECASE)


def parse_size(value: object) -> int:
    """Read an amount of bytes.

    Raises:
        ValueError: if it is not one.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _TEXT.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or (unit := _UNITS.get(match[2].lower())) is None:
        raise ValueError("must be an amount of bytes such as 1MiB, 512KiB or 1048576")
    return int(float(match[1]) * unit)


def format_size(value: int) -> str:
    """Write an amount of bytes in the largest unit that divides it."""
    for name, unit in _SHOWN:
        if value and value % unit == 0:
            return f"{value // unit}{name}"
    return str(value)


Size = Annotated[int, BeforeValidator(parse_size), PlainSerializer(format_size, return_type=str)]
