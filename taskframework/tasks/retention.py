"""The option of a task type that says how long its tasks stay after their end."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import timedelta
from typing import ClassVar

from taskframework.errors import RegistrationError
from taskframework.model.options import KeptFor
from taskframework.tasks.limits import as_timedelta, is_duration

_MILLISECOND, _MAX_RETENTION = timedelta(milliseconds=1), timedelta(days=36600)


@dataclass(frozen=True, slots=True)
class Retention:
    """How long the tasks of a type stay in the store after their end; for None the settings decide.

    Args:
        finished: completed and cancelled tasks, as a timedelta or in seconds; 0 keeps nothing.
        failed: tasks that ended FAILED or DEAD_LETTER.
    """

    #: The accepted values, for messages to people.
    ACCEPTED: ClassVar[str] = "a timedelta or seconds, from zero to a hundred years"
    finished: timedelta | float | None = None
    failed: timedelta | float | None = None

    def __post_init__(self) -> None:
        """Check both where they are written.

        Raises:
            RegistrationError: if one of them is not such a time.
        """
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not self.is_one(value):
                raise RegistrationError(
                    f"The time {field.name} of a retention is {value!r}.", hint=f"Use {self.ACCEPTED}."
                )

    @staticmethod
    def is_one(value: object) -> bool:
        """Return whether a value is such a time."""
        return is_duration(value) and as_timedelta(value) <= _MAX_RETENTION


def retention_from_option(given: Retention | timedelta | float | None) -> KeptFor | None:
    """The option `retention` in the form in which tasks carry it; a plain time is for tasks that finished."""
    if given is None:
        return None
    retention = given if isinstance(given, Retention) else Retention(given)
    return retention_from_times(retention.finished, retention.failed)


def retention_from_times(finished: timedelta | float | None, failed: timedelta | float | None) -> KeptFor:
    """These times in the form in which tasks carry them."""
    return KeptFor(*(None if it is None else as_timedelta(it) // _MILLISECOND for it in (finished, failed)))


KEEP_FOREVER = KeptFor()


def with_minimum(kept: KeptFor, time: timedelta, otherwise: KeptFor = KEEP_FOREVER) -> KeptFor:
    """The same times, raised to at least `time`. A missing time is set only if `otherwise` has a shorter time."""
    least = time // _MILLISECOND

    def longer(own: int | None, default: int | None) -> int | None:
        if own is None:
            return least if default is not None and default < least else None
        return max(own, least)

    return KeptFor(longer(kept.finished, otherwise.finished), longer(kept.failed, otherwise.failed))
