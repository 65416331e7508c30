"""The exceptions that several parts raise, as one tree; others are beside the code that raises them.

The docstring of a class is the message of an instance that was made without a message; `hint` says what to do next. An
error that callers over HTTP can get has a `code`, its name for programs: `api/codes.py` says what each code means.

    TaskframeworkError
    ├── RetryableError, NonRetryableError          raised by task code
    ├── ConfigurationError, RegistrationError      found at start
    │   └── ExtraMissingError                      a feature needs a package that is not installed
    ├── SubmissionError                            the request is wrong, nothing was stored
    │   ├── UnknownTaskTypeError, InvalidParametersError, InvalidRequestError, ValueNotStorableError
    │   └── IdempotencyConflictError, NewerVersionError
    ├── TaskNotFoundError, SignalsFullError        the request does not fit the task
    ├── TransitionRefusedError ── ParentFinishedError
    ├── TaskFailedError, ResultTimeoutError        raised to callers that wait for a result
    ├── NotRunningError ── StoreOnlyError          the call needs a part that is not open in this process
    ├── MessageUnreadableError
    ├── StoreError ── StoreUnavailableError, StoreMisconfiguredError, TaskUnreadableError
    │   └── StoreClosedError                       also a NotRunningError
    ├── BrokerError ── BrokerUnavailableError, PublishRefusedError, TopologyMismatchError
    └── ApiError ── ApiUnavailableError            raised to callers over HTTP
"""

from __future__ import annotations

import difflib
import logging
import math
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

logger = logging.getLogger(__name__)

WHOLE = "(whole)"  # in place of a field, where a value as a whole does not fit
_LONGEST_DELAY = timedelta(days=3650).total_seconds()
_Time = timedelta | float
_MOST_NAMED = 5  # wrong fields in the message of an error; all of them are in its `problems`


class TaskframeworkError(Exception):
    """Something in taskframework went wrong."""

    #: What the reader can do about it; one sentence, empty when there is nothing to add.
    hint: str = ""

    def __init__(self, message: str | None = None, *, hint: str | None = None) -> None:
        self.message = message if message is not None else (type(self).__doc__ or "").strip()
        if hint is not None:
            self.hint = hint
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message} {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # Task code in a child process gets errors of the worker. By default pickle would call `__init__` with the text.
        return _restored, (type(self), self.args), self.__dict__


def _restored(kind: type[TaskframeworkError], args: tuple[Any, ...]) -> TaskframeworkError:
    return kind.__new__(kind, *args)


class RetryableError(TaskframeworkError):
    """The attempt failed and another one may succeed."""

    def __init__(self, message: str | None = None, *, delay: _Time | None = None, pause_limit: bool = False) -> None:
        """Ask for another attempt.

        Args:
            message: what went wrong; it is stored with the task.
            delay: exact time to wait before the next attempt, in seconds or as a timedelta, at most ten years; a
                negative delay counts as zero. Without a delay, or with one that is no number, the retry policy decides.
            pause_limit: whether all tasks under the same rate limit wait for the same time, as after a 429.
        """
        super().__init__(message)
        self.delay = None if delay is None else _delay(delay)
        self.pause_limit = pause_limit


def _delay(value: _Time) -> timedelta | None:
    """A delay that can be stored: not negative, and ten years at most. A value that is no delay counts as none given.

    This runs while task code fails; another error from here would hide the one that matters.
    """
    try:
        seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    except (TypeError, ValueError):
        seconds = math.nan
    if math.isnan(seconds):
        logger.warning("the delay %.50r is neither a timedelta nor a number of seconds; the policy decides", value)
        return None
    return timedelta(seconds=min(max(seconds, 0), _LONGEST_DELAY))


class NonRetryableError(TaskframeworkError):
    """The task failed and no further attempt can succeed."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message)


class ConfigurationError(TaskframeworkError):
    """The configuration is not valid."""

    def __init__(self, message: str | None = None, *, key: str | None = None, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.key = key


class ExtraMissingError(ConfigurationError, ImportError):
    """The requested feature needs a package that is not installed."""

    def __init__(self, what: str, package: str, extra: str) -> None:
        super().__init__(f"{what} needs {package}: not installed.", hint=f"pip install 'taskframework[{extra}]'")
        self.package, self.extra = package, extra


class RegistrationError(TaskframeworkError):
    """An executable cannot be registered."""


class NotRunningError(TaskframeworkError):
    """The framework is not running."""

    hint = "Use it inside `async with framework.running():`."


class StoreOnlyError(NotRunningError):
    """This process opened only the store, to submit and read tasks."""

    code = "not_running"
    hint = "Ask the process that executes tasks."


class SubmissionError(TaskframeworkError):
    """The task cannot be accepted; nothing was stored."""

    code = "invalid_task"


class UnknownTaskTypeError(SubmissionError):
    """The task type is unknown."""

    code = "unknown_task_type"

    def __init__(self, task_type: str, known: Sequence[str]) -> None:
        """Make the error; it names the nearest known type, or all known types.

        Args:
            task_type: the type that was requested.
            known: the types that are registered here or were declared by workers.
        """
        self.task_type, self.known = task_type[:100], tuple(known)
        super().__init__(f"There is no task type {self.task_type!r}.", hint=f"{self.nearest} {_HOW_TYPES_BECOME_KNOWN}")

    @property
    def nearest(self) -> str:
        """A sentence that names the nearest known type, or all known types."""
        near = difflib.get_close_matches(self.task_type, self.known, 1)
        return f"Did you mean {near[0]!r}?" if near else f"Known types: {', '.join(self.known) or 'none'}."


_HOW_TYPES_BECOME_KNOWN = (
    "A type is known once a `dev` or `worker` that executes it has started on this store, or if it is registered here:"
    " `--app`, or `framework.register(...)`."
)


class InvalidParametersError(SubmissionError):
    """The parameters are not valid for the task type."""

    code = "invalid_parameters"

    def __init__(self, task_type: str, problems: list[dict[str, Any]], *, takes: str = "") -> None:
        wrong = problems or [{"field": WHOLE, "message": "invalid"}]
        hint = "Correct the named fields."  # of a submission, or of a schedule in the settings
        if wrong[0]["field"] == WHOLE:
            hint = f"{takes or 'Give the parameters that the type accepts.'} GET /api/v1/task-types has its schema."
        told = [one["message"] if one["field"] == WHOLE else f"{one['field']}: {one['message']}" for one in wrong]
        if len(told) > _MOST_NAMED:
            told = [*told[:_MOST_NAMED], f"and {len(told) - _MOST_NAMED} more"]
        super().__init__(f"The parameters are not valid for task type {task_type!r}: {'; '.join(told)}.", hint=hint)
        self.task_type, self.problems = task_type, problems


class InvalidRequestError(SubmissionError):
    """The request contradicts itself or a limit."""

    code = "invalid_request"

    def __init__(self, field: str, reason: str, hint: str) -> None:
        super().__init__(f"{field}: {reason}.".removeprefix(f"{WHOLE}: "), hint=hint)
        self.field, self.reason = field, reason


class ValueNotStorableError(SubmissionError):
    """The value cannot be stored."""

    code = "value_not_storable"

    def __init__(self, what: str, reason: str) -> None:
        hint = "Use plain JSON values within the documented limits."
        super().__init__(f"The {what} cannot be stored: {reason}.", hint=hint)
        self.what, self.reason = what, reason


class IdempotencyConflictError(SubmissionError):
    """The idempotency key was used before for another task."""

    code = "idempotency_conflict"
    hint = "Send the same task type and parameters (of a batch: policy and chunk size), or use a new key."

    def __init__(self, key: str, task_id: str) -> None:
        super().__init__(f"The idempotency key {key!r} belongs to {task_id}, which has different contents.")
        self.key, self.task_id = key, task_id


class NewerVersionError(SubmissionError):
    """A newer version of the key was submitted before."""

    code = "newer_version"
    hint = "Submit a higher version, or let the newer one run."

    def __init__(self, key: str, version: int, newest: int, task_id: str) -> None:
        super().__init__(f"Version {version} of {key!r} is too late: version {newest} is task {task_id}.")
        self.key, self.version, self.newest, self.task_id = key, version, newest, task_id


class TaskNotFoundError(TaskframeworkError):
    """There is no such task."""

    code = "task_not_found"
    hint = "Check the id; finished tasks are removed after the retention time."

    def __init__(self, task_id: str, *, what: str = "task") -> None:
        super().__init__(f"There is no {what} {task_id[:100]!r}.")
        if what == "stream":
            self.hint = "Check the key, and the user to whom it belongs: `taskframework streams list` shows both."
        elif what == "dead letter":
            self.hint = "Check the id, also with `tasks show`: a task that has not failed is no dead letter."
        self.task_id = task_id


class TransitionRefusedError(TaskframeworkError):
    """The task is not in a status that allows this."""

    code = "transition_refused"

    def __init__(self, task_id: str, action: str, status: str, *, hint: str, message: str = "") -> None:
        super().__init__(message or f"Task {task_id} is {status}; it cannot be {action}.", hint=hint)
        self.task_id, self.action, self.status = task_id, action, status


class SignalsFullError(TaskframeworkError):
    """The task has too many signals that it has not received yet."""

    code = "too_many_signals"
    hint = "Send fewer signals to one task. Keep data that changes often in a store, and signal only the change."

    def __init__(self, task_id: str, most: int) -> None:
        super().__init__(f"Task {task_id} already has {most} signals that it has not received yet.")
        self.task_id = task_id


class ParentFinishedError(TransitionRefusedError):
    """The parent of the sub-task has ended."""

    code = "parent_finished"

    def __init__(self, task_id: str, parent_id: str, parent_status: str, *, hint: str) -> None:
        message = f"Task {task_id} is a sub-task of {parent_id}, which is {parent_status}; it cannot be retried alone."
        super().__init__(task_id, "retried", parent_status, message=message, hint=hint)
        self.parent_id = parent_id


class TaskFailedError(TaskframeworkError):
    """The task ended without a result."""

    def __init__(self, task_id: str, status: str, error: dict[str, Any] | None) -> None:
        reason = f": {error['type']}: {error['message']}" if error else ""
        end = "" if reason.endswith((".", "?", "!")) else "."
        super().__init__(f"Task {task_id} ended {status}{reason}{end}")
        self.task_id, self.status, self.error = task_id, status, error


class ResultTimeoutError(TaskframeworkError, TimeoutError):
    """The task did not finish in the given time; it keeps running."""

    hint = "Wait again with a longer timeout, or check the task's status."

    def __init__(self, task_id: str, status: str) -> None:
        super().__init__(f"Task {task_id} is still {status}.")
        self.task_id, self.status = task_id, status


class MessageUnreadableError(TaskframeworkError):
    """The message is not a taskframework message."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"The message cannot be read: {reason}.")
        self.reason = reason


class StoreError(TaskframeworkError):
    """The store refused the operation."""


class TaskUnreadableError(StoreError):
    """A newer release wrote the stored task, or it is damaged."""

    code = "task_unreadable"
    hint = "Correct its document in the store, or put it back from a backup. The log of the process says what is wrong."
    reason = ""  # what is wrong, for the log

    def __init__(self, task_id: str, reason: str, *, is_newer: bool = False) -> None:
        super().__init__(f"The task {task_id} cannot be read: it was changed by hand or is damaged.")
        if is_newer:
            super().__init__(f"A newer release wrote the task {task_id}.", hint="Use its processes, or upgrade.")
        self.task_id, self.reason = task_id, reason


class StoreUnavailableError(StoreError):
    """The store cannot be reached."""

    code = "store_unavailable"
    hint = "Check that it runs and that store.url is right; `taskframework doctor` tells more."


class StoreClosedError(StoreUnavailableError, NotRunningError):
    """The store is not open: the framework is not running yet, or has stopped."""

    hint = (
        "Use it inside `async with framework.running():`; a store by itself is opened with open(). A handle of an"
        " earlier `running()` is of no use in a later one: get a new one by `framework.handle(task_id)`."
    )


class StoreMisconfiguredError(StoreError):
    """The store is set up in a way that cannot keep the framework's guarantees."""


class ApiError(TaskframeworkError):
    """The HTTP interface refused the request."""

    def __init__(
        self,
        message: str | None = None,
        *,
        hint: str | None = None,
        status: int | None = None,
        code: str | None = None,
        fields: Sequence[Mapping[str, str]] = (),
    ) -> None:
        """Make the error of an answer.

        Args:
            message: what is wrong.
            hint: what to do about it.
            status: of the HTTP answer; None where there was none.
            code: the problem's stable name for programs; None where the answer was no problem document.
            fields: the wrong fields, each `{field, message}`.
        """
        super().__init__(message, hint=hint)
        self.status, self.code, self.fields = status, code, fields


class ApiUnavailableError(ApiError):
    """The HTTP interface cannot be reached, or cannot answer now."""

    hint = "Check that `taskframework api` or `dev` runs there and that the address is right."


class BrokerError(TaskframeworkError):
    """The broker refused the operation."""


class BrokerUnavailableError(BrokerError):
    """The broker cannot be reached."""

    hint = "Check that it runs and that broker.url is right; `taskframework doctor` tells more."


class PublishRefusedError(BrokerError):
    """The broker did not take the message."""


class TopologyMismatchError(BrokerError):
    """An exchange or queue exists with other arguments."""

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(
            f"{name} exists with other arguments: {detail}.",
            hint="To move a queue: `taskframework topology migrate`. Or choose another broker.prefix.",
        )
        self.name, self.detail = name, detail
