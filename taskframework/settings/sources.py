"""Where settings are written: YAML files, environment variables, command-line flags. Each value keeps its place."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from taskframework.errors import ConfigurationError
from taskframework.settings.keys import ANY_NAME, PREFIX, KeyPath, advice, general, groups, known_keys, variable_of

PROFILE_VARIABLE = "TASKFRAMEWORK_PROFILE"

#: Read by others: the tests and the failpoints.
_FOREIGN = re.compile(r"TASKFRAMEWORK_(PROFILE|FAILPOINTS|TEST_.*)")
#: Kubernetes gives every container such variables for a service named taskframework or taskframework-something.
_SERVICE_LINK = re.compile(r"TASKFRAMEWORK_(.*_)?(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT_\d+_(TCP|UDP|SCTP)(_.*)?)")
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://")

_Loader: type[yaml.SafeLoader] | type[yaml.CSafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Entry:
    """A value that was given for a key, and where."""

    path: KeyPath
    value: object
    place: str


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with the settings, in a sentence."""

    key: str
    text: str


@dataclass(slots=True)
class Layer:
    """What one source gives: its entries and what was wrong in it."""

    entries: list[Entry] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def read_file(path: Path, shown: str) -> Layer:
    """Read a YAML file of settings.

    Args:
        path: the file.
        shown: how messages and origins name it.

    Raises:
        ConfigurationError: if it cannot be read or is no YAML.
    """
    layer = Layer()
    root = _compose(_read_text(path, shown), shown)
    if root is not None:
        _take(root, (), lambda node: f"{shown}:{node.start_mark.line + 1}", layer)
    return layer
