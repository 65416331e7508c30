"""`schedules`: create, show, change, delete, run now, pause and resume."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Annotated, Any
from uuid import uuid4

import typer
from rich.text import Text

from taskframework.cli.options import Cursor, Json, Limit, choice_option
from taskframework.cli.output import ago, as_json_text, facts, out, print_json, printable, say
from taskframework.cli.reading import read_json
from taskframework.cli.render import print_next_step, print_page, print_rows, shorten, status_text
from taskframework.cli.store import AnyFramework, audited, on_store
from taskframework.cli.submit import Type
from taskframework.durations import format_duration
from taskframework.errors import ApiUnavailableError, StoreUnavailableError
from taskframework.model.message import rfc3339
from taskframework.model.schedules import Missed, Overlap, Schedule
from taskframework.model.status import TaskStatus
from taskframework.model.view import public_view
from taskframework.operations.schedules import SeenSchedule, schedule_view
from taskframework.submission.schedules import ScheduleDefinition, parse_definition

app = typer.Typer(no_args_is_help=True, help="Schedules: submit a task regularly, by cron or at an interval.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule's name.")]
Parameters = Annotated[
    str, typer.Argument(metavar="JSON", help="Parameters of each task; - reads standard input, @FILE a file.")
]
Cron = Annotated[str | None, typer.Option("--cron", metavar="CRON", help="When, such as '30 2 * * MON-FRI'.")]
Every = Annotated[str | None, typer.Option("--every", metavar="TIME", help="Or an interval, such as 15m.")]
Timezone = Annotated[str | None, typer.Option("--timezone", metavar="ZONE", help="Time zone of --cron (default UTC).")]
MissedRuns = Annotated[
    Missed | None,
    choice_option("--missed", Missed, "Which runs to make up for after a downtime: none, the last (default), or all."),
]
Overlapping = Annotated[
    Overlap | None,
    choice_option(
        "--overlap", Overlap, "If the previous task is still running: run too (default), skip, or cancel it."
    ),
]
Jitter = Annotated[
    str | None, typer.Option("--jitter", metavar="TIME", help="Delay each run by a random time up to this.")
]
User = Annotated[str | None, typer.Option("--user", metavar="NAME", help="Owner of the tasks (default: scheduler).")]
NewType = Annotated[str | None, typer.Option("--type", metavar="TYPE", help="New task type.")]
NewParameters = Annotated[
    str | None,
    typer.Option("--parameters", metavar="JSON", help="New parameters; - reads standard input, @FILE a file."),
]
Key = Annotated[
    str | None,
    typer.Option("--key", metavar="KEY", help="Idempotency key: a second run with the same key is the same run."),
]


@app.command("list")
@on_store
async def list_schedules(
    framework: AnyFramework, limit: Limit = 20, cursor: Cursor = None, as_json: Json = False
) -> None:
    """List the schedules by name, including those from the settings."""
    page = await framework.services.schedules.list_schedules(limit=limit, after=cursor)
    show = partial(_print_all, framework.services.store.now())
    nothing = "No schedules. To create one: taskframework schedules create NAME TYPE JSON --cron CRON"
    print_page(page, show, SeenSchedule.view, as_json=as_json, nothing=nothing)


@app.command()
@on_store
async def show(framework: AnyFramework, name: Name, as_json: Json = False) -> None:
    """Show one schedule, its last run and its next ones."""
    await _print_schedule(framework, await framework.services.schedules.get(name), "", as_json)


def _requires_one_rule(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command ask for `--cron` or `--every` before it opens the store."""

    @functools.wraps(command)
    def check(**arguments: Any) -> None:
        if (arguments["cron"] is None) == (arguments["every"] is None):
            raise typer.BadParameter("Give either --cron or --every.")
        command(**arguments)

    return check


@app.command()
@_requires_one_rule
@on_store
@audited("schedule.create", target="name")
async def create(
    framework: AnyFramework,
    name: Name,
    task_type: Type,
    parameters: Parameters = "null",
    cron: Cron = None,
    every: Every = None,
    timezone: Timezone = None,
    missed: MissedRuns = None,
    overlap: Overlapping = None,
    jitter: Jitter = None,
    user: User = None,
    as_json: Json = False,
) -> None:
    """Create a schedule. A worker that executes TYPE must have started on this store before."""
    given = {"task_type": task_type, "parameters": read_json(parameters), "cron": cron, "every": every}
    given |= {"timezone": timezone, "missed": missed, "overlap": overlap, "jitter": jitter, "user_id": user}
    created = await framework.services.schedules.create(name, _definition(given))
    await _print_schedule(framework, created, f"Schedule {name} is created.", as_json)


@app.command()
@on_store
@audited("schedule.put", target="name")
async def update(
    framework: AnyFramework,
    name: Name,
    task_type: NewType = None,
    parameters: NewParameters = None,
    cron: Cron = None,
    every: Every = None,
    timezone: Timezone = None,
    missed: MissedRuns = None,
    overlap: Overlapping = None,
    jitter: Jitter = None,
    user: User = None,
    as_json: Json = False,
) -> None:
    """Change only the given parts of a schedule. Its next run keeps its time, unless the rule itself changes."""
    given = {"task_type": task_type, "cron": cron, "every": every, "timezone": timezone, "missed": missed}
    given |= {"overlap": overlap, "jitter": jitter, "user_id": user}
    if parameters is None and not _without_none(given):
        raise typer.BadParameter("Give at least one option that changes the schedule.")
    operations = framework.services.schedules
    current = schedule_view(await operations.get(name))
    if cron is not None or every is not None:
        current |= {"cron": None, "every": None}
    if parameters is not None:
        current["parameters"] = read_json(parameters)
    # Without the pause: what somebody pauses or resumes at the same moment must stay so.
    kept = {key: current[key] for key in ScheduleDefinition.model_fields if key != "is_paused"}
    changed = kept | _without_none(given)
    await _print_schedule(
        framework, await operations.put(name, _definition(changed)), f"Schedule {name} is changed.", as_json
    )


@app.command()
@on_store
@audited("schedule.delete", target="name")
async def delete(framework: AnyFramework, name: Name, as_json: Json = False) -> None:
    """Delete a schedule. The tasks that it has submitted are kept."""
    await framework.services.schedules.delete(name)
    if as_json:
        print_json({"name": name, "deleted": True})
    else:
        say(f"Schedule {name} is deleted.")


@app.command()
@on_store
@audited("schedule.run", target="name")
async def run(framework: AnyFramework, name: Name, key: Key = None, as_json: Json = False) -> None:
    """Submit its task now, even if the previous one is still running or the schedule is paused."""
    if key == "":  # such as that of a variable without a value: a repetition would be another run
        raise typer.BadParameter("the key is empty; give one, or leave the option out", param_hint="--key")
    key = key or f"cli-{uuid4()}"
    try:
        submission = await framework.services.schedules.run(name, key=key)
    except (StoreUnavailableError, ApiUnavailableError) as error:
        error.hint = f"{error.hint} It may have run: to repeat it safely, give --key {key} too."
        raise
    if as_json:
        print_json(public_view(submission.task))
    else:
        done = "Submitted" if submission.is_new else "Submitted before:"
        say(f"{done} {submission.task.task_type} {submission.task.task_id}")
        print_next_step(submission.task)


@app.command()
@on_store
@audited("schedule.pause", target="name")
async def pause(framework: AnyFramework, name: Name, as_json: Json = False) -> None:
    """Pause a schedule until it is resumed."""
    paused = await framework.services.schedules.pause(name)
    await _print_schedule(framework, paused, f"Schedule {name} is paused.", as_json)


@app.command()
@on_store
@audited("schedule.resume", target="name")
async def resume(framework: AnyFramework, name: Name, as_json: Json = False) -> None:
    """Resume a schedule; it continues with its next run from now on."""
    resumed = await framework.services.schedules.resume(name)
    await _print_schedule(framework, resumed, f"Schedule {name} is resumed.", as_json)


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _definition(values: dict[str, Any]) -> ScheduleDefinition:
    return parse_definition(_without_none(values))


async def _print_schedule(framework: AnyFramework, schedule: Schedule, done: str, as_json: bool) -> None:
    view = await framework.services.schedules.view(schedule)
    if as_json:
        print_json(view)
        return
    if done:
        say(done)
    status = (view["last_run"] or {}).get("status")
    listed = SeenSchedule(schedule, None if status is None else TaskStatus(status))
    out().print(facts(_facts(listed, view["next_runs"])))


def _facts(listed: SeenSchedule, runs: list[str]) -> Iterator[tuple[str, str | Text]]:
    schedule = listed.schedule
    yield "Schedule", Text(schedule.name, style="bold")
    yield "When", _when(schedule)
    yield "Type", schedule.task_type
    yield "Parameters", as_json_text(schedule.parameters)
    yield "User", schedule.user_id
    yield "Missed runs", str(schedule.missed)
    yield "Overlap", str(schedule.overlap)
    if schedule.jitter:
        yield "Jitter", format_duration(schedule.jitter)
    if schedule.is_from_settings:
        yield "Made by", "the settings"
    yield "Next runs", "\n".join(runs) or Text("none, it is paused", style="yellow")
    if schedule.last_run:
        last = f"{rfc3339(schedule.last_run.at)}, task {schedule.last_run.task_id}"
        yield "Last run", _with_status(last, listed)
    if schedule.problem:
        yield "Problem", Text(f"{rfc3339(schedule.problem.at)}: {printable(schedule.problem.message)}", style="red")


def _with_status(last: str, listed: SeenSchedule) -> Text:
    return Text.assemble(last, "  ", status_text(listed.last_status)) if listed.last_status else Text(last)


def _when(schedule: Schedule) -> str:
    if schedule.every is not None:
        return f"every {format_duration(schedule.every)}"
    return f"{schedule.cron}  {schedule.timezone}"


def _print_all(now: datetime, listed: Sequence[SeenSchedule]) -> None:
    rows = []
    for item in listed:
        schedule = item.schedule
        next_run = Text("paused", style="yellow") if schedule.is_paused else Text(ago(schedule.due_at, now))
        last = _with_status(ago(schedule.last_run.at, now) if schedule.last_run else "never", item)
        problem = Text(shorten(schedule.problem.message) if schedule.problem else "", style="red")
        rows.append((Text(schedule.name), Text(_when(schedule)), Text(schedule.task_type), next_run, last, problem))
    print_rows(("Schedule", "When", "Type", "Next run", "Last run", "Problem"), rows)
