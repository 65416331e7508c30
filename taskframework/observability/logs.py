"""Logging set-up: one line an event on standard error, JSON for programs and colour for people."""

from __future__ import annotations

import logging
import logging.config
import re
import sys
from collections.abc import Mapping

import structlog
from structlog.typing import EventDict, Processor

from taskframework.settings import ObservabilitySettings
from taskframework.settings.logging_file import read_log_levels
from taskframework.telemetry import log_structlog_by_logging, log_threads

#: What libraries quote of values that they refuse: pydantic about 50 characters, pymongo the whole document. The
#: search ends after 100 characters: a text with thousands of beginnings and no end would hold up the event loop.
_QUOTED = re.compile(r"(?<=input_value=)(?s:.{0,100}?)(?=, input_type=)|(?<=full error: ).*")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def _take_traceback(_: object, __: str, line: EventDict) -> EventDict:
    """The traceback of a line that brings it as text: made in another process, or of the task's own frames alone."""
    text = line["_record"].exc_text
    return {**line, "exception": text} if text and "exc_info" not in line else line


def _leave_out_quotes(_: object, __: str, line: EventDict) -> EventDict:
    """Parameters appear in no line, not even where an exception has them in its text."""
    quoting = ("event", "exception")
    return {**line, **{name: _QUOTED.sub("...", str(line[name])) for name in quoting if name in line}}


def _printable(_: object, __: str, line: EventDict) -> EventDict:
    """What tasks say must not steer a terminal; JSON has its own way to write control characters."""
    return {name: _CONTROL.sub("\ufffd", value) if isinstance(value, str) else value for name, value in line.items()}


_SHARED: list[Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.stdlib.ExtraAdder(),
    _take_traceback,
]
#: Tracebacks as Python writes them. What structlog and rich make of them shows the variables of every frame.
_TEXT: list[Processor] = [structlog.processors.format_exc_info, _leave_out_quotes]


def configure_logging(settings: ObservabilitySettings, fields: Mapping[str, object] | None = None) -> None:
    """Set up logging, structlog's too, for a process of ours; a program that embeds the framework has its own.

    Args:
        settings: form and level.
        fields: what every line carries.
    """

    def with_fields(_: object, __: str, line: EventDict) -> EventDict:
        return {**line, **fields} if fields else line

    as_json = settings.log_format == "json" or (settings.log_format == "auto" and not sys.stderr.isatty())
    renderer: list[Processor] = [structlog.processors.JSONRenderer()]
    if not as_json:
        plain = structlog.dev.plain_traceback
        renderer = [
            _printable,
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain),
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
                    "foreign_pre_chain": _SHARED,
                    "processors": [
                        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                        with_fields,
                        *_TEXT,
                        *renderer,
                    ],
                }
            },
            "handlers": {
                "stderr": {"class": "logging.StreamHandler", "formatter": "line", "stream": "ext://sys.stderr"}
            },
            "root": {"handlers": ["stderr"], "level": settings.log_level},
            "loggers": {
                # These repeat, as warnings, what our own supervisors report.
                **{name: {"level": "ERROR"} for name in ("aio_pika", "aiormq", "pymongo", "pamqp")},
                **{name: {"level": level} for name, level in own_levels.items()},
            },
        }
    )
