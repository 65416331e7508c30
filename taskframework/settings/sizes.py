"""Amounts of bytes as people write them: `1MiB`, `512KiB`, `1.5MB`, or a plain number of bytes."""

from __future__ import annotations

from typing import Annotated

from pydantic import ByteSize, PlainSerializer

_UNITS = (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024))


def format_size(value: int) -> str:
    """Write an amount of bytes in the largest unit that divides it."""
    for name, unit in _UNITS:
        if value and value % unit == 0:
            return f"{value // unit}{name}"
    return str(value)


Size = Annotated[ByteSize, PlainSerializer(format_size, return_type=str)]
