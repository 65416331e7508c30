"""The base class of all sections of the settings, and checks across two settings of a section."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator

from taskframework.durations import Duration, format_duration
from taskframework.settings import validation_errors
from taskframework.urls import redacted, scheme_of

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)  # has no public name

ZERO = timedelta(0)
#: A hundred years, as for the option `retention` of a task type. Far longer ones lead past the year 9999.
_MAX_DURATION = timedelta(days=36_600)


def _check_not_too_long(value: timedelta) -> timedelta:
    if value > _MAX_DURATION:
        raise ValueError(f"must be at most {_MAX_DURATION.days:,} days (a hundred years)")
    return value


#: The type of every setting that is a length of time.
BoundedDuration = Annotated[Duration, AfterValidator(_check_not_too_long)]


class _SectionMeta(ModelMetaclass):
    """Raises the framework's error from a constructor. An `__init__` would raise it for inner sections too, and then
    the first wrong inner section would hide the others.
    """

    def __call__(self, *arguments: Any, **values: Any) -> Any:
        with _raising_configuration_error(self):
            return super().__call__(*arguments, **values)


class Section(BaseModel, metaclass=_SectionMeta):
    """A group of settings: fixed once read, without unknown keys, and shown without passwords."""

    # Defaults are validated too, so that a check across two settings sees a default and a changed value together.
    # Inputs are kept out of pydantic's own messages because one may be an address with a password.
    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, hide_input_in_errors=True, allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_truth_as_number(cls, value: object, info: ValidationInfo) -> object:
        takes_number = _takes_number(cls.model_fields[info.field_name or ""].annotation)
        return refuse_truth(value) if takes_number else value

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        """Make a section from a map.

        Raises:
            ConfigurationError: names all problems.
        """
        with _raising_configuration_error(cls):
            return super().model_validate(obj, **options)

    def __repr_args__(self) -> Iterable[tuple[str | None, object]]:
        for name, value in super().__repr_args__():
            yield name, redacted(value) if isinstance(value, str) else value


def refuse_truth(value: object) -> object:
    """Refuse a truth value, of which pydantic would make 1 or 0.

    Raises:
        ValueError: if it is one.
    """
    if isinstance(value, bool):
        raise ValueError(f"must be a number, not {str(value).lower()}; YAML reads yes, no, on and off as true or false")
    return value


def _takes_number(kind: object) -> bool:
    """Return whether a type is a number, or a union or annotation that contains one."""
    return kind in (int, float) or any(map(_takes_number, get_args(kind)))


@contextmanager
def _raising_configuration_error(section: type) -> Iterator[None]:
    """Turn pydantic's error into the framework's; `RateLimiterSettings` is named as its section is: `rate_limiter`."""
    try:
        yield
    except ValidationError as error:
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", section.__name__.removesuffix("Settings")).lower()
        problems = validation_errors.explain_validation_error(error, section, section=(name,) if name else ())
        raise validation_errors.configuration_error(list(problems)) from None


def check_only_with_scheme(value: Path | None, info: ValidationInfo, address: str, *schemes: str) -> Path | None:
    """Check that a file is given only where it is used: with an address of one of these schemes, declared before it.

    Raises:
        ValueError: if the file would have no effect, like a certificate for a connection without TLS.
    """
    url = info.data.get(address)  # absent if the address itself is wrong
    if value is not None and isinstance(url, str) and scheme_of(url) not in schemes:
        raise ValueError(f"is for {' or '.join(f'{scheme}://' for scheme in schemes)}, which {address} is not")
    return value


def check_not_below(value: timedelta, info: ValidationInfo, other: str) -> timedelta:
    """Check that a length of time is at least the setting `other` of the same section, declared before it.

    Raises:
        ValueError: if it is less.
    """
    least = info.data.get(other)  # absent if the other setting itself is wrong; then one message is enough
    if isinstance(least, timedelta) and value < least:
        raise ValueError(f"must not be less than {other}, which is {format_duration(least)}")
    return value
