"""Logging set-up: one line an event on standard error, JSON for programs and colour for people."""

from __future__ import annotations

import logging
import logging.config
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

from taskframework.settings import ObservabilitySettings
from taskframework.settings.logging_file import read_log_levels

_SHARED: list[structlog.typing.Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]


def configure_logging(settings: ObservabilitySettings, fields: Mapping[str, object] | None = None) -> None:
    """Set up the standard library's logging for a process of ours; a program that embeds the framework has its own.

    Args:
        settings: form and level.
        fields: what every line carries.
    """

    def with_fields(_: object, __: str, line: structlog.typing.EventDict) -> structlog.typing.EventDict:
        return {**line, **fields} if fields else line

    as_json = settings.log_format == "json" or (settings.log_format == "auto" and not sys.stderr.isatty())
    renderer: list[Any] = (
        [structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer()]
        if as_json
        else [structlog.dev.ConsoleRenderer()]
    )
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {
                "line": {
                    "()": structlog.stdlib.ProcessorFormatter,
                    "foreign_pre_chain": [*_SHARED, structlog.stdlib.ExtraAdder()],
                    "processors": [structlog.stdlib.ProcessorFormatter.remove_processors_meta, with_fields, *renderer],
                }
            },
            "handlers": {
                "stderr": {"class": "logging.StreamHandler", "formatter": "line", "stream": "ext://sys.stderr"}
            },
            "root": {"handlers": ["stderr"], "level": settings.log_level},
            "loggers": {
                # These say once more, louder, what our own supervisors report.
                **{name: {"level": "ERROR"} for name in ("aio_pika", "aiormq", "pymongo", "pamqp")},
                **(_levels(settings.logging_config) if settings.logging_config else {}),
            },
        }
    )


def _levels(path: Path) -> dict[str, Any]:
    return {name: {"level": level} for name, level in read_log_levels(path).items()}
