"""Each command's help ends with an example that works as it is printed; and the shell completes what there is."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from taskframework.cli.examples import EXAMPLES
from taskframework.cli.main import LazyCommand, build_command_line
from tests.unit.cli.conftest import Cli


def leaves(group: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """Every command by its name."""
    for name, command in group.commands.items():
        real = command.load_command() if isinstance(command, LazyCommand) else command
        if hasattr(real, "commands"):
            yield from leaves(real, f"{above}{name} ")
        else:
            yield f"{above}{name}", real


def test_every_command_has_an_example_that_it_understands() -> None:
    commands = dict(leaves(build_command_line()))
    assert commands.keys() == EXAMPLES.keys(), "a new command needs an example in cli/examples.py"
    for name, command in commands.items():
        assert EXAMPLES[name] in command.epilog
        words = shlex.split(EXAMPLES[name])
        assert " ".join(words).startswith(name)
        command.make_context(name, words[len(name.split()) :])  # raises what wrong usage does


def test_the_example_is_at_the_end_of_the_help(cli: Cli) -> None:
    assert cli("tasks", "retry", "--help").out.split("Example: ")[1].startswith("taskframework tasks retry")
    told = " ".join(cli("schedules", "create", "--help").out.split())
    assert told.endswith("(charge-card stands for a task type of your own.)")


@pytest.mark.parametrize("command", [(), ("tasks",), ("tasks", "cancel"), ("submit",), ("dlq", "replay")], ids=" ".join)
def test_the_help_shows_no_value_for_a_flag_and_one_pair_of_brackets(cli: Cli, command: tuple[str, ...]) -> None:
    shown = cli(*command, "--help").out
    assert "--help" in shown
    assert not re.search(r"<bool>|\[\[|\]\]", shown)


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("taskframework to", ["top", "topology"]),
        ("taskframework queues ", ["list", "pause", "resume"]),
        ("taskframework tasks list --st", ["--status", "--stream"]),
    ],
)
def test_the_shell_completes_commands_and_options(typed: str, offered: list[str]) -> None:
    asked = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split(" ")) - 1)}
    script = Path(sys.executable).with_name("taskframework")
    environment = os.environ | asked | {"_TASKFRAMEWORK_COMPLETE": "complete_bash"}
    done = subprocess.run([script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == offered
