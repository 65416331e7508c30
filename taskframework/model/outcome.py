"""How an attempt ended, and which errors deserve another attempt."""

from __future__ import annotations

import textwrap
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from traceback import FrameSummary

from pydantic import ValidationError

from taskframework import frames
from taskframework.errors import NonRetryableError, RetryableError, TaskframeworkError
from taskframework.model.task_fields import Subtasks, TaskError
from taskframework.model.values import Json, fingerprint, in_one_line

MAX_MESSAGE_CHARACTERS = 2_000
MAX_TRACEBACK_CHARACTERS = 8_000
#: How many exceptions of a chain, or of a group, a description names; more exceptions would add little.
MAX_SHOWN_CAUSES = 5
MAX_REQUESTED_DELAY = timedelta(days=3650)
#: The sentences that Python writes between two exceptions of a chain.
_DIRECT_CAUSE_LINE = "The above exception was the direct cause of the following exception:"
_WHILE_HANDLING_LINE = "During handling of the above exception, another exception occurred:"


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The task code returned. `result` is plain JSON that a store can keep."""

    result: Json = field(repr=False)


@dataclass(frozen=True, slots=True)
class Failed:
    """The task code raised, ran out of time or was cancelled."""

    error: TaskError
    retryable: bool
    #: The exact delay that the code asked for; None: the code asked for no delay.
    delay: timedelta | None = None
    #: Whether the code asked that all tasks under the same rate limit wait for the same time.
    pauses_limit: bool = False


@dataclass(frozen=True, slots=True)
class Waits:
    """The task code returned, and the task waits for the sub-tasks that it planned, for a signal, or for either."""

    #: The round of sub-tasks that begins. None: the code planned none.
    subtasks: Subtasks | None
    #: The name of the signal. None: the task waits for sub-tasks only.
    signal: str | None
    #: How long to wait for the signal; None: forever.
    timeout: timedelta | None
    #: What `execute` returned, as plain JSON: the task's result if the policy is met and no other method continues it.
    result: Json = field(repr=False)


@dataclass(frozen=True, slots=True)
class Released:
    """The worker stops; the attempt is handed back unfinished."""


Outcome = Succeeded | Failed | Waits | Released
#: An exception type, or several.
Errors = type[BaseException] | Sequence[type[BaseException]]


def classify(error: BaseException, retry_on: Errors = ()) -> Failed:
    """Decide whether an exception from task code deserves another attempt.

    `RetryableError`, `NonRetryableError` and a boolean attribute `retryable` (or `is_retryable`) decide by themselves.
    Of all other exceptions, the types in `retry_on` and the system's own errors (`OSError` with `ConnectionError` and
    `TimeoutError`) deserve another attempt, and so does a group that contains only such errors. Every other exception
    is a bug or bad input, and the same attempt would fail again.

    Args:
        error: the exception that the code raised.
        retry_on: the exception types that the task's options name.

    Returns:
        The outcome, with the error bounded in size.
    """
    retryable = _is_retryable(error, (retry_on,) if isinstance(retry_on, type) else tuple(retry_on))
    pauses_limit = isinstance(error, RetryableError) and _attribute(error, "pause_limit") is True
    return Failed(describe(error, retryable), retryable, _requested_delay(error), pauses_limit)


def _is_retryable(error: BaseException, retry_on: tuple[type[BaseException], ...]) -> bool:
    waiting: list[object] = [error]
    while waiting:  # no recursion: groups may be nested deeper than Python's stack
        one = waiting.pop()
        # An `asyncio.TaskGroup` raises the errors of its tasks as a group.
        parts = _attribute(one, "exceptions") if isinstance(one, BaseExceptionGroup) else None
        if isinstance(own := _own_choice(one), bool):
            is_retryable = own
        elif isinstance(one, (*retry_on, OSError, TimeoutError)):
            is_retryable = True
        elif is_retryable := isinstance(parts, tuple) and bool(parts):
            waiting += parts
        if not is_retryable:
            return False
    return True


def _own_choice(error: object) -> object:
    """Whether an exception says itself that it deserves another attempt; no bool if it does not say so."""
    if isinstance(error, (RetryableError, NonRetryableError)):
        return isinstance(error, RetryableError)
    own = _attribute(error, "retryable")
    return own if isinstance(own, bool) else _attribute(error, "is_retryable")


def _requested_delay(error: BaseException) -> timedelta | None:
    """The delay that the code asked for; bounded, because a due time beyond the year 9999 cannot be stored."""
    delay = _attribute(error, "delay") if isinstance(error, RetryableError) else None
    return min(delay, MAX_REQUESTED_DELAY) if isinstance(delay, timedelta) else None


def _attribute(error: object, name: str) -> object:
    """An attribute of an exception. It may be a property that raises, or missing without `super().__init__`."""
    try:
        return getattr(error, name, None)
    except BaseException:  # the author's code; a SystemExit from here would end the worker
        return None


def failure(error: BaseException, code: str = "execution_error", *, retryable: bool = False) -> Failed:
    """The outcome of an attempt that the framework itself ends with this error."""
    return Failed(describe(error, retryable, code), retryable)


def describe(error: BaseException, retryable: bool, code: str = "execution_error") -> TaskError:
    """An exception as data: bounded, valid text. This function never raises."""
    name = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    return TaskError(
        code=code,
        type=_clean(name, 200),
        message=_clean(_message(error), MAX_MESSAGE_CHARACTERS),
        retryable=retryable,
        fingerprint=fingerprint(code, name, _raised_at(error)),
        traceback=_clean(_traceback(error), MAX_TRACEBACK_CHARACTERS),
    )


def _message(error: BaseException) -> str:
    """The text of an exception and below it its notes, as Python shows them. A long text is cut before its notes."""
    noted = _attribute(error, "__notes__")
    notes = "".join(f"\n{note}" for note in noted if isinstance(note, str)) if isinstance(noted, list) else ""
    return _clean(_text(error), max(0, MAX_MESSAGE_CHARACTERS - 1 - len(notes))) + notes if notes else _text(error)


def _text(error: BaseException) -> str:
    """The text of an exception. The text of pydantic is not used: it quotes its input, often a parameter, in logs."""
    try:
        if isinstance(error, ValidationError):
            return f"{error.title}: {in_one_line(error)}"
        if isinstance(error, (RetryableError, NonRetryableError)):
            return str(getattr(error, "message", None) or error)
        return str(error)
    except BaseException as broken:  # str() of an author's exception runs the author's code
        return f"<{type(error).__name__} whose text raised {type(broken).__name__}>"


def _traceback(error: BaseException) -> str:
    """The causes of an exception, and where the author's code raised it: source lines and messages, no values."""
    try:
        own = "".join(_format_frames(error)) + "".join(_format_group_members(error))
        before = "".join(_format_causes(error, MAX_SHOWN_CAUSES))
        return before[: max(0, MAX_TRACEBACK_CHARACTERS - len(own))] + own
    except BaseException:  # the lookup of source lines runs import loaders, which may raise
        return ""


def _format_frames(error: BaseException) -> list[str]:
    found: Sequence[FrameSummary] = traceback.extract_tb(error.__traceback__, limit=-20)
    shown = frames.of_the_author(found)
    # The errors of the framework need no frames, and for an error with a cause the frames of the cause are enough.
    says_enough = isinstance(error, TaskframeworkError) or error.__cause__ is not None
    if not shown and not says_enough:  # a bug of the framework
        shown = found
    return traceback.format_list(list(shown))


def _format_causes(error: BaseException, most: int) -> Iterator[str]:
    """The exceptions that led to this exception, the earliest first, as Python shows them."""
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is None or not most:
        return
    yield from _format_causes(cause, most - 1)
    yield from _format_frames(cause)
    yield _headline(cause)
    yield from _format_group_members(cause)
    yield f"\n{_DIRECT_CAUSE_LINE if error.__cause__ else _WHILE_HANDLING_LINE}\n\n"


def _format_group_members(error: BaseException) -> Iterator[str]:
    """The exceptions of a group, indented; nothing for other exceptions."""
    parts = _attribute(error, "exceptions") if isinstance(error, BaseExceptionGroup) else None
    if isinstance(parts, tuple):
        for part in parts[:MAX_SHOWN_CAUSES]:
            yield from (textwrap.indent(text, "  | ") for text in (*_format_frames(part), _headline(part)))


def _headline(error: BaseException) -> str:
    return f"{type(error).__qualname__}: {_message(error)}\n"


def _raised_at(error: BaseException) -> str:
    """Where an exception was raised. The text is equal for all errors of one cause, for any message and on any host. So
    it names the module and not the folder in which the module is installed. The line counts from the beginning of the
    function, so that it stays the same when other code in the file grows.
    """
    last, line = None, 0
    for frame, number in traceback.walk_tb(error.__traceback__):
        last, line = frame, number
    if last is None:
        return ""
    code, module = last.f_code, last.f_globals.get("__name__")
    if module in (None, "__main__"):  # a worker that imports the same file knows it by the name of the module
        module = Path(code.co_filename).stem
    return f"{module}:{code.co_qualname}:{line - code.co_firstlineno}"


def _clean(text: str, limit: int) -> str:
    """Bounded, valid Unicode without NUL. The text is cut first, so that a huge text costs nothing more."""
    short = text if len(text) <= limit else text[:limit] + "…"
    return short.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
