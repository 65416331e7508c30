"""Options of several commands, so that they have the same names and meaning everywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeGuard, TypeVar

import typer

from taskframework.model.query import MAX_LIMIT
from taskframework.model.subtasks import MAX_SUBTASKS

Text = TypeVar("Text")
Value = TypeVar("Value")

Config = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="PATH", help="Settings file (default: application.yml in this folder, if there is one)."
    ),
]
Apps = Annotated[
    list[str] | None,
    typer.Option(
        "--app",
        metavar="MODULE[:NAME]",
        help="Module that defines tasks, or module:name of a TaskFramework in it. Repeatable.",
    ),
]
#: The metavars of arguments that may be names of files, such as @FILE for JSON.
_NAMES_OF_FILES = ("FILE", "FOLDER", "JSON", "PATH", "PATH...")
#: The variables for the address of an API, which commands use instead of the store; and for the key to it.
API_VARIABLE, KEY_VARIABLE = "TASKFRAMEWORK_API", "TASKFRAMEWORK_KEY"


def require_address(address: str | None) -> str | None:
    """Refuse an empty address, such as that of a variable without a value: the command would act on the store here."""
    if address == "":
        raise typer.BadParameter("the address is empty; give one, or leave the option out")
    return address


def refuse_empty(given: str | None) -> str | None:
    """Refuse an empty condition of a list, as the interface does: it fits all, or nothing."""
    if given == "":
        raise typer.BadParameter("is empty; give a text, or leave the option out")
    return given


def is_address(given: str | None) -> TypeGuard[str]:
    """Whether the address of an API was given. Its variable may contain the whole section `api` of the settings."""
    return bool(given) and not str(given).startswith("{")


Api = Annotated[
    str | None,
    typer.Option(
        "--api",
        metavar="URL",
        envvar=API_VARIABLE,
        callback=require_address,
        help="Use the API at this address instead of the store.",
    ),
]
_KEY_HELP = "API key or token for --api."
ApiKey = Annotated[str | None, typer.Option("--key", "--api-key", metavar="KEY", envvar=KEY_VARIABLE, help=_KEY_HELP)]
#: For a command that has another option --key.
ApiKeyBesideKey = Annotated[str | None, typer.Option("--api-key", metavar="KEY", envvar=KEY_VARIABLE, help=_KEY_HELP)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _none_if_empty(given: str | None) -> str | None:
    return given or None


def reason_option(help: str) -> Any:
    """Make the option --reason. An empty reason is none, as over HTTP."""
    return typer.Option("--reason", metavar="TEXT", callback=_none_if_empty, help=help)


Reason = Annotated[str | None, reason_option("The reason, kept for later.")]
REASON_HELP = "The reason; kept in the task's history."
TaskReason = Annotated[str | None, reason_option(REASON_HELP)]
Cursor = Annotated[
    str | None, typer.Option("--cursor", metavar="CURSOR", help="Where to start, as printed below the previous page.")
]
TaskId = Annotated[str, typer.Argument(metavar="ID", help="The task's id.")]
Reopen = Annotated[
    bool,
    typer.Option("--reopen", help="For a sub-task whose parent has ended: the parent waits for it and ends again."),
]
BatchId = Annotated[str, typer.Argument(metavar="ID", help="The batch's id.")]


def require_text(command: Any) -> Any:
    """Let a command, or each command in a group, refuse values that are not UTF-8 text. Such bytes reach Python as
    halves of characters, which cannot be sent or stored. The name of a file may have them.
    """
    for parameter in command.params:
        if parameter.metavar not in _NAMES_OF_FILES:
            parameter.process_value = partial(_process_text, parameter, parameter.process_value)
    for subcommand in getattr(command, "commands", {}).values():
        require_text(subcommand)
    return command


def _process_text(parameter: Any, process_value: Callable[[Any, Any], Any], context: Any, given: Any) -> Any:
    value = process_value(context, given)
    for text in value if isinstance(value, list | tuple) else [value]:
        if isinstance(text, str) and not _is_text(text):
            raise typer.BadParameter("is not UTF-8 text", context, parameter)  # not shown: it may be a secret
    return value


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def or_bad_parameter(read: Callable[[Text], Value]) -> Callable[[Text], Value]:
    """Make a reader of an option's text that reports a ValueError as wrong usage of the command line."""

    def parse(text: Text) -> Value:
        try:
            return read(text)
        except ValueError as error:
            raise typer.BadParameter(f"{str(text)!r} {error}") from error

    return parse


def whole_number(minimum: int = 0, maximum: int | None = None) -> Callable[[str | int], int]:
    """Make a reader of whole numbers for `typer.Option(parser=...)`, which also calls it with the default."""
    limits = "" if maximum is None else f" from {minimum:,} to {maximum:,}"

    def read(value: str | int) -> int:
        text = str(value)
        if not text.isdecimal() or int(text) < minimum or (maximum is not None and int(text) > maximum):
            raise ValueError(f"is not a whole number{limits}")
        return int(text)

    return or_bad_parameter(read)


def choice_option(flag: str, choices: Iterable[str], help: str) -> Any:
    """Make an option with these choices. typer would report a wrong one in the words of pydantic."""
    by_name = {str(choice): choice for choice in choices}

    def read(text: str) -> str:
        if text not in by_name:
            raise ValueError(f"is not one of {', '.join(map(repr, by_name))}")
        return by_name[text]

    return typer.Option(flag, metavar="|".join(by_name), parser=or_bad_parameter(read), help=help)


Limit = Annotated[
    int, typer.Option("--limit", parser=whole_number(1, MAX_LIMIT), metavar="N", help="Entries per page.")
]
#: The highest number of an entry that may be asked for; every database can compare it.
MAX_NUMBER = 2**53 - 1
#: For lists of the items of a batch, which are numbered.
NumberCursor = Annotated[
    int | None,
    typer.Option(
        "--cursor",
        parser=whole_number(0, MAX_SUBTASKS),
        metavar="CURSOR",
        help="Where to start, as printed below the previous page.",
        show_default=False,
    ),
]


def seconds_or_duration(text: str) -> timedelta:
    """Read `90`, `90s` or `1m30s`.

    Raises:
        ValueError: for anything else.
    """
    from taskframework.durations import parse_duration  # here: it loads pydantic, and the help needs none

    return parse_duration(f"{text}s" if text.isdecimal() else text)
