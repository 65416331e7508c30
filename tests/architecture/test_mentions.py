"""What people can use is in the documents, and what the documents name is there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

import taskframework
import taskframework.testing
from taskframework import EventSubscriber, ExternalEvent, Settings, TaskContext, TaskFramework, TaskHandle, TaskOptions
from taskframework.api.app import create_app
from taskframework.cli.main import build_command_line
from taskframework.observability.metrics import Metrics
from taskframework.settings.keys import known_keys
from tests.support.pages import pages

TELL = "tell of it in a page of docs/ that people write: what is in docs/reference does not count"
TEXT = "\n".join(page.read_text() for page in pages())
#: Held by a program that builds on the parts, not by one that uses the framework.
_FOR_BUILDERS = {"control", "store", "settings", "registry", "services", "store_only", "process"}


def _commands(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    command = command.load_command() if hasattr(command, "load_command") else command
    if not hasattr(command, "commands"):
        yield name, command
        return
    for below, found in command.commands.items():
        yield from _commands(found, f"{name} {below}".strip())


COMMANDS = dict(_commands(build_command_line()))


def _missing(names: Iterable[str], text: str = TEXT) -> list[str]:
    return [name for name in names if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text)]


def _members(kind: type) -> Iterator[str]:
    names = [*vars(kind), *getattr(kind, "__dataclass_fields__", ())]
    return (name for name in names if not name.startswith("_") and name not in _FOR_BUILDERS)


def _options_of(command: Any) -> set[str]:
    shown = (option for option in command.params if not getattr(option, "hidden", False))
    return {name for option in shown for name in option.opts if name.startswith("--")}


def test_every_public_name_is_in_a_page() -> None:
    assert _missing([*taskframework.__all__, *taskframework.testing.__all__]) == [], TELL


@pytest.mark.parametrize(
    "kind",
    [TaskContext, TaskHandle, TaskFramework, TaskOptions, EventSubscriber, ExternalEvent],
    ids=lambda kind: kind.__name__,
)
def test_every_member_is_in_a_page(kind: type) -> None:
    assert _missing(_members(kind)) == [], TELL


def test_every_command_and_option_is_in_a_page() -> None:
    assert _missing(COMMANDS) == [], TELL
    assert _missing(sorted(set[str]().union(*map(_options_of, COMMANDS.values())))) == [], TELL


def test_every_call_is_in_a_page() -> None:
    paths = create_app(TaskFramework(Settings())).openapi()["paths"]
    calls = [f"{method.upper()} {path}" for path, methods in paths.items() for method in methods]
    assert [call for call in calls if f"`{call}`" not in TEXT] == [], TELL


def test_every_metric_is_in_a_page_and_no_other() -> None:
    families = Metrics().registry.collect()
    counted = {f"{family.name}_total" if family.type == "counter" else family.name for family in families}
    # The parent of several worker processes counts this one by itself.
    told = set(re.findall(r"`(tasks_[a-z_]+|batch_[a-z_]+_seconds)", TEXT))
    assert told == counted | {"tasks_worker_restarts_total"}, "docs/operations/monitoring.md tells of every metric"


def test_the_commands_of_the_pages_exist() -> None:
    said = re.findall(r"(?:`|^\$ )taskframework ([^`\n]*)", TEXT, re.MULTILINE)
    assert len(said) > 20
    for words in map(str.split, said):
        name = next((name for count in (2, 1) if (name := " ".join(words[:count])) in COMMANDS), None)
        assert name or words[0] in ("COMMAND", "--help", "--version"), f"taskframework {' '.join(words)}"
        known = _options_of(COMMANDS[name]) if name else set()
        unknown = {word for word in words if word.startswith("--")} - known - {"--help", "--version"}
        assert not unknown, f"taskframework {' '.join(words)}"


def test_the_settings_in_the_text_exist() -> None:
    sections = "|".join(Settings.model_fields)
    said = set(re.findall(rf"`((?:{sections})\.[a-z_.]+)", TEXT))
    assert said - {".".join(path) for path in known_keys()} == set()
