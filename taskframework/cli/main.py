"""The command `taskframework`: its subcommands, and its end."""

from __future__ import annotations

import errno
import importlib
import io
import sys
from typing import Annotated, Any, cast

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from taskframework.cli.ending import exit_process, give_output_up, is_about_output, open_missing_streams, write_rest
from taskframework.cli.examples import complete_help
from taskframework.cli.options import Apps, Config, require_text
from taskframework.errors import TaskframeworkError

#: Each command: its panel in the help, the place of its code, and its purpose. The code is imported when the command is
#: called. The purpose is repeated here, because to import all the code takes half a second.
_COMMANDS = {
    "demo": (
        "Try it",
        "demo.command:demo",
        "Digest text files, one sub-task per file, on the embedded broker and store.",
    ),
    "init": ("Try it", "init:init", "Create a project that runs: a task, its tests, settings, and a compose file."),
    "dev": (
        "Run",
        "serve:dev",
        "Run everything in one process: HTTP interface, worker and repairs. No servers needed.",
    ),
    "api": ("Run", "serve:api", "Serve the HTTP interface. It executes no tasks; workers do."),
    "worker": ("Run", "serve:worker", "Execute tasks. Any number of workers share the work."),
    "submit": ("Use", "submit:submit", "Submit one task."),
    "tasks": ("Use", "tasks:app", "Tasks: list, show, explain, follow, cancel, signal, retry."),
    "batch": ("Use", "batch:app", "Batches: submit many items as one, show, follow, cancel, retry."),
    "streams": ("Use", "streams:app", "Ordered streams: list them, show one, read its results, continue a halted one."),
    "queues": ("Use", "queues:app", "Task types: show their waiting tasks, pause one in all workers, resume it."),
    "schedules": ("Use", "schedules:app", "Schedules: submit a task regularly, by cron or at an interval."),
    "dlq": ("Use", "dlq:app", "Dead letters: groups, list, show, edit, replay, discard, repair."),
    "replays": ("Use", "replays:app", "Replays, retries, cancels and discards of many tasks: list, show, stop."),
    "workers": ("Use", "workers:workers", "List the worker processes, or the tasks that one of them is running."),
    "top": ("Use", "top:top", "Show waiting and running tasks, rates and problems, until Ctrl-C."),
    "limits": ("Use", "limits:limits", "Show how much of each rate limit is available now."),
    "keys": ("Use", "keys:app", "API keys: create, list, revoke."),
    "audit": ("Use", "audit:app", "The audit log: what operators did, when and why."),
    "events": ("Use", "events:app", "External events, as other programs receive them."),
    "doctor": (
        "Check",
        "doctor:doctor",
        "Check versions, settings, program, servers, and what the store contains.",
    ),
    "config": ("Check", "config:app", "The settings in force."),
    "topology": ("Check", "topology:app", "Exchanges and queues on the broker."),
}

app = typer.Typer(
    name="taskframework",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class LazyCommand(TyperCommand):
    """A command whose code is imported when it is called. Before that it is only a line of the help."""

    def __init__(self, name: str, panel: str, code_location: str, purpose: str) -> None:
        super().__init__(name, help=purpose, rich_help_panel=panel)
        self._code_location = code_location

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Make the context of the real command, which then runs."""
        return self.load_command().make_context(info_name, args, parent, **extra)

    def load_command(self) -> Any:
        """Import the command itself, or the group of commands."""
        module, _, name = self._code_location.partition(":")
        loaded = getattr(importlib.import_module(f"taskframework.cli.{module}"), name)
        if isinstance(loaded, typer.Typer):
            return complete_help(require_text(get_group(loaded)), self.name or "")
        wrapper = typer.Typer(add_completion=False)
        wrapper.command(self.name)(loaded)
        return complete_help(require_text(get_command(wrapper)), self.name or "")


def build_command_line() -> TyperGroup:
    """Make the command with all its subcommands."""
    group = cast(TyperGroup, complete_help(get_command(app), ""))
    for name, (panel, code_location, purpose) in _COMMANDS.items():
        group.add_command(LazyCommand(name, panel, code_location, purpose))
    return group


def main() -> None:
    """Run the command line and end the process: 0 on success, 2 for wrong usage, otherwise 1."""
    open_missing_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a file's name may contain bytes that are not text
    try:
        build_command_line()()
    except TaskframeworkError as error:
        from taskframework.cli.output import show_error

        show_error(error)
        write_rest()
        code: int | str | None = 1
    except SystemExit as end:
        code = end.code if (lost := write_rest()) is None else _report_lost_output(lost)
    except OSError as error:
        if not is_about_output(error):
            raise
        code = _report_lost_output(error)
    exit_process(code if isinstance(code, int) else int(code is not None))


def _report_lost_output(error: OSError) -> int:
    """Say that the output is not complete, unless its reader has ended; return the exit code."""
    give_output_up()
    if error.errno != errno.EPIPE:
        from taskframework.cli.output import show_error

        problem = f"The output could not be written: {error.strerror}."
        show_error(TaskframeworkError(problem, hint="The command itself may have done its work."))
    return 1


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"taskframework {version('taskframework')}")
        raise typer.Exit


@app.callback()
def root_options(
    config: Config = None,
    app: Apps = None,
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Background tasks that are never lost.

    Start with `taskframework demo`, then `taskframework dev --app yourmodule`.
    """
