"""`tasks`: list and show tasks, follow one, cancel it, signal it, queue it again."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from taskframework.cli.bulk_actions import (
    Background,
    DryRun,
    Rate,
    TasksWhere,
    note_unknown_type,
    run_bulk_action,
    tasks_where,
    validates_choice,
)
from taskframework.cli.options import Cursor, Json, Limit, Reopen, TaskId, TaskReason, or_bad_parameter, refuse_empty
from taskframework.cli.output import print_json, print_json_line, say
from taskframework.cli.reading import STATUSES, parse_status, past_time_option, read_json
from taskframework.cli.render import (
    print_explanation,
    print_next_step,
    print_outcome,
    print_page,
    print_task,
    print_tasks,
    print_timeline,
)
from taskframework.cli.store import AnyFramework, audited, on_store, operator_name
from taskframework.cli.watching import follow
from taskframework.model.action_filters import Action
from taskframework.model.query import Page, TaskFilter
from taskframework.model.scope import EVERYONE, Scope
from taskframework.model.status import TaskStatus
from taskframework.model.task import Task
from taskframework.model.view import public_view
from taskframework.stores.base import SEARCH_PAGE_SIZE

app = typer.Typer(no_args_is_help=True, help="Tasks: list, show, explain, follow, cancel, signal, retry.")

Status = Annotated[
    TaskStatus | None,
    typer.Option(
        "--status",
        parser=or_bad_parameter(parse_status),
        metavar="STATUS",
        help=f"Only tasks in this status: {STATUSES}.",
    ),
]
TypeName = Annotated[str | None, typer.Option("--type", metavar="TYPE", help="Only tasks of this type.")]
StreamName = Annotated[str | None, typer.Option("--stream", metavar="KEY", help="Only tasks of this stream.")]
UserName = Annotated[str | None, typer.Option("--user", metavar="NAME", help="Only tasks of this user.")]


After = Annotated[datetime | None, past_time_option("--after", "Only tasks submitted since a time, or since 10m.")]
Before = Annotated[datetime | None, past_time_option("--before", "Only tasks submitted before that.")]
FinishedAfter = Annotated[
    datetime | None, past_time_option("--finished-after", "Only tasks that ended since a time, or since 10m.")
]
FinishedBefore = Annotated[datetime | None, past_time_option("--finished-before", "Only tasks that ended before that.")]
Correlation = Annotated[
    str | None, typer.Option("--correlation-id", metavar="ID", help="Only tasks with this correlation id.")
]
IdempotencyKey = Annotated[
    str | None, typer.Option("--idempotency-key", metavar="KEY", help="Only tasks with this idempotency key.")
]
WaitsForLimit = Annotated[
    str | None,
    typer.Option(
        "--waits-for-limit",
        metavar="NAME[/KEY]",
        callback=refuse_empty,
        help="Only tasks that wait for their turn in this limit.",
    ),
]
ErrorText = Annotated[
    str | None,
    typer.Option(
        "--error", metavar="TEXT", callback=refuse_empty, help="Only tasks whose error message contains this."
    ),
]
Fingerprint = Annotated[
    str | None,
    typer.Option(
        "--fingerprint", metavar="TEXT", callback=refuse_empty, help="Only tasks whose error has this fingerprint."
    ),
]
SignalName = Annotated[str, typer.Argument(metavar="NAME", help="The signal's name.")]
Payload = Annotated[
    str, typer.Argument(metavar="JSON", help="The signal's payload; - reads standard input, @FILE a file.")
]
Key = Annotated[
    str | None,
    typer.Option("--key", metavar="KEY", help="Idempotency key: a second signal with the same key is the same signal."),
]
OneTask = Annotated[str | None, typer.Argument(metavar="ID", help="The task's id.")]


@app.command("list")
@on_store
async def list_tasks(
    framework: AnyFramework,
    status: Status = None,
    task_type: TypeName = None,
    stream: StreamName = None,
    user: UserName = None,
    after: After = None,
    before: Before = None,
    finished_after: FinishedAfter = None,
    finished_before: FinishedBefore = None,
    correlation_id: Correlation = None,
    idempotency_key: IdempotencyKey = None,
    waits_for_limit: WaitsForLimit = None,
    error: ErrorText = None,
    fingerprint: Fingerprint = None,
    limit: Limit = 20,
    cursor: Cursor = None,
    as_json: Json = False,
) -> None:
    """List tasks, the newest first."""
    wanted = TaskFilter(
        status=status,
        task_type=task_type,
        stream=stream,
        created_after=after,
        created_before=before,
        finished_after=finished_after,
        finished_before=finished_before,
        correlation_id=correlation_id,
        idempotency_key=idempotency_key,
        waits_for_limit=waits_for_limit,
        error=error,
        fingerprint=fingerprint,
    )
    scope = EVERYONE if user is None else Scope.of(user)
    page = await framework.services.tasks.list_tasks(scope, wanted, limit=limit, cursor=cursor)
    if not page.items:
        await note_unknown_type(framework, task_type)
    is_all = (scope, wanted) == (EVERYONE, TaskFilter())
    more = "" if page.next_cursor is None else f" among the {SEARCH_PAGE_SIZE:,} that were searched"
    _print_page(framework, page, as_json, "No tasks." if is_all else f"No such tasks{more}.")


@app.command()
@on_store
async def show(framework: AnyFramework, task_id: TaskId, as_json: Json = False) -> None:
    """Show everything about one task, with its history."""
    task = await framework.get(task_id)
    if as_json:
        print_json(public_view(task))
    else:
        print_task(task)


@app.command()
@on_store
async def explain(framework: AnyFramework, task_id: TaskId, as_json: Json = False) -> None:
    """Explain why a task is not running or not finished, and what to do."""
    explanation = await framework.services.explain.explain(task_id, EVERYONE)
    if as_json:
        print_json(explanation.view())
    else:
        print_explanation(explanation)


@app.command()
@validates_choice(tasks_where, "task_id")
@on_store
@audited("task.cancel", target="task_id", details=["where", "rate"])
async def cancel(
    framework: AnyFramework,
    task_id: OneTask = None,
    where: TasksWhere = None,
    rate: Rate = None,
    dry_run: DryRun = False,
    background: Background = False,
    reason: TaskReason = None,
    as_json: Json = False,
) -> None:
    """Cancel a task, or all that --where finds: waiting tasks at once; running ones are asked to stop."""
    if (chosen := tasks_where(where, [task_id] if task_id else None)) is not None:
        await run_bulk_action(
            framework,
            Action.CANCEL,
            chosen,
            dry_run=dry_run,
            rate=rate,
            reason=reason,
            in_background=background,
            as_json=as_json,
        )
        return
    assert task_id is not None, "ids or --where"
    task = await framework.services.tasks.cancel(task_id, EVERYONE, by=operator_name(), reason=reason)
    if as_json:
        print_json(public_view(task))
    elif task.status is TaskStatus.CANCELLED:
        say(f"Task {task_id} is cancelled.")
    else:
        say(f"Task {task_id} is {task.status} and was asked to stop.")
        print_next_step(task)


@app.command()
@on_store
async def subtasks(
    framework: AnyFramework,
    task_id: TaskId,
    status: Status = None,
    limit: Limit = 20,
    cursor: Cursor = None,
    as_json: Json = False,
) -> None:
    """List the sub-tasks of a task, in the order in which they were planned."""
    page = await framework.services.tasks.subtasks(task_id, EVERYONE, limit=limit, status=status, cursor=cursor)
    _print_page(framework, page, as_json, "No sub-tasks." if status is None else "No such sub-tasks.")


@app.command()
@on_store
async def signal(
    framework: AnyFramework,
    task_id: TaskId,
    name: SignalName,
    payload: Payload = "null",
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Send a signal to a task. If the task waits for it, it continues; if not, the signal is kept."""
    task = await framework.services.tasks.signal(task_id, EVERYONE, name, read_json(payload), key=key)
    if as_json:
        print_json(public_view(task))
    else:
        say(f"Task {task_id} got the signal {name}: {_signal_effect(task)}.")
        print_next_step(task)


@app.command()
@validates_choice(tasks_where, "task_id")
@on_store
@audited("task.retry", target="task_id", details=["where", "rate"])
async def retry(
    framework: AnyFramework,
    task_id: OneTask = None,
    where: TasksWhere = None,
    rate: Rate = None,
    dry_run: DryRun = False,
    background: Background = False,
    reopen: Reopen = False,
    reason: TaskReason = None,
    as_json: Json = False,
) -> None:
    """Queue a failed, dead or cancelled task again, or all failed and dead ones that --where finds.

    A task in status RETRYING is tried again now.
    """
    if (chosen := tasks_where(where, [task_id] if task_id else None)) is not None:
        await run_bulk_action(
            framework,
            Action.RETRY,
            chosen,
            dry_run=dry_run,
            rate=rate,
            reason=reason,
            in_background=background,
            as_json=as_json,
            reopen=reopen,
        )
        return
    assert task_id is not None, "ids or --where"
    task = await framework.services.tasks.retry(task_id, EVERYONE, by=operator_name(), reopen=reopen, reason=reason)
    if as_json:
        print_json(public_view(task))
    else:
        if task.history[-1].type == "replayed":
            say(f"Task {task_id} is queued again, as generation {task.generation}.")
        else:
            say(f"Task {task_id} does not wait for the time of its retry any longer.")
        print_next_step(task)


@app.command()
@on_store
async def watch(framework: AnyFramework, task_id: TaskId, as_json: Json = False) -> None:
    """Follow a task until it ends; exit code 0 if it is COMPLETED."""
    printed = 0

    def print_change(task: Task) -> None:
        nonlocal printed
        if as_json:
            print_json_line(public_view(task))
        else:
            printed = print_timeline(task, printed)

    task = await follow(framework.handle(task_id), None, print_change)
    if not as_json:
        print_outcome(task)
    if task.status is not TaskStatus.COMPLETED:
        raise typer.Exit(1)


def _print_page(framework: AnyFramework, page: Page[Task], as_json: bool, nothing: str) -> None:
    now = framework.services.store.now()
    print_page(page, lambda tasks: print_tasks(tasks, now), public_view, as_json=as_json, nothing=nothing)


def _signal_effect(task: Task) -> str:
    """Describe the effect of a signal on its task."""
    if task.status is TaskStatus.QUEUED and any(entry.type == "resumed" for entry in task.history):
        return "it continues"
    if task.status.is_final:
        return f"it is {task.status} and got it before"
    if task.waits_for is not None:
        return f"it waits for {task.waits_for.name} and keeps this one"
    return f"it is {task.status} and keeps the signal"
