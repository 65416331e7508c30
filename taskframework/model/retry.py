"""When to try again, as a pure rule: exponential back-off with jitter, after a failure and after a crash.

A task may ask for another delay itself, with `RetryableError(delay=...)` (`model/outcome.py`).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from datetime import timedelta


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """`initial_delay * backoff_factor ** (attempt - 1)`, never more than `max_delay`, spread by ± `jitter_factor`."""

    max_attempts: int = 5
    initial_delay: timedelta = timedelta(seconds=5)
    max_delay: timedelta = timedelta(hours=1)
    backoff_factor: float = 2.0
    jitter_factor: float = 0.1

    def with_own(self, initial_delay: timedelta | None, max_delay: timedelta | None) -> RetryPolicy:
        """The policy of a task type that may have delays of its own; None where it has none."""
        policy = self if initial_delay is None else replace(self, initial_delay=initial_delay)
        return policy if max_delay is None else replace(policy, max_delay=max_delay)

    def after_crash(self, crashes: int) -> timedelta:
        """How long to wait after the worker of a task died.

        Args:
            crashes: how many workers died while they ran the task, this one included.

        Returns:
            Zero after the first, because the task is most likely not the cause; then as after the first failed attempt,
            the second, and so on.
        """
        return timedelta(0) if crashes <= 1 else self.delay(crashes - 1)

    def delay(self, attempt: int, chance: float | None = None) -> timedelta:
        """How long to wait after a failed attempt.

        Args:
            attempt: which attempt failed, from 1.
            chance: a number in [0, 1) that places the delay in its jitter range; random when left out.

        Returns:
            A delay of at least zero and at most `max_delay`.
        """
        longest = self.max_delay.total_seconds()
        try:
            seconds = self.initial_delay.total_seconds() * self.backoff_factor ** (attempt - 1)
        except OverflowError:  # after about a thousand attempts
            seconds = longest
        spread = self.jitter_factor * (2 * (random.random() if chance is None else chance) - 1)
        return timedelta(seconds=max(0.0, min(min(seconds, longest) * (1 + spread), longest)))
