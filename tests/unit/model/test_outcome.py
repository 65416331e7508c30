"""Which exceptions deserve another attempt, and how they become data."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from taskframework.errors import NonRetryableError, RetryableError, ValueNotStorableError
from taskframework.model.outcome import (
    MAX_MESSAGE_CHARACTERS,
    MAX_REQUESTED_DELAY,
    MAX_TRACEBACK_CHARACTERS,
    classify,
    describe,
)
from taskframework.model.values import check_storable


class ApiError(Exception):
    """An exception of a client library that knows about itself."""

    def __init__(self, retryable: object) -> None:
        super().__init__("api")
        self.retryable = retryable


class OldApiError(Exception):
    def __init__(self, is_retryable: object) -> None:
        super().__init__("api")
        self.is_retryable = is_retryable


class HostileError(Exception):
    """An exception whose every attribute raises."""

    @property
    def retryable(self) -> bool:
        raise RuntimeError("no attribute for you")

    is_retryable = retryable

    def __str__(self) -> str:
        raise RuntimeError("no text for you")


class ExitingError(Exception):
    """An exception whose text and attributes end the program."""

    @property
    def retryable(self) -> bool:
        sys.exit(1)

    is_retryable = retryable

    def __str__(self) -> str:
        sys.exit(1)


class HostileGroup(ExceptionGroup[Exception]):
    """A group that does not show what is in it."""

    @property
    def exceptions(self) -> tuple[Exception, ...]:
        raise KeyError("none for you")


def _nested(error: Exception, levels: int = 2_000) -> Exception:
    for _ in range(levels):
        error = ExceptionGroup("group", [error])
    return error


class CarelessError(RetryableError):
    """A subclass that never called `super().__init__`."""

    def __init__(self) -> None:
        pass


def _invalid() -> ValidationError:
    class Model(BaseModel):
        n: int

    try:
        Model.model_validate({"n": "x"})
    except ValidationError as error:
        return error
    raise AssertionError


@pytest.mark.parametrize(
    ("error", "retryable"),
    [
        (RetryableError("again"), True),
        (NonRetryableError("never"), False),
        (ApiError(True), True),
        (ApiError(False), False),
        (OldApiError(True), True),
        (OldApiError(False), False),
        (ApiError("yes"), False),
        (OSError("disk"), True),
        (FileNotFoundError("file"), True),
        (ConnectionResetError(), True),
        (TimeoutError(), True),
        (ValueError("bad"), False),
        (TypeError("bad"), False),
        (_invalid(), False),
        (KeyError("bug"), False),
        (Exception("unknown"), False),
        (HostileError(), False),
        (CarelessError(), True),
        (MemoryError(), False),
        (ExceptionGroup("all may pass", [RetryableError(), ExceptionGroup("too", [OSError()])]), True),
        (ExceptionGroup("one is a bug", [RetryableError(), KeyError()]), False),
        (_nested(RetryableError()), True),
        (_nested(KeyError()), False),
        (ExitingError(), False),
        (HostileGroup("hidden", [RetryableError()]), False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_each_exception_is_classified_as_retryable_or_not(error: Exception, retryable: bool) -> None:
    failed = classify(error)
    assert (failed.retryable, failed.error.retryable) == (retryable, retryable)


def test_options_name_more_retryable_types() -> None:
    assert classify(KeyError("x"), (LookupError,)).retryable
    assert not classify(KeyError("x"), (ArithmeticError,)).retryable
    assert not classify(NonRetryableError(), (Exception,)).retryable, "the code itself knows best"
    assert not classify(ApiError(False), (Exception,)).retryable


def test_a_given_delay_is_kept() -> None:
    assert classify(RetryableError(delay=2.5)).delay == timedelta(seconds=2.5)
    assert classify(RetryableError(delay=timedelta(minutes=1))).delay == timedelta(minutes=1)
    assert classify(RetryableError(delay=0)).delay == timedelta(0)
    assert classify(RetryableError()).delay is None
    assert classify(ValueError()).delay is None
    assert classify(CarelessError()).delay is None


def test_only_an_error_with_pause_limit_pauses_a_limit() -> None:
    assert classify(RetryableError(pause_limit=True)).pauses_limit
    assert not any(classify(error).pauses_limit for error in (RetryableError(), CarelessError(), OSError()))


def test_a_delay_that_no_calendar_holds_is_bounded() -> None:
    assert classify(RetryableError(delay=timedelta.max)).delay == MAX_REQUESTED_DELAY


def test_a_description_is_what_a_person_needs() -> None:
    error = describe(_raised(ValueError("the file is empty")), retryable=False)
    assert (error.code, error.type, error.message) == ("execution_error", "ValueError", "the file is empty")
    assert error.traceback is not None
    assert "_raised" in error.traceback
    assert describe(ApiError(True), retryable=True).type.endswith("test_outcome.ApiError")


def test_a_description_does_not_show_the_value_that_pydantic_refused() -> None:
    assert describe(_invalid(), retryable=False).message == (
        "Model: n: Input should be a valid integer, unable to parse string as an integer"
    )


def test_a_description_tells_what_an_error_came_from() -> None:
    def fails() -> None:
        try:
            raise ExceptionGroup("both", [_raised(KeyError("left")), _invalid()])
        except ExceptionGroup:
            try:
                raise LookupError("none left")
            except LookupError as error:
                raise ConnectionError("the bank is away") from error

    with pytest.raises(ConnectionError) as failed:
        fails()
    told = str(describe(failed.value, retryable=True).traceback)
    words = ("ExceptionGroup: both", "  | KeyError: 'left'", "  | ValidationError: Model: n: Input should be a valid")
    places = [told.index(text) for text in (*words, "During handling", "LookupError: none left", "direct cause")]
    assert places == sorted(places)
    assert told.rindex("in fails") > places[-1]
    assert "input_value" not in told
    assert "ConnectionError: the bank is away" not in told, "that is the message"


def test_the_newest_error_of_a_long_chain_is_shown_whole() -> None:
    error = _raised(ValueError("the newest"))
    error.__cause__ = error.__context__ = ValueError("y" * MAX_TRACEBACK_CHARACTERS * 2)
    error.__cause__.__context__ = error  # no end
    told = str(describe(error, retryable=False).traceback)
    assert len(told) <= MAX_TRACEBACK_CHARACTERS
    assert "in _raised" in told[-200:]


def test_an_error_of_ours_has_no_traceback_and_a_bug_of_ours_has() -> None:
    with pytest.raises(ValueNotStorableError) as refusal:
        check_storable({1: 2}, "result", 100)
    with pytest.raises(TypeError) as bug:
        check_storable(1, "result", "100")  # type: ignore[arg-type]  # the bug
    ours, theirs = (error.tb.tb_next for error in (refusal, bug))  # without the test's own frame
    assert describe(refusal.value.with_traceback(ours), retryable=False).traceback == ""
    assert "in check_storable" in str(describe(bug.value.with_traceback(theirs), retryable=False).traceback)


def test_a_message_without_text_of_its_own() -> None:
    assert describe(RetryableError(), retryable=True).message == "The attempt failed and another one may succeed."
    assert describe(NonRetryableError(ValueError("why")), retryable=False).message == "why"  # type: ignore[arg-type] # seen in the wild


def test_a_description_never_raises() -> None:
    assert describe(HostileError(), retryable=False).message == "<HostileError whose text raised RuntimeError>"
    assert "CarelessError" in describe(CarelessError(), retryable=True).message


def test_a_description_is_bounded_and_valid_text() -> None:
    error = describe(_raised(ValueError("x\0\ud800" + "y" * 1_000_000)), retryable=False)
    assert len(error.message) == MAX_MESSAGE_CHARACTERS + 1
    assert error.message.startswith("x\ufffd?")
    assert error.message.encode()
    deep = describe(_deep(400), retryable=False)
    assert deep.traceback is not None
    assert len(deep.traceback) <= MAX_TRACEBACK_CHARACTERS + 1


def test_notes_of_an_error_stand_below_its_message_and_are_not_cut_off() -> None:
    error = ValueError("x" * 1_000_000)
    error.add_note("row 7")
    message = describe(error, retryable=False).message
    assert message.endswith("x…\nrow 7")
    assert len(message) == MAX_MESSAGE_CHARACTERS


def test_errors_of_one_cause_have_one_fingerprint() -> None:
    fingerprints = {describe(_raised(ValueError(str(n))), retryable=False).fingerprint for n in range(3)}
    assert len(fingerprints) == 1
    assert describe(_raised(TypeError("0")), retryable=False).fingerprint not in fingerprints
    assert describe(_deep(1), retryable=False).fingerprint not in fingerprints
    assert describe(_raised(ValueError("0")), False, "bad_result").fingerprint not in fingerprints


@pytest.mark.parametrize("name", ["billing.charges", "__main__"])
def test_a_cause_has_the_same_fingerprint_in_whichever_folder_it_is_installed(name: str) -> None:
    source = "def charge():\n    raise ValueError('declined')\n"

    def fails_in(folder: str, file: str = "charges.py") -> str:
        module: dict[str, Any] = {"__name__": name}
        exec(compile(source, f"{folder}/{file}", "exec"), module)
        try:
            module["charge"]()
        except ValueError as error:
            return describe(error, retryable=False).fingerprint
        raise AssertionError

    assert fails_in("/opt/releases/17/billing") == fails_in("/home/ada/billing")
    if name == "__main__":
        assert fails_in("/app", "refunds.py") != fails_in("/app"), "of scripts the file is the name"


def _raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


def _deep(levels: int) -> Exception:
    def descend(left: int) -> None:
        if left == 0:
            raise ValueError("0")
        descend(left - 1)

    try:
        descend(levels)
    except ValueError as caught:
        return caught
    raise AssertionError
