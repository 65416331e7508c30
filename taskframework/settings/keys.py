"""What the schema says about each key: its type and limits in words, its default, its environment variable."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from taskframework.settings.schema import Settings
from taskframework.settings.validation_errors import KeyPath, describe_accepted, fields_of

PREFIX = "TASKFRAMEWORK_"


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
    defaults = flatten(Settings().model_dump(mode="json"))
    return {
        path: Key(path, describe_accepted(field), defaults[path], field.description or "")
        for path, field in fields_of(Settings)
    }


@cache
def group_paths() -> frozenset[KeyPath]:
    """Every path that has keys below it: the paths of sections, and the empty path."""
    return frozenset({(), *((name,) for name in section_titles())})


def is_known(path: KeyPath) -> bool:
    """Return whether a key exists: it is in the schema, or in a section whose names are free."""
    return path in known_keys() or (len(path) == 2 and path[0] in _sections_with_free_names())


@cache
def _sections_with_free_names() -> frozenset[str]:
    return frozenset(name for name, value in Settings() if type(value).model_config["extra"] == "allow")


def section_titles() -> Mapping[str, str]:
    """The title of each section, by the name of the section."""
    return {name: (type(value).__doc__ or "").strip() for name, value in Settings()}


def suggestion_for(path: KeyPath) -> str:
    """A sentence that says what to write instead of a key that does not exist."""
    name = ".".join(path)
    if name == "worker.heartbeat":
        return "It is always a third of worker.lease; set that."
    names = [key.name for key in known_keys().values()]
    if any("." in part for part in path) and name in names:
        return f"Write it as a group: {path[0].split('.')[0]}: and below it, indented, {name.split('.', 1)[1]}:"
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.75)
    if close := close or [known for known in names if known.endswith("." + path[-1])]:
        return f"Did you mean {close[0]}?"
    if sections := difflib.get_close_matches(path[0], list(section_titles()), n=3, cutoff=0.75):
        if path[0] not in sections:
            return f"Did you mean {' or '.join(sections)}?"
        below = ", ".join(known.path[1] for known in known_keys().values() if known.path[0] == sections[0])
        return f"The section {sections[0]} has: {below}."
    return f"The sections are: {', '.join(section_titles())}."


def flatten(sections: Mapping[str, Mapping[str, object]]) -> dict[KeyPath, object]:
    """Every value with its path."""
    return {(section, name): value for section, values in sections.items() for name, value in values.items()}
