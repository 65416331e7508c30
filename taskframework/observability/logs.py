"""Logging set-up: one line for each log event on standard error, as JSON for programs or coloured for people."""

from __future__ import annotations

import logging
import logging.config
import os
import re
import sys
from collections.abc import Mapping
from typing import TextIO, cast

import structlog
from structlog.typing import EventDict, Processor

from taskframework.settings import ObservabilitySettings
from taskframework.settings.logging_file import read_log_levels
from taskframework.telemetry import log_structlog_by_logging, log_threads
from taskframework.urls import without_secrets

#: Quotes by libraries from values that they refuse: pydantic quotes about 50 characters, pymongo the values of a unique
#: index, and then the whole document.
#: The search ends after 100 characters: a text with thousands of beginnings and no end would block the event loop.
_QUOTED_VALUES = re.compile(r"(?<=input_value=)(?s:.{0,100}?)(?=, input_type=)|(?<=dup key: ).*|(?<=full error: ).*")
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def _add_traceback(_: object, __: str, line: EventDict) -> EventDict:
    """Add the traceback that a record has as text: from another process, or with only the task's own frames."""
    text = line["_record"].exc_text
    return {**line, "exception": text} if text and "exc_info" not in line else line


def _remove_quoted_values(_: object, __: str, line: EventDict) -> EventDict:
    """Remove parameters that an exception has in its text, and secrets in addresses that libraries log."""
    quoting = ("event", "exception")
    shown = {name: without_secrets(_QUOTED_VALUES.sub("...", str(line[name]))) for name in quoting if name in line}
    return {**line, **shown}


def _replace_control_characters(_: object, __: str, line: EventDict) -> EventDict:
    """Replace control characters: texts of tasks must not control a terminal. JSON escapes these characters itself."""
    return {
        name: _CONTROL_CHARACTERS.sub("\ufffd", value) if isinstance(value, str) else value
        for name, value in line.items()
    }


_EXTRA = structlog.stdlib.ExtraAdder()


def _add_extra(logger: object, name: str, line: EventDict) -> EventDict:
    """Add the fields that a log call gives as `extra`.

    Task code and other libraries must not replace fields that the line already has, such as the id of its task: such a
    field is written as `extra_NAME`. Lines of the framework may replace them, because they may be about another task.
    """
    given = _EXTRA(cast(logging.Logger, logger), name, {"_record": line["_record"]})
    if _is_of_the_framework(line["_record"].name):
        return {**line, **given}
    kept = {f"extra_{key}" if _is_other(value, line.get(key)) else key: value for key, value in given.items()}
    return {**line, **kept}


def _is_of_the_framework(logger_name: str) -> bool:
    return logger_name.startswith("taskframework.") and not logger_name.startswith("taskframework.task.")


def _is_other(value: object, present: object) -> bool:
    """Return whether two values differ. Only equal types are compared: the `==` of task code's objects may fail."""
    return present is not None and (type(value) is not type(present) or value != present)


_SHARED_PROCESSORS: list[Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    _add_extra,
    _add_traceback,
]
#: Tracebacks as Python writes them. Tracebacks of structlog and rich show the variables of every frame.
_TEXT_PROCESSORS: list[Processor] = [structlog.processors.format_exc_info, _remove_quoted_values]


class _LineHandler(logging.StreamHandler[TextIO]):
    """Writes lines. A log call whose arguments do not fit its text becomes one line too, not Python's long message."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - so named by logging
        """Write the text without its arguments, because these may be any values."""
        if record.args:
            record.msg, record.args = f"{record.msg} (the arguments of this log call do not fit)", None
            self.emit(record)
        else:
            super().handleError(record)


def writes_json(settings: ObservabilitySettings) -> bool:
    """Return whether log lines are JSON, for programs."""
    return settings.log_format == "json" or (settings.log_format == "auto" and not sys.stderr.isatty())


def configure_logging(settings: ObservabilitySettings, fields: Mapping[str, object] | None = None) -> None:
    """Set up logging and structlog for a process of the command line; a program that embeds the framework has its own.

    Args:
        settings: format and level.
        fields: fields that every line has.
    """

    def with_fields(_: object, __: str, line: EventDict) -> EventDict:
        return {**line, **fields} if fields else line

    in_colour = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    as_json = writes_json(settings)
    renderer: list[Processor] = [structlog.processors.JSONRenderer()]
    if not as_json:
        plain = structlog.dev.plain_traceback
        renderer = [
            _replace_control_characters,
            structlog.dev.ConsoleRenderer(colors=in_colour, exception_formatter=plain),
        ]
    own_levels = read_log_levels(settings.logging_config) if settings.logging_config else {}
    log_structlog_by_logging()
    logging.captureWarnings(True)
    log_threads()
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {
                "line": {
                    "()": structlog.stdlib.ProcessorFormatter,
                    "foreign_pre_chain": _SHARED_PROCESSORS,
                    "processors": [
                        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                        with_fields,
                        *_TEXT_PROCESSORS,
                        *renderer,
                    ],
                }
            },
            "handlers": {"stderr": {"()": _LineHandler, "formatter": "line", "stream": "ext://sys.stderr"}},
            "root": {"handlers": ["stderr"], "level": settings.log_level},
            "loggers": {
                # These libraries repeat, as warnings, problems that the framework's own supervisors report.
                **{name: {"level": "ERROR"} for name in ("aio_pika", "aiormq", "pymongo", "pamqp")},
                **{name: {"level": level} for name, level in own_levels.items()},
            },
        }
    )
