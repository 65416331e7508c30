"""`workers`: all worker processes, or the tasks that one of them runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from typing import Annotated

import typer
from rich.text import Text

from taskframework.cli.options import Cursor, Json, Limit
from taskframework.cli.output import ago
from taskframework.cli.render import print_page, print_rows
from taskframework.cli.store import AnyFramework, on_store
from taskframework.model.task import Task
from taskframework.model.view import public_view
from taskframework.operations.workers import WorkerState

WorkerId = Annotated[
    str | None,
    typer.Argument(metavar="ID", help="A worker's id: list the tasks that it is running.", show_default=False),
]


@on_store
async def workers(
    framework: AnyFramework,
    worker_id: WorkerId = None,
    limit: Limit = 20,
    cursor: Cursor = None,
    as_json: Json = False,
) -> None:
    """List the worker processes, or the tasks that one of them is running."""
    operations, now = framework.services.workers, framework.services.store.now()
    if worker_id is None:
        page = await operations.list_workers(limit=limit, after=cursor)
        nothing = "No workers. To start one: taskframework worker --app MODULE"
        print_page(page, partial(_print_workers, now), WorkerState.view, as_json=as_json, nothing=nothing)
    else:
        tasks = await operations.list_running(worker_id, limit=limit, cursor=cursor)
        nothing = "It is running no tasks."
        print_page(tasks, partial(_print_running, now), public_view, as_json=as_json, nothing=nothing)


def _print_workers(now: datetime, states: Sequence[WorkerState]) -> None:
    rows = []
    for state in states:
        presence = state.presence
        seen = Text("lost, ", style="red") if state.is_lost else Text()
        rows.append(
            (
                Text(presence.worker_id),
                # The tasks that a lost worker ran when it was last seen may run elsewhere by now.
                Text("?" if state.is_lost else f"{presence.in_flight}/{presence.concurrency}"),
                Text(presence.release),
                Text(ago(presence.started_at, now)),
                seen.append(ago(presence.seen_at, now)),
                Text(", ".join(presence.task_types)),
            )
        )
    print_rows(("Worker", "Runs", "Release", "Started", "Seen", "Types"), rows)


def _print_running(now: datetime, tasks: Sequence[Task]) -> None:
    rows = []
    for task in tasks:
        since = "" if task.started_at is None else ago(task.started_at, now)
        attempt = f"{task.attempts}/{task.max_attempts}"
        rows.append((Text(task.task_id), Text(task.task_type), Text(attempt), Text(since)))
    print_rows(("Task", "Type", "Attempt", "Began"), rows)
