"""What the schema says about each key: its type and limits in words, its default, its environment variable."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from taskframework.settings.durations import format_duration
from taskframework.settings.schema import Settings
from taskframework.settings.section import Section
from taskframework.settings.sizes import parse_size

KeyPath = tuple[str, ...]

PREFIX = "TASKFRAMEWORK_"

_WORDS = {
    int: "whole number",
    float: "number",
    bool: "true or false",
    str: "text",
    Path: "path",
    tuple: "list such as [one, two]",
}


@dataclass(frozen=True, slots=True)
class Key:
    """One setting as the schema describes it."""

    path: KeyPath
    accepts: str
    default: object
    description: str

    @property
    def name(self) -> str:
        """The dotted name."""
        return ".".join(self.path)

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return variable_of(self.path)


def variable_of(path: KeyPath) -> str:
    """The environment variable for a key."""
    return PREFIX + "__".join(path).upper()


@cache
def known_keys() -> Mapping[KeyPath, Key]:
    """Every key in the order of the schema."""
    return {key.path: key for key in _walk(Settings, (), Settings().model_dump(mode="json"))}


@cache
def groups() -> frozenset[KeyPath]:
    """Every path that has keys below it."""
    return frozenset(path[:depth] for path in known_keys() for depth in range(len(path)))


def section_titles() -> Mapping[str, str]:
    """What each section is about, by its name."""
    return {name: (type(value).__doc__ or "").strip() for name, value in Settings()}


def advice(path: KeyPath) -> str:
    """What to write instead of a key that does not exist."""
    name = ".".join(path)
    if name == "worker.heartbeat":
        return "It is always a third of worker.lease; set that."
    if path[0] == "rate_limiter":
        return "This release has no rate limits; leave it out."
    names = [key.name for key in known_keys().values()]
    if any("." in part for part in path) and name in names:
        return f"Write it as a group: {path[0].split('.')[0]}: and below it, indented, {name.split('.', 1)[1]}:"
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.75)
    if close := close or [known for known in names if known.endswith("." + path[-1])]:
        return f"Did you mean {close[0]}?"
    if sections := difflib.get_close_matches(path[0], list(section_titles()), n=1, cutoff=0.75):
        below = ", ".join(known.path[1] for known in known_keys().values() if known.path[0] == sections[0])
        return f"The section {sections[0]} has: {below}."
    return f"The sections are: {', '.join(section_titles())}."


def flatten(tree: Mapping[str, object], path: KeyPath = ()) -> Iterator[tuple[KeyPath, object]]:
    """Every leaf of nested settings with its path."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from flatten(value, (*path, name))
        else:
            yield (*path, name), value


def _walk(section: type[Section], path: KeyPath, defaults: Mapping[str, Any]) -> Iterator[Key]:
    for name, field in section.model_fields.items():
        here = (*path, name)
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, Section):
            yield from _walk(annotation, here, defaults[name])
        else:
            yield Key(here, _in_words(annotation, field.metadata), defaults[name], field.description or "")


def _in_words(annotation: object, metadata: Iterable[object]) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        marks = (part for mark in arguments[1:] for part in (mark.metadata if isinstance(mark, FieldInfo) else [mark]))
        return _in_words(arguments[0], [*marks, *metadata])
    if origin is Literal:
        return " | ".join(str(choice) for choice in arguments)
    if origin in (Union, types.UnionType):
        words = " or ".join(_in_words(choice, metadata) for choice in arguments if choice is not type(None))
        return f"{words}, or empty" if type(None) in arguments else words
    if annotation is timedelta:
        return f"duration{_limits(metadata)}"
    if any(mark == BeforeValidator(parse_size) for mark in metadata):
        return "size such as 1MiB" + _limits(metadata)
    plain = origin or annotation
    return (_WORDS[plain] if isinstance(plain, type) else str(plain)) + _limits(metadata)


def _limits(metadata: Iterable[object]) -> str:
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
