"""Problems of settings, in words: the key, the source of its value, and the accepted values."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ByteSize, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from taskframework.durations import format_duration
from taskframework.errors import ConfigurationError
from taskframework.urls import redacted

KeyPath = tuple[str, ...]

_LIST_ALL_HINT = "`python -m taskframework.settings.reference` lists every setting."
_MAX_SHOWN_CHARACTERS = 80  # characters of a wrong value
_TYPE_NAMES = {
    int: "whole number",
    float: "number",
    bool: "true or false",
    str: "text",
    Path: "path",
    tuple: "list such as [one, two]",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem, as a sentence."""

    key: str
    text: str


def fields_of(model: type[BaseModel], path: KeyPath = ()) -> Iterator[tuple[KeyPath, FieldInfo]]:
    """Every setting of a section and of the sections in it, in the order of the schema."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from fields_of(field.annotation, (*path, name))
        else:
            yield (*path, name), field


def explain_validation_error(
    error: ValidationError, model: type[BaseModel], places: Mapping[KeyPath, str] | None = None, section: KeyPath = ()
) -> Iterator[Problem]:
    """The problems that pydantic found.

    Args:
        error: the error of pydantic.
        model: the section that the values are for.
        places: where each value was given, if this is known.
        section: the path of the model itself.
    """
    fields = dict(fields_of(model, section))
    seen: set[KeyPath] = set()
    for detail in error.errors(include_url=False):
        location = (*section, *(str(part) for part in detail["loc"]))
        path = setting = _setting_at(location, fields)
        group = _group_in(fields[setting].annotation) if setting in fields else None
        if (value := _value_in(fields, setting)) is not None and len(location) == len(setting) + 1:
            fields[location] = value  # one of the values that the setting holds by name is wrong
            path = location
        elif group is not None and (location[-1] in group.model_fields or detail["type"] == "extra_forbidden"):
            fields |= fields_of(group, location[:-1])  # the value is a group itself, and one of its keys is wrong
            path = location
        if path not in seen:  # a union gives one error for each of its types
            seen.add(path)
            place = f" ({places[setting]})" if places and setting in places else ""
            key = ".".join(path)
            yield Problem(key, f"{key or 'Settings'}{place} {_reason(path, detail, fields)}")


def configuration_error(problems: list[Problem]) -> ConfigurationError:
    """All problems as one error."""
    key = problems[0].key or None
    if len(problems) == 1:
        return ConfigurationError(f"The configuration is wrong: {problems[0].text}", key=key, hint=_LIST_ALL_HINT)
    lines = "".join(f"\n  - {problem.text}" for problem in problems)
    hint = f"Correct these and start again; {_LIST_ALL_HINT}"
    return ConfigurationError(f"The configuration has {len(problems)} problems:{lines}\n", key=key, hint=hint)


def describe_accepted(field: FieldInfo) -> str:
    """Type and limits of a setting in words."""
    return _describe_type(field.annotation, field.metadata)


def _setting_at(location: KeyPath, fields: Mapping[KeyPath, FieldInfo]) -> KeyPath:
    """The setting at a location. It may lead further into the setting: to an entry of a list, or a type of a union."""
    prefixes = (location[:length] for length in range(len(location)))
    return next((path for path in prefixes if path in fields), location)


def _group_in(annotation: object) -> type[BaseModel] | None:
    """The group class of a value that is a group, or that holds several groups by name."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_group_in, get_args(annotation))), None)


def _value_in(fields: Mapping[KeyPath, FieldInfo], setting: KeyPath) -> FieldInfo | None:
    """What is accepted for each value of a setting that holds values by name; None for other settings."""
    annotation = fields[setting].annotation if setting in fields else None
    return FieldInfo.from_annotation(get_args(annotation)[1]) if get_origin(annotation) is dict else None


def _reason(path: KeyPath, detail: ErrorDetails, fields: Mapping[KeyPath, FieldInfo]) -> str:
    if detail["type"] == "missing" and path in fields:
        return f"is missing; accepted: {describe_accepted(fields[path])}."
    if detail["type"] == "value_error":
        reason = f"{detail['ctx']['error']}."
        return reason if path[-1].endswith("url") else f"is {_display_value(detail['input'])}; it {reason}"
    if path in fields:
        return f"is {_display_value(detail['input'])}; accepted: {describe_accepted(fields[path])}."
    if any(known[: len(path)] == path for known in fields):
        return "is a group of settings; give them by their names."
    siblings = [".".join(known) for known in fields if known[:-1] == path[:-1] and path[-1] in known[-1]]
    close = siblings or difflib.get_close_matches(".".join(path), map(".".join, fields), n=1, cutoff=0.75)
    return f"is not a setting.{f' Did you mean {close[0]}?' if close else ''}"


def _display_value(value: object) -> str:
    if value is None:
        return "empty"
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, Mapping):
        return "a group"  # such as {password: ...}
    text = redacted(repr(value))
    return text if len(text) <= _MAX_SHOWN_CHARACTERS else f"{text[:_MAX_SHOWN_CHARACTERS]}…"


def _describe_type(annotation: object, metadata: Iterable[object]) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        marks = (part for mark in arguments[1:] for part in (mark.metadata if isinstance(mark, FieldInfo) else [mark]))
        return _describe_type(arguments[0], [*marks, *metadata])
    if origin is Literal:
        return " | ".join(str(choice) for choice in arguments)
    if origin in (Union, types.UnionType):
        words = " or ".join(_describe_type(choice, metadata) for choice in arguments if choice is not type(None))
        return f"{words}, or empty" if type(None) in arguments else words
    if annotation is timedelta:
        return f"duration{_describe_limits(metadata)}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"group of {' and '.join(annotation.model_fields)}"
    if origin is tuple and get_origin(arguments[0]) is Literal:
        return f"list of {_describe_type(arguments[0], ())}"
    if origin is dict:
        return f"groups by name, each a {_describe_type(arguments[1], ())}"
    if annotation is ByteSize:
        return "size such as 1MiB" + _describe_limits(metadata)
    plain = origin or annotation
    return (_TYPE_NAMES[plain] if isinstance(plain, type) else str(plain)) + _describe_limits(metadata)


def _describe_limits(metadata: Iterable[object]) -> str:
    found: dict[str, object] = {}
    for mark in metadata:
        for name in ("ge", "gt", "le", "pattern", "min_length", "max_length"):
            if (value := getattr(mark, name, None)) is not None:
                found[name] = format_duration(value) if isinstance(value, timedelta) else value
    if "ge" in found and "le" in found:
        return f" from {found['ge']} to {found['le']}"
    if "gt" in found:
        return f" above {found['gt']}"
    if "pattern" in found:
        return f" matching `{found['pattern']}`, {found['max_length']} characters at most"
    if "min_length" in found:
        return ", not empty"
    return f", {found['ge']} or more" if "ge" in found else ""
