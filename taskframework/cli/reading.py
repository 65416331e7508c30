"""Reads the texts of arguments and options: JSON, times, statuses."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import typer
from pydantic_core import from_json

from taskframework.cli.options import or_bad_parameter
from taskframework.durations import parse_duration
from taskframework.model.status import TaskStatus

JSON_EXAMPLE = """'{"name": "value"}'"""
STATUSES = ", ".join(TaskStatus).lower()
#: Bytes of a path; the system refuses to look for a longer one.
_MAX_PATH_BYTES = 255


def read_json(argument: str) -> Any:
    """Read the JSON of an argument: the argument itself, standard input for `-`, or a file for `@FILE`.

    Raises:
        typer.BadParameter: if it is not JSON.
    """
    text, is_given_here = argument, argument != "-" and not argument.startswith("@")
    try:
        if text == "-":
            text = sys.stdin.read().removeprefix("\ufeff")  # some programs begin with this mark, as some files do
        elif text.startswith("@"):
            text = Path(text[1:]).read_text(encoding="utf-8-sig")
        text.encode()  # bytes of an argument that are not UTF-8 arrive as surrogates
    except (OSError, UnicodeError) as error:
        source = {"-": "standard input", "@": argument[1:]}.get(argument[:1], "the argument")
        raise typer.BadParameter(f"{source} cannot be read: {error}") from error
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError as error:
        hint = f" Quote it for the shell, such as {JSON_EXAMPLE}." if is_given_here else ""
        if is_given_here and len(os.fsencode(text)) < _MAX_PATH_BYTES and Path(text).is_file():
            hint = f" To read the file, write @{text}."
        raise typer.BadParameter(f"not JSON ({error}).{hint}") from error


def parse_future_time(text: str) -> datetime:
    """Read a time, or how long it is from now until then.

    Raises:
        ValueError: if the text is neither.
    """
    return _parse_time(text, lambda length: datetime.now(UTC) + length, "is too far ahead")


def parse_past_time(text: str) -> datetime:
    """Read a time, or how long ago it was.

    Raises:
        ValueError: if the text is neither.
    """
    return _parse_time(text, lambda length: datetime.now(UTC) - length, "is too long ago")


def _parse_time(text: str, moment_at: Callable[[timedelta], datetime], too_far: str) -> datetime:
    try:
        return moment_at(parse_duration(text))
    except OverflowError:
        raise ValueError(too_far) from None
    except ValueError:
        pass  # it is no length of time
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("is neither a time such as 2027-01-31T12:00:00Z nor a duration such as 10m") from None
    if moment.tzinfo is None:
        raise ValueError(f"has no time zone; write {moment.isoformat()}Z for UTC")
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("is before the year 1 or after the year 9999, as UTC") from None


def past_time_option(flag: str, help_text: str) -> Any:
    """Make an option that is a time, or how long ago it was."""
    return typer.Option(flag, parser=or_bad_parameter(parse_past_time), metavar="TIME", help=help_text)


def parse_status(text: str) -> TaskStatus:
    """Read the name of a status.

    Raises:
        ValueError: if there is no such status.
    """
    names = {status.value.lower(): status for status in TaskStatus}
    if (found := names.get(text.lower())) is not None:
        return found
    close = difflib.get_close_matches(text.lower(), names, n=1)
    raise ValueError(f"is not a status. {f'Did you mean {close[0]}?' if close else f'Use {STATUSES}.'}")
