"""Accepts what a caller gives: the options of a submission, names, ids and reasons."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from taskframework.errors import InvalidRequestError
from taskframework.model.values import MAX_NAME_LENGTH, MAX_REASON, NAME_RULE, check_storable, is_name, problem
from taskframework.submission.options import BatchOptions, SubmissionOptions
from taskframework.tasks.names_elsewhere import names_meant

OPTIONS = frozenset(SubmissionOptions.__annotations__)
BATCH_OPTIONS = frozenset(BatchOptions.__annotations__)
_TASK_ADAPTER = TypeAdapter(SubmissionOptions)
_BATCH_ADAPTER = TypeAdapter(BatchOptions)


@cache
def option_schemas() -> Mapping[str, Mapping[str, Any]]:
    """Return the JSON Schema of each option of a task, by name."""
    return _properties(_TASK_ADAPTER)


@cache
def batch_option_schemas() -> Mapping[str, Mapping[str, Any]]:
    """Return the JSON Schema of each option of a batch, by name."""
    return _properties(_BATCH_ADAPTER)


def _properties(adapter: TypeAdapter[Any]) -> Mapping[str, Mapping[str, Any]]:
    properties: Mapping[str, Mapping[str, Any]] = adapter.json_schema()["properties"]
    return properties


def accept_options(options: SubmissionOptions) -> dict[str, Any]:
    """Return the options that are given, as they are stored.

    Raises:
        InvalidRequestError: if an option is wrong; names the option.
    """
    return _validate(_TASK_ADAPTER, options) if options else {}


def accept_batch_options(options: BatchOptions) -> dict[str, Any]:
    """Return the given options of a batch, as `accept_options` does for a task."""
    return _validate(_BATCH_ADAPTER, options)


def _validate(adapter: TypeAdapter[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return {name: value for name, value in adapter.validate_python(options).items() if value is not None}
    except ValidationError as error:
        raise _invalid_option_error(error) from None


def accept_times(options: Mapping[str, Any], now: datetime) -> datetime:
    """Return when the first attempt may begin, from accepted options.

    Raises:
        InvalidRequestError: if the deadline is before that time.
    """
    not_before: datetime = max(options.get("not_before", now), now)
    deadline = options.get("deadline")
    if deadline is not None and deadline <= not_before:
        raise InvalidRequestError(
            "deadline", "it is in the past or before not_before", "Give a time after not_before and in the future."
        )
    return not_before


def accept_name(name: str, field: str) -> str:
    """Check the name that was given in a field, and return it.

    Raises:
        InvalidRequestError: if the name is not valid.
    """
    if not is_name(name):
        raise InvalidRequestError(
            field, f"{NAME_RULE}, not {name!r:.50}", f"Give a name of 1 to {MAX_NAME_LENGTH} characters."
        )
    return name


def accept_id(given: object, field: str) -> str:
    """Check that an id or a key is a text, and return it. MongoDB would read a dictionary as a condition.

    Raises:
        InvalidRequestError: if it is no text.
    """
    if not isinstance(given, str):
        hint = "Give the id itself: a handle has it as its `task_id` or `batch_id`."
        raise InvalidRequestError(field, f"must be a text, not a {type(given).__name__}", hint)
    return given


def accept_reason(reason: object) -> str | None:
    """Check the reason of an action, and return it.

    Raises:
        InvalidRequestError: if it is no text, or too long.
        ValueNotStorableError: if a store could not keep it.
    """
    if reason is None:
        return None
    if not isinstance(reason, str) or len(reason) > MAX_REASON:
        given = f"{len(reason):,} characters" if isinstance(reason, str) else f"a {type(reason).__name__}"
        raise InvalidRequestError(
            "reason", f"must be a text of at most {MAX_REASON:,} characters, not {given}", "Give a short text."
        )
    check_storable(reason, "reason", 4 * MAX_REASON + len('""'))
    return reason


def refuse_unknown(what: str, given: Iterable[str], known: Collection[str]) -> None:
    """Refuse options that do not exist.

    Raises:
        TypeError: if there are such options; names them, and the nearest existing options or all.
    """
    if unknown := sorted([name for name in given if name not in known]):
        nearest = [name for each in unknown for name in names_meant(each, known)]
        suggestion = f"did you mean {', '.join(nearest)}?" if nearest else f"the options are {', '.join(sorted(known))}"
        raise TypeError(f"{what} has no option {', '.join(unknown)}; {suggestion}")


def describe_option(name: str) -> str | None:
    """Return what an option of a task or a batch is for, as a hint; None if there is no such option."""
    schema = {**option_schemas(), **batch_option_schemas()}.get(name)
    return None if schema is None else f"{_fields_hint(schema)}{schema['description']}."


def _invalid_option_error(error: ValidationError) -> InvalidRequestError:
    wrong = error.errors(include_url=False, include_context=False)[0]
    found = problem(wrong["loc"], wrong["msg"])
    names_no_value = wrong["type"] in ("missing", "extra_forbidden", "unexpected_keyword_argument")
    value = wrong["input"]
    shown = str(value) if isinstance(value, datetime) else f"{value!r:.50}"
    given = "" if names_no_value else f", not {shown}"
    return InvalidRequestError(found["field"], found["message"] + given, describe_option(str(wrong["loc"][0])) or "")


def _fields_hint(schema: Mapping[str, Any]) -> str:
    """A sentence about the fields of an option that is an object; empty for any other option."""
    for kind in schema["anyOf"]:
        if fields := kind.get("properties"):
            texts = (name if name in kind["required"] else f"{name} (optional)" for name in fields)
            return f"Its fields are {', '.join(texts)}. "
    return ""
