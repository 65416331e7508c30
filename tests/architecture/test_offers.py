"""Nothing is offered that does nothing: every setting is read, every status that can be asked for can come to be."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from taskframework import Settings, TaskFramework
from taskframework.api.app import create_app
from taskframework.model.status import REACHABLE
from taskframework.settings.keys import known_keys
from taskframework.settings.section import Section
from tests.architecture.sources import PACKAGE, modules


@cache
def names_by_module() -> tuple[frozenset[str], ...]:
    """For each module outside of `settings/`, the attributes it reads and the other names in it."""
    found = []
    for path in modules():
        if PACKAGE / "settings" not in path.parents:
            nodes = list(ast.walk(ast.parse(path.read_text())))
            read = {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)}
            found.append(frozenset(read | {node.id for node in nodes if isinstance(node, ast.Name)}))
    return tuple(found)


def derived(section: type[Section], name: str) -> Iterator[str]:
    """The properties of a section that are made from a setting, such as the heartbeat from the lease."""
    for own, value in vars(section).items():
        if isinstance(value, property) and value.fget is not None and name in value.fget.__code__.co_names:
            yield own


def is_read(section: str, kind: type[Section], name: str) -> bool:
    """Whether a module that speaks of the section reads the setting or what is derived from it."""
    wanted = {name, *derived(kind, name)}
    return any(wanted & names and {section, kind.__name__} & names for names in names_by_module())


@pytest.mark.parametrize("path", known_keys(), ids=".".join)
def test_every_setting_is_read_somewhere(path: tuple[str, ...]) -> None:
    section, name = path
    assert is_read(section, type(getattr(Settings(), section)), name), f"nothing reads {section}.{name}: remove it"


def test_a_setting_that_nothing_reads_shows() -> None:
    class RateLimiterSettings(Section):
        type: str = "memory"

    assert not is_read("rate_limiter", RateLimiterSettings, "type")
    assert not is_read("worker", type(Settings().worker), "burst_capacity")


def statuses_in(part: Any) -> Iterator[frozenset[str]]:
    if isinstance(part, dict):
        if "QUEUED" in part.get("enum", ()):
            yield frozenset(part["enum"])
        for value in part.values():
            yield from statuses_in(value)
    elif isinstance(part, list):
        for value in part:
            yield from statuses_in(value)


def test_the_http_interface_speaks_of_statuses_that_can_be() -> None:
    assert set(statuses_in(create_app(TaskFramework(Settings())).openapi())) == {frozenset(REACHABLE)}
