"""The limits in the options of a task type: how fast its attempts begin, and how many run at once."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar, TypeGuard

from taskframework.errors import RegistrationError
from taskframework.model.limits import short_key
from taskframework.model.options import StartLimit
from taskframework.model.values import Json
from taskframework.names import NAME

_MIN_TIMEOUT, _MAX_TIMEOUT = timedelta(milliseconds=1), timedelta(days=3660)


@dataclass(frozen=True, slots=True)
class RateLimit:
    """The bucket from which the attempts of a task type take their permits.

    Args:
        name: the name of a bucket in the settings: `default`, or one of `rate_limiter.providers`.
        key: a field of the parameters. With a key, each value of the field has its own bucket.
    """

    name: str
    key: str | None = None

    def __post_init__(self) -> None:
        """Check both where they are written.

        Raises:
            RegistrationError: if the name cannot be that of a bucket, or the key is not a text.
        """
        name: object = self.name
        if not isinstance(name, str) or NAME.fullmatch(name) is None:
            raise RegistrationError(
                f"The name of a rate limit is {name!r}.",
                hint="Use the name of a bucket in the settings, such as 'mail'. Its rate is given there: "
                "rate_limiter.providers.mail.rate=10 lets ten attempts begin a second.",
            )
        _check_key(self.key, "rate")


@dataclass(frozen=True, slots=True)
class ConcurrencyLimit:
    """How many attempts of a task type run at once, over all workers.

    Args:
        number: the most attempts at once, from 1 to 1000.
        key: a field of the parameters. With a key, the number is for each value of the field.
    """

    number: int
    key: str | None = None

    def __post_init__(self) -> None:
        """Check both where they are written.

        Raises:
            RegistrationError: if the number or the key is not valid.
        """
        number: object = self.number
        if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= MAX_CONCURRENCY:
            raise RegistrationError(
                f"The number of a concurrency limit is {number!r}.",
                hint=f"Use a whole number from 1 to {MAX_CONCURRENCY}.",
            )
        _check_key(self.key, "concurrency")


@dataclass(frozen=True, slots=True)
class QueueTimeout:
    """How long a task may wait for a worker.

    Args:
        after: the time, as a timedelta or in seconds, counted from when the task could begin.
        counts_limits: whether time counts in which a limit or a pause holds the task back.
    """

    #: The accepted values, for messages to people.
    ACCEPTED: ClassVar[str] = "a timedelta or seconds, from a millisecond to ten years"
    after: timedelta | float
    counts_limits: bool = False

    def __post_init__(self) -> None:
        """Check the time where it is written.

        Raises:
            RegistrationError: if it is not such a time, or zero.
        """
        if not self.is_one(self.after):
            raise RegistrationError(f"The time of a queue_timeout is {self.after!r}.", hint=f"Use {self.ACCEPTED}.")

    @staticmethod
    def is_one(value: object) -> bool:
        """Return whether a value is such a time."""
        return is_duration(value) and _MIN_TIMEOUT <= as_timedelta(value) <= _MAX_TIMEOUT


def start_limit_of(given: QueueTimeout | timedelta | float | None) -> StartLimit | None:
    """The option `queue_timeout` in the form in which tasks carry it."""
    if given is None:
        return None
    limit = given if isinstance(given, QueueTimeout) else QueueTimeout(given)
    return StartLimit(as_timedelta(limit.after) // _MIN_TIMEOUT, limit.counts_limits)


def as_timedelta(value: timedelta | float) -> timedelta:
    """A length of time that is given as a timedelta or in seconds."""
    return value if isinstance(value, timedelta) else timedelta(seconds=value)


def is_duration(value: object) -> TypeGuard[timedelta | float]:
    """Return whether a value is a length of time, as a timedelta or in seconds."""
    if isinstance(value, timedelta):
        return value >= timedelta(0)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return 0 <= value <= timedelta.max.total_seconds()


#: The highest number of a concurrency limit. Its record names all running attempts, and each new attempt reads it.
MAX_CONCURRENCY = 1000


def _check_key(key: object, kind: str) -> None:
    if key is not None and (not isinstance(key, str) or not key):
        raise RegistrationError(
            f"The key of a {kind} limit is {key!r}.", hint="Use a text: the name of a field of the parameters."
        )


def limit_key(parameters: Json, *names: str) -> str:
    """The value of a field of the parameters as text; no value gives an empty text. The parameters may give the field
    under any of these names.

    The number 1 and the text "1" give the same text, so that clients that write an id in one way or the other share a
    limit. A chunk of a batch, which is a list of parameters, has the value that all its items have, or none.
    """
    if isinstance(parameters, list):
        values = {limit_key(item, *names) for item in parameters}
        return values.pop() if len(values) == 1 else ""
    given = [parameters.get(name) for name in names] if isinstance(parameters, dict) else []
    value = next((value for value in given if value is not None), None)
    if value is None:
        return ""
    return short_key(value if isinstance(value, str) else json.dumps(value, sort_keys=True))
