"""What our own log lines show of an exception, and what never gets into them."""

from __future__ import annotations

import json
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterator

import pytest
import structlog
from pydantic import BaseModel
from pymongo.errors import BulkWriteError, DuplicateKeyError

from taskframework.observability.logs import configure_logging
from taskframework.settings import ObservabilitySettings

SECRET = "hunter2-planted"
logger = logging.getLogger("test.logs")

Write = Callable[[Callable[[], None]], str]


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()
    logging.captureWarnings(False)
    threading.excepthook = threading.__excepthook__
    sys.unraisablehook = sys.__unraisablehook__


@pytest.fixture(params=["json", "console"])
def write(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> Write:
    """Log with our own set-up, and return what is on standard error then."""

    def written(log: Callable[[], None]) -> str:
        configure_logging(ObservabilitySettings(log_format=request.param, log_level="DEBUG"))
        log()
        return capsys.readouterr().err

    return written


class Account(BaseModel):
    number: int
    owner: str = ""


class OnSeveralLines:
    def __repr__(self) -> str:
        return f"(\n{SECRET}\n)"


def has_variables() -> None:
    connection = {"password": SECRET}
    raise KeyError(f"one of {len(connection)}")


def is_refused() -> None:
    Account.model_validate({"number": SECRET, "owner": OnSeveralLines()})


def has_a_cause() -> None:
    try:
        is_refused()
    except ValueError as error:
        raise RuntimeError("no account") from error


def is_not_stored() -> None:
    raise BulkWriteError({"writeErrors": [{"code": 1, "errmsg": "full", "op": {"parameters": SECRET}}]})


@pytest.mark.parametrize(
    ("fail", "shown"),
    [
        (has_variables, "one of 1"),
        (is_refused, "unable to parse string as an integer"),
        (has_a_cause, "no account"),
        (is_not_stored, "batch op errors occurred"),
    ],
)
def test_an_exception_shows_its_frames_and_no_values(fail: Callable[[], None], shown: str, write: Write) -> None:
    def log() -> None:
        try:
            fail()
        except Exception as error:
            logger.exception("it failed")
            logger.error("it failed: %s", error)

    text = write(log)
    assert f"in {fail.__name__}" in text
    assert text.count(shown) >= 2
    assert SECRET not in text


def test_a_traceback_that_comes_as_text_is_shown(write: Write) -> None:
    record = logger.makeRecord(logger.name, logging.ERROR, "", 0, "elsewhere", (), None)
    record.exc_text = "Traceback (most recent call last):\nKeyError: 1"
    text = write(lambda: logger.handle(record))
    if text.startswith("{"):
        assert json.loads(text)["exception"] == record.exc_text
    else:
        assert text.endswith(f"\n{record.exc_text}\n")


def test_a_log_line_cannot_control_a_terminal(write: Write) -> None:
    text = write(lambda: logger.info("a \x1b[31mname", extra={"file": "\x1b]0;title\x07"}))
    assert "name" in text
    assert not {"\x1b", "\x07"} & set(text)


def test_structlog_writes_the_same_lines(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    def log() -> None:
        ours = structlog.get_logger("test.logs")
        try:
            has_variables()
        except KeyError:
            ours.exception("it %s", "failed", name="ada", bank="b7")

    text = write(log)
    assert capsys.readouterr().out == ""
    assert SECRET not in text
    assert "in has_variables" in text
    if text.startswith("{"):
        line = json.loads(text)
        assert (line["event"], line["level"], line["logger"]) == ("it failed", "error", "test.logs")
        assert (line["name_"], line["bank"]) == ("ada", "b7")


def test_structlog_as_the_program_set_it_up_stays(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    structlog.configure(processors=[structlog.processors.KeyValueRenderer()])
    assert write(lambda: structlog.get_logger().info("hello")) == ""


def test_a_text_with_many_beginnings_of_a_quote_takes_no_time_that_grows_with_its_square(write: Write) -> None:
    text = "input_value=" * 50_000
    assert text in write(lambda: logger.warning(text))


def test_values_that_mongodb_quotes_are_left_out(write: Write) -> None:
    key = f'index: _id_ dup key: {{ _id: "{SECRET}" }}'

    def log() -> None:
        try:
            raise DuplicateKeyError(f"E11000 duplicate key error collection: shop.x {key}", 11_000, {"errmsg": key})
        except DuplicateKeyError:
            logger.exception("E11000 duplicate key error %s", key)

    text = write(log)
    assert SECRET not in text
    assert "index: _id_ dup key: ..." in text


def test_a_warning_of_python_is_a_line_too(write: Write) -> None:
    def warn() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            warnings.warn("careful", UserWarning, stacklevel=1)

    text = write(warn)
    assert "careful" in text
    assert "py.warnings" in text
    if text.startswith("{"):
        assert (json.loads(text)["level"], json.loads(text)["logger"]) == ("warning", "py.warnings")


def test_an_exception_that_ends_a_thread_is_a_log_line(write: Write) -> None:
    def fails() -> None:
        password = SECRET
        raise ValueError(f"{len(password)} characters")

    def run() -> None:
        for target in (fails, lambda: sys.exit(3)):
            thread = threading.Thread(target=target, name="helper")
            thread.start()
            thread.join()

    text = write(run)
    assert "the thread helper failed" in text
    assert "ValueError: 15 characters" in text
    assert SECRET not in text
    assert "SystemExit" not in text
    if text.startswith("{"):
        [line] = text.splitlines()
        assert json.loads(line)["level"] == "error"


class FailsAtItsEnd:
    def __del__(self) -> None:
        raise ValueError("at the end")


def test_an_exception_that_nobody_can_catch_is_a_log_line(write: Write) -> None:
    def makes_one() -> None:
        FailsAtItsEnd()

    told = write(makes_one)
    assert "FailsAtItsEnd.__del__" in told
    assert "ValueError: at the end" in told
    assert "Exception ignored in: <" not in told, "as Python prints it"


def test_a_log_call_with_wrong_arguments_is_a_line_too(write: Write) -> None:
    told = write(lambda: logger.warning("%s of %s", "one"))
    assert "%s of %s (the arguments of this log call do not fit)" in told
    assert "Call stack" not in told


def test_extra_fields_do_not_hide_the_fields_of_a_log_line(write: Write) -> None:
    with structlog.contextvars.bound_contextvars(task_id="t1"):
        told = write(lambda: logger.info("paid", extra={"event": "forged", "level": "none", "task_id": "t2", "n": 5}))
    assert "paid" in told
    assert all(name in told for name in ("extra_event", "extra_level", "extra_task_id", "t1"))
    assert told.count("t2") == 1


@pytest.mark.parametrize("name", ["token", "sig", "X-Amz-Signature", "api_key", "code"])
def test_secrets_in_addresses_that_libraries_log_are_left_out(write: Write, name: str) -> None:
    told = write(lambda: logger.warning("retries exceeded with url: /traces?a=1&%s=%s (Caused by x)", name, SECRET))
    assert SECRET not in told
    assert "a=1" in told
    assert "Caused by x" in told


def test_a_text_with_many_beginnings_of_a_secret_takes_no_time_that_grows_with_its_square(write: Write) -> None:
    told = write(lambda: logger.info("&" + "key" * 100_000))
    assert "keykey" in told


def test_a_line_of_ours_about_another_task_has_its_id(write: Write) -> None:
    ours = logging.getLogger("taskframework.observability.task_log")
    with structlog.contextvars.bound_contextvars(task_id="the-one-that-runs"):
        told = write(lambda: ours.info("was cancelled", extra={"task_id": "another"}))
    assert "another" in told
    assert "the-one-that-runs" not in told
