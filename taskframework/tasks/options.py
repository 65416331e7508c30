"""The options of a task type."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Literal, TypeVar

from taskframework.errors import RegistrationError
from taskframework.model.outcome import MAX_REQUESTED_DELAY
from taskframework.model.status import Priority
from taskframework.model.subtasks import Policy
from taskframework.tasks.limits import (
    MAX_CONCURRENCY,
    ConcurrencyLimit,
    QueueTimeout,
    RateLimit,
    as_timedelta,
    is_duration,
)
from taskframework.tasks.names_elsewhere import names_meant
from taskframework.tasks.retention import Retention

T = TypeVar("T")

DEFAULT_TIMEOUT = timedelta(hours=1)
MAX_ATTEMPTS = 1000
MAX_CHUNK_SIZE = 1000
DEFAULT_CHUNK_SIZE = 100


def _naming_unknown_options(kind: type[T]) -> type[T]:
    """Let the class refuse options that it does not have, with the nearest name. Type checkers see no change."""
    options_class: Any = kind
    make, names = options_class.__init__, [field.name for field in fields(options_class)]

    @functools.wraps(make)
    def refuse_or_make(self: T, **options: Any) -> None:
        if unknown := sorted(options.keys() - set(names)):
            raise unknown_option_error(kind.__name__, unknown[0], names, f"The options are {', '.join(names)}.")
        make(self, **options)

    options_class.__init__ = refuse_or_make
    return kind


def unknown_option_error(what: str, name: str, known: Collection[str], otherwise: str) -> RegistrationError:
    """Make the error of an option that does not exist. Its hint is the nearest name, or `otherwise`."""
    near = names_meant(name, known)
    return RegistrationError(f"{what} has no option {name}.", hint=f"Did you mean {near[0]}?" if near else otherwise)


@_naming_unknown_options
@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """Options of one task type.

    If `max_attempts`, `initial_delay`, `max_delay` or `retention` is None, the settings decide.

    Args:
        max_attempts: attempts before the task is a dead letter, at least 1.
        timeout: longest time one attempt may run, as a timedelta or in seconds.
        priority: lane for submissions that name none.
        initial_delay: delay after the first failed attempt, as a timedelta or in seconds; it grows by the settings'
            back-off factor.
        max_delay: longest delay between two attempts, as a timedelta or in seconds.
        retry_on: a further exception type that deserves another attempt, or several.
        run_in: where a plain `def execute` runs: `"thread"` (a bounded pool) or `"process"` (a process pool, for
            code that keeps the processor busy).
        subtasks: when the sub-tasks of a round are enough: `"all_must_succeed"`, `"allow_failures"`,
            `"first_success"` or `at_least(number)`.
        max_chunk_size: most items of a batch that one task may do, one after the other in one attempt; 1 for a type
            whose tasks do only one item.
        rate_limit: the bucket of the settings from which each attempt takes a permit: its name, or
            `RateLimit(name, key="field of the parameters")` for a bucket for each value of a field.
        concurrency_limit: how many attempts run at once over all workers, as a number, or
            `ConcurrencyLimit(number, key="field of the parameters")` for this number for each value of a field.
        queue_timeout: longest time that a task may wait for a worker before it is a dead letter, as a timedelta or in
            seconds. Time in which a limit or a pause holds the task back does not count, except with
            `QueueTimeout(time, counts_limits=True)`.
        retention: how long its tasks stay in the store after their end: a timedelta or seconds for those that
            completed or were cancelled, or `Retention(finished=…, failed=…)`; 0 keeps nothing.
    """

    max_attempts: int | None = None
    timeout: timedelta | float = DEFAULT_TIMEOUT
    priority: Priority | Literal["high", "normal", "low"] = Priority.NORMAL
    initial_delay: timedelta | float | None = None
    max_delay: timedelta | float | None = None
    retry_on: type[BaseException] | Sequence[type[BaseException]] = ()
    run_in: Literal["thread", "process"] = "thread"
    subtasks: str = "all_must_succeed"
    max_chunk_size: int = DEFAULT_CHUNK_SIZE
    rate_limit: RateLimit | str | None = None
    concurrency_limit: ConcurrencyLimit | int | None = None
    queue_timeout: QueueTimeout | timedelta | float | None = None
    retention: Retention | timedelta | float | None = None

    def __post_init__(self) -> None:
        """Check each option where it is written, not where it is first used.

        Raises:
            RegistrationError: names the option and its accepted values.
        """
        is_count = self.max_attempts is None or _is_count(self.max_attempts, MAX_ATTEMPTS)
        _require(is_count, self, "max_attempts", _count_up_to(MAX_ATTEMPTS))
        _require(
            is_duration(self.timeout) and bool(self.timeout), self, "timeout", "a timedelta or seconds, above zero"
        )
        _require(self.priority in tuple(Priority), self, "priority", "high, normal or low")
        for name in ("initial_delay", "max_delay"):
            delay = getattr(self, name)
            is_delay = delay is None or (is_duration(delay) and as_timedelta(delay) <= MAX_REQUESTED_DELAY)
            _require(is_delay, self, name, "a timedelta or seconds, from zero to ten years")
        first, longest = self.initial_delay, self.max_delay
        is_less = first is not None and longest is not None and as_timedelta(longest) < as_timedelta(first)
        _require(not is_less, self, "max_delay", f"a time that is not less than initial_delay, which is {first!r}")
        _require(_are_errors(self.retry_on), self, "retry_on", "an exception type, or a tuple or list of them")
        _require(self.run_in in ("thread", "process"), self, "run_in", "thread or process")
        _require(Policy.is_one(self.subtasks), self, "subtasks", Policy.ACCEPTED)
        is_count = _is_count(self.max_chunk_size, MAX_CHUNK_SIZE)
        _require(is_count, self, "max_chunk_size", _count_up_to(MAX_CHUNK_SIZE))
        at_once = self.concurrency_limit
        is_at_once = isinstance(at_once, ConcurrencyLimit | None) or _is_count(at_once, MAX_CONCURRENCY)
        accepted = f"{_count_up_to(MAX_CONCURRENCY)}, or ConcurrencyLimit(number, key=field)"
        _require(is_at_once, self, "concurrency_limit", accepted)
        accepted = "the name of a bucket in the settings, or RateLimit(name, key=field)"
        _require(isinstance(self.rate_limit, RateLimit | str | None), self, "rate_limit", accepted)
        _ = self.limit  # checks the name
        _require(_is_wait(self.queue_timeout), self, "queue_timeout", f"{QueueTimeout.ACCEPTED}, or QueueTimeout(time)")
        _require(_is_retention(self.retention), self, "retention", f"{Retention.ACCEPTED}, or Retention(failed=time)")

    @property
    def limit(self) -> RateLimit | None:
        """The rate limit; a plain name is a limit of the whole type."""
        return RateLimit(self.rate_limit) if isinstance(self.rate_limit, str) else self.rate_limit


def _is_count(value: object, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most


def _count_up_to(most: int) -> str:
    return f"a number from 1 to {most}"


def _is_wait(value: object) -> bool:
    return isinstance(value, QueueTimeout | None) or QueueTimeout.is_one(value)


def _is_retention(value: object) -> bool:
    return isinstance(value, Retention | None) or Retention.is_one(value)


def _are_errors(value: object) -> bool:
    kinds = value if isinstance(value, tuple | list) else (value,)
    return all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds)


def _require(is_right: bool, options: TaskOptions, name: str, accepted: str) -> None:
    if not is_right:
        raise RegistrationError(f"The option {name} is {getattr(options, name)!r}.", hint=f"Use {accepted}.")
