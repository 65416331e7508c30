"""The commands, from typer: what each takes, and an example of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from docs.generator.tables import table
from taskframework.cli.examples import EXAMPLES
from taskframework.cli.main import build_command_line

_INTRODUCTION = """\
# Command line

Every command with all it takes, as its `--help` says it. What the commands have in common, and how they are used
together, is in [the command line](../command-line.md).

This page is made from the commands, by `make docs`.
"""


def markdown() -> str:
    """Every command under the panel of the help that it is in."""
    parts, panel = [_INTRODUCTION], None
    commands: Mapping[str, Any] = build_command_line().commands
    for name, command in commands.items():
        if command.rich_help_panel != panel:
            panel = command.rich_help_panel
            parts.append(f"\n## {panel}\n")
        parts += [_command(*found) for found in _below(name, command.load_command())]
    return "".join(parts)


def _below(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    """The command, or those of the group."""
    if not hasattr(command, "commands"):
        yield name, command
    else:
        for word, found in command.commands.items():
            yield from _below(f"{name} {word}", found)


def _command(name: str, command: Any) -> str:
    parts = [f"\n### {name}\n\n{_paragraphs(command.help)}\n"]
    parts.append(f"\n```text\ntaskframework {EXAMPLES.get(name, name)}\n```\n\n")
    parts.append(
        table(("Argument or option", "Meaning"), (_row(option) for option in command.params if not _hidden(option)))
    )
    return "".join(parts)


def _hidden(option: Any) -> bool:
    return bool(getattr(option, "hidden", False)) or option.name == "help"


def _row(option: Any) -> tuple[str, str]:
    if option.param_type_name == "argument":
        called = f"`{option.metavar or option.name.upper()}`"
    else:
        value = "" if option.is_flag else f" {option.metavar or 'VALUE'}"
        called = ", ".join(f"`{name}{value}`" for name in (*option.opts, *option.secondary_opts))
    notes = [option.help or ""]
    if option.required:
        notes.append("Required.")
    elif option.default not in (None, False, "null", ()) and not callable(option.default):
        notes.append(f"Default: `{option.default}`.")
    if option.envvar:
        notes.append(f"Environment: `{option.envvar}`.")
    return called, " ".join(notes)


def _paragraphs(text: str | None) -> str:
    return "\n\n".join(" ".join(part.split()) for part in (text or "").split("\n\n")).replace("\b", "").strip()
