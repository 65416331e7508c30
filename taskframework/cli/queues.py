"""`queues`: what waits by task type; pause a type over all workers and let it go on."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Annotated

import typer
from rich.text import Text

from taskframework.cli.options import Json
from taskframework.cli.output import ago, note, print_json, say
from taskframework.cli.render import print_rows
from taskframework.cli.store import AnyFramework, audited, on_store, operator
from taskframework.model.message import rfc3339
from taskframework.model.status import LANES, Priority
from taskframework.operations.queues import Queue

app = typer.Typer(
    no_args_is_help=True, help="Task types: what waits of each; pause one over all workers, let it go on."
)

TypeName = Annotated[str, typer.Argument(metavar="TYPE", help="The task type.")]
Reason = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why; shown to who looks.")]
Drain = Annotated[bool, typer.Option("--drain", help="Wait until what runs has ended; Ctrl-C ends the waiting only.")]

#: Seconds between two looks whether something still runs.
_LOOK = 0.5
#: Seconds after which every worker has heard of a pause, so that nothing begins any more.
_HEARD = 2.0


@app.command("list")
@on_store
async def list_queues(framework: AnyFramework, as_json: Json = False) -> None:
    """List the task types that workers have declared: what waits, comes and goes, and which are paused."""
    queues = await framework.services.queues.list_queues()
    if as_json:
        print_json({"items": [_view(queue) for queue in queues], "next_cursor": None})
        return
    if not queues:
        note("No worker has declared a task type yet.")
        return
    print_rows(
        ("Type", "Waiting", "Oldest", "Running", "Retrying", "In", "Out", "Paused"),
        [_row(queue, framework.services.store.now()) for queue in queues],
    )
    if any(queue.traffic.is_bounded for queue in queues):
        note("More tasks wait or run than were looked at; counted are those that do for longest.")


@app.command()
@on_store
@audited("queue.pause", of="task_type")
async def pause(
    framework: AnyFramework, task_type: TypeName, reason: Reason = None, drain: Drain = False, as_json: Json = False
) -> None:
    """Let no task of a type begin, in any worker, from two seconds on. What runs goes on."""
    queues = framework.services.queues
    await queues.pause(task_type, by=operator(), reason=reason)
    if drain:
        note("Waiting until nothing of it runs ...")
        await asyncio.sleep(_HEARD)
        while (await queues.get(task_type)).is_running:  # noqa: ASYNC110 - another process ends it
            await asyncio.sleep(_LOOK)
    if as_json:
        print_json(_view(await queues.get(task_type)))
    else:
        say(f"{task_type} is paused{', and nothing of it runs' if drain else ''}.")
        note(f"Let it go on: taskframework queues resume {task_type}")


@app.command()
@on_store
@audited("queue.resume", of="task_type")
async def resume(framework: AnyFramework, task_type: TypeName, as_json: Json = False) -> None:
    """Let tasks of a type begin again, in all workers within two seconds."""
    over = await framework.services.queues.resume(task_type)
    queue = await framework.services.queues.get(task_type)
    if as_json:
        print_json(_view(queue))
    else:
        say(f"{task_type} goes on." if over is not None else f"{task_type} was not paused.")


def _row(queue: Queue, now: datetime) -> tuple[Text, ...]:
    seen = queue.traffic.of_type(queue.task_type)
    oldest = "-" if seen.oldest_waiting_at is None else ago(seen.oldest_waiting_at, now)
    rates = f"{seen.submitted_per_second:.3g}/s", f"{seen.finished_per_second:.3g}/s"
    cells = (queue.task_type, _waiting(queue), oldest, f"{seen.running:,}", f"{seen.retrying:,}", *rates)
    return *map(Text, cells), _paused(queue)


def _waiting(queue: Queue) -> str:
    """How many, and in which lanes if that is not the normal one alone."""
    lanes = {lane: queue.traffic.of_lane(queue.task_type, lane).waiting for lane in LANES}
    total = f"{sum(lanes.values()):,}{'+' if queue.traffic.is_bounded else ''}"
    if sum(lanes.values()) == lanes[Priority.NORMAL]:
        return total
    return f"{total} ({', '.join(f'{lane} {count:,}' for lane, count in lanes.items() if count)})"


def _paused(queue: Queue) -> Text:
    pause = queue.pause
    if pause is None:
        return Text("-")
    return Text(f"by {pause.by} at {rfc3339(pause.at)}{f': {pause.reason}' if pause.reason else ''}", style="yellow")


def _view(queue: Queue) -> dict[str, object]:
    """Without what only a process with a broker knows."""
    return {name: value for name, value in queue.view().items() if name != "messages"}
