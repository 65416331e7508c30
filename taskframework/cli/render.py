"""How tasks and dead letters look to a person."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from rich.table import Table
from rich.text import Text

from taskframework.cli.output import ago, as_json_text, duration, facts, table
from taskframework.model.message import rfc3339
from taskframework.model.status import REPLAYABLE, TaskStatus
from taskframework.model.task import HistoryEntry, Task
from taskframework.operations.dead_letters import DeadLetter

_COLOURS = {
    TaskStatus.RUNNING: "cyan",
    TaskStatus.RETRYING: "yellow",
    TaskStatus.COMPLETED: "green",
    TaskStatus.COMPLETED_WITH_ERRORS: "yellow",
    TaskStatus.FAILED: "red",
    TaskStatus.DEAD_LETTER: "red",
    TaskStatus.CANCELLED: "magenta",
}
_LONGEST_CELL = 100


def status_text(status: TaskStatus) -> Text:
    return Text(status.value, style=_COLOURS.get(status, ""))


def progress_text(progress: object) -> str:
    """`{"percent": 50, "step": "reading"}` as `50 %, step reading`; anything else as JSON."""
    if not isinstance(progress, dict) or not isinstance(percent := progress.get("percent"), int | float):
        return _shortened(as_json_text(progress))
    rest = [f"{name} {value}" for name, value in progress.items() if name != "percent"]
    return _shortened(", ".join([f"{percent:g} %", *rest]))


def task_table(tasks: Iterable[Task], now: datetime) -> Table:
    """Tasks below each other, one line each."""
    made = table("Task", "Type", "Status", "Attempt", "Submitted", "")
    made.columns[0].no_wrap = made.columns[2].no_wrap = made.columns[4].no_wrap = True
    made.columns[5].overflow = "ellipsis"
    made.columns[5].no_wrap = True
    for task in tasks:
        attempt = f"{task.attempts}/{task.max_attempts}"
        remark = Text(_remark(task, now))
        made.add_row(
            task.task_id, task.task_type, status_text(task.status), attempt, ago(task.created_at, now), remark
        )
    return made


def task_facts(task: Task) -> Table:
    """Everything about one task but its history."""
    rows: list[tuple[str, str | Text]] = [
        ("Task", Text(task.task_id, style="bold")),
        ("Type", task.task_type),
        ("Status", status_text(task.status)),
        ("Attempt", f"{task.attempts} of {task.max_attempts}"),
        ("User", task.user_id),
        ("Priority", str(task.priority)),
        ("Submitted", rfc3339(task.created_at)),
    ]
    if task.generation:
        rows.append(("Generation", f"{task.generation} (queued anew so often)"))
    if task.started_at and task.finished_at:
        rows.append(("Finished", f"{rfc3339(task.finished_at)}, after {duration(task.finished_at - task.started_at)}"))
    elif task.status in (TaskStatus.QUEUED, TaskStatus.RETRYING) and task.not_before > task.created_at:
        rows.append(("Not before", rfc3339(task.not_before)))
    if task.deadline:
        rows.append(("Deadline", rfc3339(task.deadline)))
    if task.lease:
        rows.append(("Worker", task.lease.worker_id))
    if task.cancel:
        rows.append(("Cancel asked", f"by {task.cancel.by}" + (f": {task.cancel.reason}" if task.cancel.reason else "")))
    rows.append(("Parameters", as_json_text(task.parameters)))
    if task.progress is not None and not task.status.is_final:
        rows.append(("Progress", progress_text(task.progress)))
    if task.status is TaskStatus.COMPLETED:
        rows.append(("Result", as_json_text(task.result)))
    if task.error:
        rows.append(("Error", Text(f"{task.error.type}: {task.error.message}", style="red")))
    return facts(rows)


def timeline(task: Task) -> Table:
    """The history, from the submission on."""
    made = Table.grid(padding=(0, 2, 0, 0))
    for entry in task.history:
        made.add_row(*timeline_row(entry, task.created_at))
    return made


def timeline_row(entry: HistoryEntry, since: datetime) -> tuple[Text, Text, Text, Text]:
    """One entry: when, after how long, what, and what there is to say about it."""
    after = entry.at - since
    name = "COMPLETED" if entry.type == "completed" else entry.type.upper()
    colour = _COLOURS.get(TaskStatus(name), "") if name in TaskStatus.__members__ else ""
    said = [f"attempt {entry.attempt}"] if entry.attempt else []
    if entry.worker_id:
        said.append(entry.worker_id)
    if isinstance(entry.data, dict):
        said += [f"{key} {value}" for key, value in entry.data.items() if value is not None]
    return (
        Text(rfc3339(entry.at), style="dim"),
        Text(f"+{duration(max(after, timedelta(0)))}", style="dim", justify="right"),
        Text(entry.type, style=colour),
        Text(", ".join(said), style="dim"),
    )


def next_step(task: Task) -> str:
    """What a person may do about the task now; empty when there is nothing."""
    if task.status in REPLAYABLE:
        return f"Queue it anew: taskframework tasks retry {task.task_id}"
    return "" if task.status.is_final else f"Follow it: taskframework tasks watch {task.task_id}"


def letter_table(letters: Iterable[DeadLetter], now: datetime) -> Table:
    """Dead letters below each other, one line each."""
    made = table("Dead letter", "Kind", "Type", "Status", "When", "Reason")
    made.columns[0].no_wrap = made.columns[4].no_wrap = True
    made.columns[5].overflow = "ellipsis"
    made.columns[5].no_wrap = True
    for letter in letters:
        view = letter.view()
        status = status_text(TaskStatus(view["status"])) if view["status"] else Text("")
        made.add_row(
            letter.id, view["kind"], view["task_type"] or "", status, ago(letter.at, now), Text(_reason(view))
        )
    return made


def _reason(view: dict[str, Any]) -> str:
    error = view["error"]
    return _shortened(f"{error['type']}: {error['message']}" if error else view["reason"])


def _remark(task: Task, now: datetime) -> str:
    if task.error is not None:
        return _shortened(f"{task.error.type}: {task.error.message}")
    if task.progress is not None and not task.status.is_final:
        return progress_text(task.progress)
    if task.status is TaskStatus.QUEUED and task.not_before > now:
        return f"starts {ago(task.not_before, now)}"
    return ""


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_CELL else line[: _LONGEST_CELL - 1] + "…"
