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
from taskframework.cli.output import ago, out, print_json, printable, table
from taskframework.cli.render import status_text
from taskframework.cli.store import AnyFramework, on_store
from taskframework.model.overview import Overview
from taskframework.model.status import TaskStatus
from taskframework.model.wording import pluralize
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

_DEFAULT_INTERVAL = timedelta(seconds=2)
#: Shortest pause between two looks: with a shorter one, most of the visible work would be the looks themselves.
_MIN_INTERVAL = timedelta(milliseconds=500)
#: A count that is not older than this is shown without its age. With few tasks, counts are made every five seconds.
_FRESH = timedelta(seconds=10)


@on_store
async def top(framework: AnyFramework, every: Every = None, once: Once = False, as_json: Json = False) -> None:
    """Show waiting and running tasks, rates and problems, until Ctrl-C."""
    overview = await framework.services.overview.read()
    if as_json:
        print_json(overview_view(overview))
    elif once or not out().is_terminal:
        out().print(render_overview(overview))
    else:
        with Live(render_overview(overview), console=out(), screen=True, auto_refresh=False) as live:
            while True:
                await asyncio.sleep(max(every or _DEFAULT_INTERVAL, _MIN_INTERVAL).total_seconds())
                live.update(render_overview(await framework.services.overview.read()), refresh=True)


def render_overview(overview: Overview) -> RenderableType:
    """An overview for people."""
    return Group(*_summary_lines(overview), Text(), _type_table(overview))


def _summary_lines(overview: Overview) -> Iterator[Text]:
    dead = overview.dead_letters
    letters = "dead letters not counted yet" if dead is None else pluralize(dead, "dead letter")
    line = Text(f"{pluralize(overview.worker_count, 'worker')}, {letters}")
    counts = overview.by_status
    for status in TaskStatus:
        if counts.get(status):
            line.append("   ").append_text(status_text(status)).append(f" {counts[status]:,}")
    counted_at = overview.counted_at
    if counted_at is not None and overview.at - counted_at > _FRESH:
        line.append(f"   as of {ago(counted_at, overview.at)}", style="dim")
    yield line
    for problem in overview.problems():
        yield Text(f"{problem.code}: ", style="bold red").append(printable(problem.text), style="not bold red")


def _type_table(overview: Overview) -> RenderableType:
    type_table = table("Type", "Waiting", "Oldest", "Running", "Retrying", "In", "Out", "Failed")
    for task_type in overview.task_types:
        traffic = overview.traffic.of_type(task_type)
        oldest = "-" if traffic.oldest_waiting_at is None else ago(traffic.oldest_waiting_at, overview.at)
        more, more_running = "+" * traffic.is_bounded, "+" * overview.traffic.is_running_bounded
        rates = (traffic.submitted_per_second, traffic.finished_per_second, traffic.failed_per_second)
        waiting, running = f"{traffic.waiting:,}{more}", f"{traffic.running:,}{more_running}"
        counts = (waiting, oldest, running, f"{traffic.retrying:,}{more}")
        type_table.add_row(task_type, *counts, *(f"{round(rate, 3):.3g}/s" for rate in rates))
    return type_table
