"""What all sections of the settings have in common."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from pydantic import BaseModel, ConfigDict, ValidationInfo

from taskframework.settings.durations import format_duration
from taskframework.settings.urls import redacted

ZERO = timedelta(0)


class Section(BaseModel):
    """A group of settings: fixed once read, without unknown keys, and shown without passwords."""

    # Defaults are validated too, so that a check across two settings sees a default beside a changed value.
    # Inputs are kept out of pydantic's own messages because one may be an address with a password.
    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, hide_input_in_errors=True, allow_inf_nan=False
    )

    def __repr_args__(self) -> Iterable[tuple[str | None, object]]:
        for name, value in super().__repr_args__():
            yield name, redacted(value) if isinstance(value, str) else value


def not_below(value: timedelta, info: ValidationInfo, other: str) -> timedelta:
    """Check that a length of time is at least the setting `other` of the same section, declared before it.

    Raises:
        ValueError: if it is less.
    """
    least = info.data.get(other)  # absent if it was wrong itself; one message is enough then
    if isinstance(least, timedelta) and value < least:
        raise ValueError(f"must not be less than {other}, which is {format_duration(least)}")
    return value
