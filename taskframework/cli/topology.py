"""`topology`: the exchanges and queues on the broker for this program's task types."""

from __future__ import annotations

from dataclasses import asdict

import typer

from taskframework.cli.invocation import Invocation
from taskframework.cli.options import Apps, Config, Json
from taskframework.cli.output import note, print_json, run, say
from taskframework.clock import SystemClock
from taskframework.runtime import TaskFramework
from taskframework.wiring.adapters import build_broker, build_mover, topology_lines

app = typer.Typer(no_args_is_help=True, help="Exchanges and queues on the broker.")

_EMBEDDED_NOTE = "The embedded broker keeps its queues in memory; there is nothing to declare."


@app.command()
def show(context: typer.Context, config: Config = None, app: Apps = None, as_json: Json = False) -> None:
    """Print what `apply`, `api` and `worker` declare."""
    framework = Invocation.of(context, config, app).framework()
    lines = topology_lines(framework.settings, framework.registry.task_types)
    if as_json:
        print_json(lines)
        return
    for line in lines:
        say(line)
    if not lines:
        note(_EMBEDDED_NOTE)
    else:
        _note_types(framework)


@app.command()
def apply(context: typer.Context, config: Config = None, app: Apps = None) -> None:
    """Declare them. What exists already stays; an exchange or queue with other arguments is an error that names it."""
    framework = Invocation.of(context, config, app).framework()
    if not _has_broker(framework):
        return
    run(_apply(framework))
    say(f"Declared for {', '.join(framework.registry.task_types) or 'no task type'}.")
    _note_types(framework)


@app.command()
def plan(context: typer.Context, config: Config = None, app: Apps = None, as_json: Json = False) -> None:
    """Show what is missing on the broker or differs from `show`. Nothing is changed."""
    framework = Invocation.of(context, config, app).framework()
    differences = (
        run(build_mover(framework.settings, framework.registry.task_types).plan()) if _has_broker(framework) else []
    )
    if as_json:
        print_json([asdict(difference) for difference in differences])
        return
    for difference in differences:
        say(str(difference))
    if not differences:
        say("Nothing is missing and nothing differs.")
    elif all(difference.is_missing for difference in differences):
        note("To create what is missing: taskframework topology apply")
    else:
        note("To move the queues that differ, during operation: taskframework topology migrate")


@app.command()
def migrate(context: typer.Context, config: Config = None, app: Apps = None, as_json: Json = False) -> None:
    """Move the queues that differ (classic ones, or with other arguments), during operation."""
    framework = Invocation.of(context, config, app).framework()
    moved = (
        run(build_mover(framework.settings, framework.registry.task_types).migrate()) if _has_broker(framework) else []
    )
    if as_json:
        print_json(moved)
        return
    for name in moved:
        say(f"{name} is moved.")
    if not moved:
        say("No queue differs.")
    _note_types(framework)


def _has_broker(framework: TaskFramework) -> bool:
    if framework.settings.broker.scheme != "embedded":
        return True
    note(_EMBEDDED_NOTE)
    return False


async def _apply(framework: TaskFramework) -> None:
    broker = build_broker(framework.settings, SystemClock())
    try:
        await broker.declare(framework.registry.task_types)
    finally:
        await broker.close()


def _note_types(framework: TaskFramework) -> None:
    if not len(framework.registry):
        note("Without task types there are no task queues: give your module with --app.")
