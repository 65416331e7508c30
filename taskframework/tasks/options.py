"""How a task type wants to be run."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from taskframework.errors import RegistrationError
from taskframework.model.status import Priority

DEFAULT_TIMEOUT = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """Options of one task type; what is None comes from the settings.

    Args:
        max_attempts: attempts before the task is a dead letter, at least 1.
        timeout: longest time one attempt may run.
        priority: lane for submissions that name none.
        initial_delay: delay after the first failed attempt; it grows by the settings' back-off factor.
        max_delay: longest delay between two attempts.
        retry_on: further exception types that deserve another attempt.
        run_in: where a plain `def execute` runs: `"thread"` (a bounded pool) or `"process"` (a process pool, for
            code that keeps the processor busy).
    """

    max_attempts: int | None = None
    timeout: timedelta = DEFAULT_TIMEOUT
    priority: Priority | Literal["high", "normal", "low"] = Priority.NORMAL
    initial_delay: timedelta | None = None
    max_delay: timedelta | None = None
    retry_on: tuple[type[BaseException], ...] = ()
    run_in: Literal["thread", "process"] = "thread"

    def __post_init__(self) -> None:
        if self.max_attempts is not None and self.max_attempts < 1:
            raise RegistrationError(f"max_attempts is {self.max_attempts}.", hint="Use 1 or more.")
        if self.timeout <= timedelta(0):
            raise RegistrationError(f"timeout is {self.timeout}.", hint="Use a time above zero.")
        if self.priority not in tuple(Priority):
            raise RegistrationError(f"priority is {self.priority!r}.", hint="Use high, normal or low.")
        if self.run_in not in ("thread", "process"):
            raise RegistrationError(f"run_in is {self.run_in!r}.", hint="Use thread or process.")
