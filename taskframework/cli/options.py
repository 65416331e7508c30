"""Options that several commands share, so that they read and behave the same everywhere."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from taskframework.model.query import MAX_LIMIT
from taskframework.settings.durations import parse_duration

Value = TypeVar("Value")

Config = Annotated[
    Path | None,
    typer.Option("--config", metavar="PATH", help="Settings file; without it application.yml here, if there is one."),
]
Apps = Annotated[
    list[str] | None,
    typer.Option(
        "--app",
        metavar="MODULE[:NAME]",
        help="Module whose tasks are registered, or module:name of a TaskFramework built there. Repeatable.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=MAX_LIMIT, help="Entries of one page.")]
Cursor = Annotated[str | None, typer.Option("--cursor", metavar="CURSOR", help="Where the next page begins.")]
TaskId = Annotated[str, typer.Argument(metavar="ID", help="The task's id.")]


def or_bad_parameter(read: Callable[[str], Value]) -> Callable[[str], Value]:
    """The same reader of an option's text, with its ValueError as wrong usage of the command line."""

    def parse(text: str) -> Value:
        try:
            return read(text)
        except ValueError as error:
            raise typer.BadParameter(f"{text!r} {error}") from error

    return parse


def seconds_or_duration(text: str) -> timedelta:
    """Read `90`, `90s` or `1m30s`.

    Raises:
        ValueError: for anything else.
    """
    return timedelta(seconds=int(text)) if text.isdecimal() else parse_duration(text)
