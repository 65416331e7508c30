"""`queues`: waiting tasks by type; pause a type in all workers, and resume it."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Annotated

import typer
from rich.text import Text

from taskframework.cli.options import Json, reason_option
from taskframework.cli.output import ago, note, print_json, printable, say
from taskframework.cli.render import print_rows
from taskframework.cli.store import AnyFramework, audited, on_store, operator_name
from taskframework.errors import ApiUnavailableError, StoreUnavailableError
from taskframework.model.message import rfc3339
from taskframework.model.status import LANES, Priority
from taskframework.model.traffic import LaneTraffic
from taskframework.operations.queues import Queue

app = typer.Typer(
    no_args_is_help=True, help="Task types: show their waiting tasks, pause one in all workers, resume it."
)

TypeName = Annotated[str, typer.Argument(metavar="TYPE", help="The task type.")]
Reason = Annotated[str | None, reason_option("The reason; everyone can see it.")]
Drain = Annotated[
    bool, typer.Option("--drain", help="Wait until its running tasks have ended; Ctrl-C only stops this wait.")
]

#: Seconds between two looks whether a task of the type still runs.
_POLL_SECONDS = 0.5
#: Seconds after which every worker knows of a pause, so that no task begins any more.
_PAUSE_SPREAD_SECONDS = 2.0


@app.command("list")
@on_store
async def list_queues(framework: AnyFramework, as_json: Json = False) -> None:
    """List the task types that workers have declared: waiting and running tasks, rates, and pauses."""
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
        note("A number with + is where counting stopped: there may be more tasks.")


@app.command()
@on_store
@audited("queue.pause", target="task_type")
async def pause(
    framework: AnyFramework, task_type: TypeName, reason: Reason = None, drain: Drain = False, as_json: Json = False
) -> None:
    """Stop all workers from starting tasks of a type, within two seconds. Running tasks continue."""
    queues = framework.services.queues
    in_force = await queues.pause(task_type, by=operator_name(), reason=reason)
    if in_force.reason != reason:
        before = f"{in_force.by} paused it before ({in_force.reason or 'without a reason'})"
        note(f"{before}; that pause stays, and the first resume ends it.")
    if drain:
        note(f"{task_type} is paused. Waiting until none of its tasks is running ...")
        await asyncio.sleep(_PAUSE_SPREAD_SECONDS)
        while await _may_be_running(framework, task_type):  # noqa: ASYNC110 - another process ends it
            await asyncio.sleep(_POLL_SECONDS)
    if as_json:
        print_json(_view(await queues.get(task_type)))
    else:
        say(f"{task_type} is paused{', and none of its tasks is running' if drain else ''}.")
        note(f"To resume it: taskframework queues resume {task_type}")


@app.command()
@on_store
@audited("queue.resume", target="task_type")
async def resume(framework: AnyFramework, task_type: TypeName, as_json: Json = False) -> None:
    """Let tasks of a type start again, in all workers within two seconds."""
    ended_pause = await framework.services.queues.resume(task_type)
    queue = await framework.services.queues.get(task_type)
    if as_json:
        print_json(_view(queue))
    else:
        say(f"{task_type} is resumed." if ended_pause is not None else f"{task_type} was not paused.")


async def _may_be_running(framework: AnyFramework, task_type: str) -> bool:
    """Whether a task of the type runs. While nobody can tell, the wait goes on: the pause is in force all the same."""
    try:
        return (await framework.services.queues.get(task_type)).is_running
    except (StoreUnavailableError, ApiUnavailableError) as error:
        note(f"{error.message} Still waiting; the pause is in force.")
        return True


def _row(queue: Queue, now: datetime) -> tuple[Text, ...]:
    traffic = queue.traffic.of_type(queue.task_type)
    oldest = "-" if traffic.oldest_waiting_at is None else ago(traffic.oldest_waiting_at, now)
    rates = f"{traffic.submitted_per_second:.3g}/s", f"{traffic.finished_per_second:.3g}/s"
    running = f"{traffic.running:,}{'+' * queue.traffic.is_running_bounded}"
    retrying = f"{traffic.retrying:,}{'+' * traffic.is_bounded}"
    cells = (queue.task_type, _waiting_text(queue), oldest, running, retrying, *rates)
    return *map(Text, cells), _pause_text(queue)


def _waiting_text(queue: Queue) -> str:
    """How many tasks wait; and in which lanes, if not only in the normal one."""
    lanes = {lane: queue.traffic.of_lane(queue.task_type, lane) for lane in LANES}
    total = sum(lanes.values(), LaneTraffic())
    if total.waiting == lanes[Priority.NORMAL].waiting:
        return _number_text(total)
    in_lanes = ", ".join(f"{lane} {_number_text(seen)}" for lane, seen in lanes.items() if seen.waiting)
    return f"{_number_text(total)} ({in_lanes})"


def _number_text(seen: LaneTraffic) -> str:
    return f"{seen.waiting:,}{'+' * seen.is_bounded}"


def _pause_text(queue: Queue) -> Text:
    pause = queue.pause
    if pause is None:
        return Text("-")
    reason = f": {printable(pause.reason)}" if pause.reason else ""
    return Text(f"by {pause.by} at {rfc3339(pause.at)}{reason}", style="yellow")


def _view(queue: Queue) -> dict[str, object]:
    """The view without the fields that only a process with a broker knows."""
    return {name: value for name, value in queue.view().items() if name != "messages"}
