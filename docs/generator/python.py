"""The public names of the package, with their signatures and docstrings."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from enum import Enum
from typing import Any, get_overloads

from pydantic import BaseModel, TypeAdapter
from typing_extensions import is_protocol  # in typing since Python 3.13

from docs.generator.docstrings import described
from docs.generator.signatures import signature_of
from docs.generator.tables import fields, table
from taskframework.errors import TaskframeworkError

_INTRODUCTION = """\
# Python

Every public name. What else can be imported may change with any release. How the names are used is in the guides, from
[writing a task](../writing-a-task.md) on; every setting is in [settings](settings.md).

This page is made from the code, by `make docs`.
"""
_MODULES = {
    "taskframework": "For programs that write and submit tasks.",
    "taskframework.testing": "For [tests](../testing.md).",
}
_ERRORS = """
## Exceptions

All are below `TaskframeworkError`, have a `message` and a `hint`, which says what to do, and are imported from
`taskframework`.

"""


def markdown() -> str:
    """The names of each module, and the exceptions in a table of their own."""
    parts = [_INTRODUCTION]
    errors: list[type[Exception]] = []
    for module, meaning in _MODULES.items():
        parts.append(f"\n## {module}\n\n{meaning}\n")
        home = importlib.import_module(module)
        for name in sorted(home.__all__, key=str.lower):
            value = getattr(home, name)
            if isinstance(value, type) and issubclass(value, TaskframeworkError):
                errors.append(value)
            else:
                parts.append(_entry(name, value))
    parts += [_ERRORS, table(("Exception", "Below", "When", "Attributes"), map(_error, errors))]
    return "".join(parts)


def _entry(name: str, value: Any) -> str:
    parts = [f"\n### {name}\n\n"]
    if not isinstance(value, type):
        return "".join((*parts, _code(name, value), described(value)))
    if issubclass(value, Enum):
        parts.append(described(value).lstrip() + "\n" + ", ".join(f"`{member.name}`" for member in value) + "\n")
    elif issubclass(value, BaseModel):
        parts.append(described(value).lstrip())
    elif issubclass(value, dict):
        parts.append(described(value).lstrip() + "\n" + fields(TypeAdapter(value).json_schema(), str))
    elif is_protocol(value):
        parts.append(_code(name, value.__call__) + described(value))
    else:
        parts.append(_code(name, value) + described(value) + described(value.__init__))
        parts += [_attributes(value), *(_method(name, called, member) for called, member in _methods(value))]
    return "".join(parts)


def _members(kind: type) -> dict[str, Any]:
    """What is public, of our base classes too, in the order in which it is written."""
    found: dict[str, Any] = {}
    for base in kind.__mro__:
        if base.__module__.startswith("taskframework"):
            found = {**vars(base), **found}
    return {name: value for name, value in found.items() if not name.startswith("_")}


def _attributes(kind: type) -> str:
    """The properties. Fields are in the signature, and told by the docstring."""
    found = [(name, value.__doc__ or "") for name, value in _members(kind).items() if isinstance(value, property)]
    return "\n" + table(("Attribute", "Meaning"), ((f"`{name}`", doc) for name, doc in found)) if found else ""


def _methods(kind: type) -> Iterator[tuple[str, Any]]:
    for name, value in _members(kind).items():
        plain = getattr(value, "__func__", value)  # of a class method or a static one
        if inspect.isroutine(plain):
            yield name, plain


def _method(owner: str, name: str, method: Any) -> str:
    return f"\n#### {owner}.{name}\n\n{_code(name, method)}{described(method)}"


def _code(name: str, value: Any) -> str:
    """The signature, or those that a type checker sees in its place."""
    found = get_overloads(value) if inspect.isfunction(value) else ()
    lines = [signature_of(name, each) for each in found or (value,)]
    return "```python\n" + "\n".join(lines) + "\n```\n"


def _error(kind: type[Exception]) -> tuple[str, str, str, str]:
    parameters = inspect.signature(kind).parameters
    own = [f"`{name}`" for name in parameters if name not in ("message", "hint") and not name.startswith("_")]
    doc = (kind.__doc__ or "").strip().partition("\n\n")[0]
    return f"`{kind.__name__}`", f"`{kind.__bases__[0].__name__}`", doc, ", ".join(own)
