"""YAML as nodes that know their lines. Errors name the file and the line, and say what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from taskframework.errors import ConfigurationError

_Loader: type[yaml.SafeLoader | yaml.CSafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NULL = "tag:yaml.org,2002:null"
_NUMBERS = frozenset({"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"})
#: In octal, hexadecimal or binary digits, or to the base of sixty.
_OTHER_NOTATION = re.compile(r"[-+]?0[0-9xXbB_]|.*:")


def read_document(path: Path, display_name: str) -> yaml.Node | None:
    """Read the one YAML document of a file.

    Args:
        path: the file.
        display_name: how messages name it.

    Returns:
        Its top node; None for a file without content.

    Raises:
        ConfigurationError: if it cannot be read or is not YAML. The message quotes nothing of the file, which may
            hold passwords.
    """
    try:
        return parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
        raise ConfigurationError(
            f"{display_name} cannot be read: {reason}.",
            hint="Check the path and its permissions, or leave the option out.",
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"{display_name} is not UTF-8 text (byte {error.start}).", hint="Save it as UTF-8 and start again."
        ) from error
    except yaml.YAMLError as error:
        raise ConfigurationError(
            f"{display_name}{_line_of(error)} is not valid YAML: {_problem_of(error)}.",
            hint="Check that line and the one before: indentation by spaces, a space after each colon, closed quotes.",
        ) from None


def parse(text: str) -> yaml.Node | None:
    """The top node of a text.

    Raises:
        yaml.YAMLError: if it is not one YAML document.
    """
    loader = _Loader(text)
    try:
        return loader.get_single_node()
    finally:
        loader.dispose()


def value_of(node: yaml.Node) -> object:
    """The plain value of a node.

    Raises:
        yaml.YAMLError: if the node has no valid value, for example a date that does not exist.
    """
    loader = _Loader("")
    try:
        _refuse_other_notations(node, set())
        value: object = loader.construct_document(node)
        return value
    except ValueError as error:
        raise yaml.YAMLError(str(error)) from None
    finally:
        loader.dispose()


def _refuse_other_notations(node: yaml.Node, seen: set[int]) -> None:
    """Refuse numbers that YAML reads in another way than people: `1:30` as 90, and `010` as 8.

    Raises:
        ValueError: names the number.
    """
    if id(node) in seen:  # a node may be inside itself
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        for _, value in node.value:
            _refuse_other_notations(value, seen)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            _refuse_other_notations(value, seen)
    elif node.tag in _NUMBERS and _OTHER_NOTATION.match(node.value):
        raise ValueError(f"YAML reads {node.value} as another number; write a decimal number, or a text in quotes")


def is_empty(node: yaml.Node) -> bool:
    """Return whether the value of a node is missing or null."""
    return node.tag == _NULL


def mapping_entries(node: yaml.MappingNode) -> Iterator[tuple[str, int, yaml.Node]]:
    """Key, line (from 1) and value of each entry; a key is taken as it is written, so `on` stays `on`."""
    for key, value in node.value:
        yield str(key.value), key.start_mark.line + 1, value


def repeated_keys(node: yaml.Node) -> Iterator[tuple[tuple[str, ...], int, int]]:
    """The path of each key that is given twice in one mapping, at any depth, with its line and the line before.

    Call it before `value_of`, which merges other mappings into those with `<<`.
    """
    return _repeated_keys(node, (), set())


def _repeated_keys(
    node: yaml.Node, path: tuple[str, ...], seen: set[int]
) -> Iterator[tuple[tuple[str, ...], int, int]]:
    if id(node) in seen:  # a node may be inside itself
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for name, line, value in mapping_entries(node):
            if name in lines and name != "<<":  # each of these merges another mapping
                yield (*path, name), line, lines[name]
            lines.setdefault(name, line)
            yield from _repeated_keys(value, (*path, name), seen)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from _repeated_keys(value, path, seen)


def _line_of(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    return f":{mark.line + 1}" if mark is not None else ""


def _problem_of(error: yaml.YAMLError) -> str:
    return getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be parsed"
