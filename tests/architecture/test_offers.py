"""Nothing is offered that does nothing: every setting is read."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from taskframework import Settings
from taskframework.settings.keys import known_keys
from taskframework.settings.section import Section
from tests.architecture.sources import PACKAGE, modules


def derived(section: type[Section], name: str) -> Iterator[str]:
    """The properties of a section that are made from a setting, such as the heartbeat from the lease."""
    for own, value in vars(section).items():
        if isinstance(value, property) and value.fget is not None and name in value.fget.__code__.co_names:
            yield own


def bindings(tree: ast.Module) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What a module binds: each target with its annotation or with its value."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.annotation is not None:
            yield ast.Name(node.arg), node.annotation
        elif isinstance(node, ast.AnnAssign):
            yield node.target, node.annotation
        elif (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Tuple)
            and isinstance(node.value, ast.Tuple)
        ):
            yield from zip(node.targets[0].elts, node.value.elts, strict=False)
        elif isinstance(node, ast.Assign):
            yield node.targets[0], node.value


@cache
def code() -> list[tuple[list[tuple[str, str]], list[tuple[str, str]]]]:
    """Of each module outside of `settings/`: what it binds to what, and which attributes it reads of what."""
    found = []
    for path in modules():
        if PACKAGE / "settings" not in path.parents:
            tree = ast.parse(path.read_text())
            bound = [(ast.unparse(target), ast.unparse(origin)) for target, origin in bindings(tree)]
            attributes = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
            read = [(ast.unparse(node.value), node.attr) for node in attributes if isinstance(node.ctx, ast.Load)]
            found.append((bound, read))
    return found


@cache
def reads(section: str, kind: type[Section]) -> frozenset[str]:
    """The attributes that are read of a section: of `settings.section`, or of a name bound to it or of its type."""
    wanted = re.compile(rf"\b{kind.__name__}\b|\.{section}$")
    found: set[str] = set()
    for bound, read in code():
        owners = {target for target, origin in bound if wanted.search(origin)}
        found.update(name for owner, name in read if owner in owners or owner.endswith(f"settings.{section}"))
    return frozenset(found)


def is_read(section: str, kind: type[Section], name: str) -> bool:
    """Whether anything reads the setting or what is derived from it."""
    return not reads(section, kind).isdisjoint({name, *derived(kind, name)})


@pytest.mark.parametrize("path", known_keys(), ids=".".join)
def test_every_setting_is_read_somewhere(path: tuple[str, ...]) -> None:
    section, name = path
    assert is_read(section, type(getattr(Settings(), section)), name), f"nothing reads {section}.{name}: remove it"


def test_a_setting_that_nothing_reads_shows() -> None:
    """Although another section has a setting of this name, or other attributes are so called."""

    class ThrottleSettings(Section):
        type: str = "memory"

    assert not is_read("throttle", ThrottleSettings, "type")
    assert not is_read("worker", type(Settings().worker), "pool_size")
    assert not is_read("api", type(Settings().api), "status_code")
