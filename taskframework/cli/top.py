"""`top`: the installation at a glance, on a screen that is updated again and again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from taskframework.cli.options import Json, or_bad_parameter, seconds_or_duration
from taskframework.cli.output import ago, counted, out, print_json, printable, table
from taskframework.cli.render import status_text
from taskframework.cli.store import AnyFramework, on_store
from taskframework.model.overview import Overview
from taskframework.model.status import TaskStatus
from taskframework.operations.overview import overview_view

Every = Annotated[
    timedelta | None,
    typer.Option(
        "--every",
        parser=or_bad_parameter(seconds_or_duration),
        metavar="TIME",
        help="Time between two updates (default 2s).",
        show_default=False,
    ),
]
Once = Annotated[bool, typer.Option("--once", help="Print once and exit; the default if the output is not a terminal.")]

_USUAL = timedelta(seconds=2)
#: Shortest pause between two looks: with a shorter one, most of the visible work would be the looks themselves.
_SOONEST = timedelta(milliseconds=500)


@on_store
async def top(framework: AnyFramework, every: Every = None, once: Once = False, as_json: Json = False) -> None:
    """Show waiting and running tasks, rates and problems, until Ctrl-C."""
    overview = await framework.services.overview.look()
    if as_json:
        print_json(overview_view(overview))
    elif once or not out().is_terminal:
        out().print(screen(overview))
    else:
        with Live(screen(overview), console=out(), screen=True, auto_refresh=False) as live:
            while True:
                await asyncio.sleep(max(every or _USUAL, _SOONEST).total_seconds())
                live.update(screen(await framework.services.overview.look()), refresh=True)


def screen(overview: Overview) -> RenderableType:
    """An overview for people."""
    return Group(*_lines(overview), Text(), _types(overview))


def _lines(overview: Overview) -> Iterator[Text]:
    dead = overview.dead_letters
    letters = "dead letters not counted yet" if dead is None else counted(dead, "dead letter")
    line = Text(f"{counted(overview.worker_count, 'worker')}, {letters}")
    counts = overview.by_status
    for status in TaskStatus:
        if counts.get(status):
            line.append("   ").append_text(status_text(status)).append(f" {counts[status]:,}")
    yield line
    for problem in overview.problems():
        yield Text(f"{problem.code}: ", style="bold red").append(printable(problem.text), style="not bold red")


def _types(overview: Overview) -> RenderableType:
    shown = table("Type", "Waiting", "Oldest", "Running", "Retrying", "In", "Out", "Failed")
    for task_type in overview.task_types:
        seen = overview.traffic.of_type(task_type)
        oldest = "-" if seen.oldest_waiting_at is None else ago(seen.oldest_waiting_at, overview.at)
        more = "+" if overview.traffic.is_bounded else ""
        rates = (seen.submitted_per_second, seen.finished_per_second, seen.failed_per_second)
        counts = (f"{seen.waiting:,}{more}", oldest, f"{seen.running:,}{more}", f"{seen.retrying:,}{more}")
        shown.add_row(task_type, *counts, *(f"{rate:.3g}/s" for rate in rates))
    return shown
