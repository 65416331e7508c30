"""The command `taskframework`: its commands, and how it ends."""

from __future__ import annotations

import io
import sys
from importlib.metadata import version as package_version
from typing import Annotated

import typer

from taskframework.cli import config, dlq, doctor, events, serve, submit, tasks, topology
from taskframework.cli.demo import command as demo
from taskframework.cli.invocation import Invocation
from taskframework.cli.options import Apps, Config
from taskframework.cli.output import show_error
from taskframework.cli.process import leave
from taskframework.errors import TaskframeworkError

_START = "Try it"
_RUN = "Run"
_WORK = "Use"
_LOOK = "Check"

app = typer.Typer(
    name="taskframework",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line and end the process: 0 if it did what was asked, 2 for wrong usage, else 1."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a file's name may hold bytes that are no text
    try:
        app()
    except TaskframeworkError as error:
        show_error(error)
        code: int | str | None = 1
    except SystemExit as end:
        code = end.code
    leave(code if isinstance(code, int) else int(code is not None))


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"taskframework {package_version('taskframework')}")
        raise typer.Exit


@app.callback()
def before(
    context: typer.Context,
    config: Config = None,
    app: Apps = None,
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Background tasks that are never lost.

    Start with `taskframework demo`, then `taskframework dev --app yourmodule`.
    """
    context.obj = Invocation(config, tuple(app or ()))


app.command(rich_help_panel=_START)(demo.demo)
app.command(rich_help_panel=_RUN)(serve.dev)
app.command(rich_help_panel=_RUN)(serve.api)
app.command(rich_help_panel=_RUN)(serve.worker)
app.command(rich_help_panel=_WORK)(submit.submit)
app.add_typer(tasks.app, name="tasks", rich_help_panel=_WORK)
app.add_typer(dlq.app, name="dlq", rich_help_panel=_WORK)
app.add_typer(events.app, name="events", rich_help_panel=_WORK)
app.command(rich_help_panel=_LOOK)(doctor.doctor)
app.add_typer(config.app, name="config", rich_help_panel=_LOOK)
app.add_typer(topology.app, name="topology", rich_help_panel=_LOOK)
