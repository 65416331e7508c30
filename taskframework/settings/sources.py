"""The sources of settings: YAML files, environment variables, command-line flags. Each value keeps its place."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from taskframework.settings.documents import is_empty, mapping_entries, parse, read_document, repeated_keys, value_of
from taskframework.settings.keys import PREFIX, group_paths, is_known, known_keys, suggestion_for
from taskframework.settings.validation_errors import KeyPath, Problem

#: Variables that are not settings: the name of the profile, the API key for commands, failpoints, variables of tests.
_FOREIGN = re.compile(r"TASKFRAMEWORK_(PROFILE|KEY|FAILPOINTS|TEST_.*)")
#: The address of the API that commands use. A value in braces is the section `api` instead.
_FOREIGN_ADDRESS = re.compile(r"TASKFRAMEWORK_API=https?://.*", re.DOTALL)
#: Variables that Kubernetes sets in every container if there is a service whose name starts with taskframework.
_SERVICE_LINK = re.compile(r"TASKFRAMEWORK_(.*_)?(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT_\d+_(TCP|UDP|SCTP)(_.*)?)")
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://")


@dataclass(frozen=True, slots=True)
class Entry:
    """A value that was given for a key, and where."""

    path: KeyPath
    value: object
    place: str


@dataclass(frozen=True, slots=True)
class Layer:
    """The entries of one source, and the problems in it."""

    entries: list[Entry] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def add_problem(self, path: KeyPath, place: str, reason: str) -> None:
        """Note a problem."""
        key = ".".join(path)
        self.problems.append(Problem(key, f"{key} ({place}) {reason}"))


def from_file(path: Path, display_name: str) -> Layer:
    """The settings of a YAML file.

    Args:
        path: the file.
        display_name: how messages and origins name it.

    Raises:
        ConfigurationError: if it cannot be read or is not YAML.
    """
    layer = Layer()
    root = read_document(path, display_name)
    if isinstance(root, yaml.MappingNode):
        _Reader(layer, display_name, has_line_numbers=True).read((), root, display_name)
    elif root is not None and not is_empty(root):
        layer.problems.append(
            Problem("", f"{display_name} must consist of sections, such as broker: with url: below it.")
        )
    return layer


def from_environment(environ: Mapping[str, str]) -> Layer:
    """The settings among the environment variables, `TASKFRAMEWORK_<SECTION>__<KEY>`."""
    layer = Layer()
    for name in sorted(environ):
        if name.startswith(PREFIX) and not _is_foreign(name, environ[name]):
            path = tuple(name.removeprefix(PREFIX).lower().split("__"))
            _read_variable(layer, path, name, environ[name])
    return layer


def from_overrides(overrides: Mapping[str, object]) -> Layer:
    """The settings given on the command line, by dotted key; None means that the flag was not given."""
    layer = Layer()
    for key, value in overrides.items():
        path = tuple(key.split("."))
        if value is None:
            continue
        if is_known(path):
            layer.entries.append(Entry(path, value, "command line"))
        else:
            layer.add_problem(path, "command line", f"is not a setting. {suggestion_for(path)}")
    return layer


@dataclass(frozen=True, slots=True)
class _Reader:
    """Walks YAML nodes along the schema and fills a layer."""

    layer: Layer
    source: str
    has_line_numbers: bool

    def read(self, path: KeyPath, node: yaml.Node, place: str) -> None:
        for name, line, first_line in repeated_keys(node):
            first = f", first in line {first_line}" if self.has_line_numbers else ""
            self.layer.add_problem((*path, *name), self._place(line), f"is given twice{first}. Keep one of the two.")
        self._read_node(path, node, place)

    def _place(self, line: int) -> str:
        return f"{self.source}:{line}" if self.has_line_numbers else self.source

    def _read_node(self, path: KeyPath, node: yaml.Node, place: str) -> None:
        if path in group_paths():
            if isinstance(node, yaml.MappingNode):
                for name, line, value in mapping_entries(node):
                    self._read_node((*path, name), value, self._place(line))
            elif not is_empty(node):  # a section with all its keys commented out is fine
                self.layer.add_problem(
                    path, place, "is a group; write its keys below it, indented, or as {key: value}."
                )
        elif is_known(path):
            self._read_value(path, node, place)
        else:
            self.layer.add_problem(path, place, f"is not a setting. {suggestion_for(path)}")

    def _read_value(self, path: KeyPath, node: yaml.Node, place: str) -> None:
        try:
            self.layer.entries.append(Entry(path, value_of(node), place))
        except yaml.YAMLError:
            self.layer.add_problem(path, place, "is not a valid YAML value. If it is text, put it in quotes.")


def _read_variable(layer: Layer, path: KeyPath, name: str, text: str) -> None:
    place = f"environment {name}"
    if name == "TASKFRAMEWORK_API" and text.strip() and not text.lstrip().startswith("{"):
        reason = f"is {text!r:.60}: neither an address such as http://localhost:8000 nor the section in braces."
        layer.add_problem(path, place, reason)
    elif path not in group_paths() and not is_known(path):
        layer.problems.append(Problem(".".join(path), f"{place} is not a setting. {_variable_advice(name)}"))
    elif path not in group_paths() and not text.startswith(("[", "{")):
        layer.entries.append(Entry(path, None if text in ("", "null", "~") else text, place))
    else:
        try:
            node = parse(text)
        except yaml.YAMLError:
            layer.add_problem(path, place, "is not valid JSON or YAML. Write it as [one, two] or {key: value}.")
            return
        if node is not None:
            _Reader(layer, place, has_line_numbers=False).read(path, node, place)


def _variable_advice(name: str) -> str:
    variables = [key.variable for key in known_keys().values()]
    close = difflib.get_close_matches(name, variables, n=1, cutoff=0.8)
    return f"Did you mean {close[0]}?" if close else f"Variables are named {PREFIX}<SECTION>__<KEY>."


def _is_foreign(name: str, value: str) -> bool:
    return bool(
        _FOREIGN.fullmatch(name)
        or _FOREIGN_ADDRESS.fullmatch(f"{name}={value}")
        or _SERVICE_LINK.fullmatch(name)
        or (name.endswith("_PORT") and _SERVICE_ADDRESS.match(value))
    )
