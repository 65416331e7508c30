"""The file that `observability.logging_config` names: levels of single loggers."""

from __future__ import annotations

from pathlib import Path

import yaml
from pydantic import BaseModel, Field, ValidationError

from taskframework.errors import ConfigurationError
from taskframework.settings.documents import read_document, value_of
from taskframework.settings.schema import LogLevel


class _Logger(BaseModel, extra="forbid"):
    level: LogLevel


class _LoggingFile(BaseModel, extra="forbid"):
    loggers: dict[str, _Logger] = Field(default={})


def read_log_levels(path: Path) -> dict[str, LogLevel]:
    """Read the level of each logger, by its name.

    Args:
        path: a YAML file with the `loggers` part of Python's `logging.config.dictConfig`, levels only.

    Raises:
        ConfigurationError: if the file cannot be read or contains anything else.
    """
    node = read_document(path, str(path))
    try:
        content = _LoggingFile.model_validate((value_of(node) if node is not None else None) or {})
    except yaml.YAMLError:
        raise _configuration_error(path, "") from None
    except ValidationError as error:
        raise _configuration_error(path, " at " + ".".join(str(part) for part in error.errors()[0]["loc"])) from None
    return {name: logger.level for name, logger in content.loggers.items()}


def _configuration_error(path: Path, where: str) -> ConfigurationError:
    return ConfigurationError(
        f"{path}{where} does not give levels of loggers.",
        key="observability.logging_config",
        hint="Write loggers: and below it, for each logger, its.name: {level: WARNING}; levels are DEBUG to CRITICAL.",
    )
