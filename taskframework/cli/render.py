"""Prints tasks, dead letters and events for people."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Any, TypeVar

from rich.table import Table
from rich.text import Text

from taskframework.cli.output import ago, as_json_text, facts, note, out, print_json, printable
from taskframework.model.message import rfc3339
from taskframework.model.query import Page
from taskframework.model.status import CLAIMABLE, REPLAYABLE, SUCCEEDED, TaskStatus
from taskframework.model.task import Task
from taskframework.model.task_fields import HistoryEntry, Subtasks, TaskError
from taskframework.model.wording import duration_text, pluralize
from taskframework.operations.explain import Explanation
from taskframework.operations.letter_views import DeadLetter

Entry = TypeVar("Entry")

_COLOURS = {
    "RUNNING": "cyan",
    "WAITING": "blue",
    "RESUMED": "blue",
    "COMPLETED_WITH_ERRORS": "yellow",
    "STARTED": "cyan",
    "RETRYING": "yellow",
    "RELEASED": "yellow",
    "COMPLETED": "green",
    "FAILED": "red",
    "DEAD_LETTER": "red",
    "CANCELLED": "magenta",
    "CANCEL_REQUESTED": "magenta",
}
_MAX_CELL_LENGTH = 100  # characters


def status_text(status: str) -> Text:
    """A status, or the type of an event, in its colour."""
    return Text(status, style=_COLOURS.get(status.strip().upper(), ""))


def error_text(error: TaskError) -> str:
    """The kind of an error, without its module, and its message."""
    return kind_and_message(error.type, error.message)


def kind_and_message(kind: str, message: str) -> str:
    """`error_text` of an error that is not a `TaskError`."""
    return printable(f"{kind.rpartition('.')[2]}: {message}")


def result_text(result: Any, error: Mapping[str, Any] | None) -> str:
    """What a task has returned, or why it failed, on one line."""
    return shorten(as_json_text(result) if error is None else kind_and_message(error["type"], error["message"]))


def progress_text(progress: object) -> str:
    """`{"percent": 50, "step": "reading"}` as `50 %, step reading`; anything else as JSON."""
    if not isinstance(progress, dict) or not isinstance(percent := progress.get("percent"), int | float):
        return shorten(as_json_text(progress))
    rest = [f"{name} {value}" for name, value in progress.items() if name != "percent"]
    return shorten(", ".join([f"{percent:g} %", *rest]))


def counts_text(subtasks: Subtasks) -> str:
    """`12 of 20 sub-tasks done, 1 failed`."""
    planned = "an unknown number of sub-tasks" if subtasks.planned is None else pluralize(subtasks.planned, "sub-task")
    bad = {"failed": subtasks.failed, "cancelled": subtasks.cancelled}
    return ", ".join(
        [
            f"{subtasks.done:,} of {planned} done",
            *(f"{count:,} {name}" for name, count in bad.items() if count),
        ]
    )


def print_page(
    page: Page[Entry],
    show: Callable[[Sequence[Entry]], None],
    view: Callable[[Entry], object],
    *,
    as_json: bool,
    nothing: str,
) -> None:
    """Print a page of a list, and how to get the next one.

    Args:
        page: the page.
        show: prints the entries for people.
        view: converts an entry to plain JSON, for programs.
        as_json: whether to print for programs.
        nothing: the text for a page without entries.
    """
    if as_json:
        print_json({"items": [view(entry) for entry in page.items], "next_cursor": page.next_cursor})
        return
    if page.items:
        show(page.items)
    else:
        note(nothing)
    if page.next_cursor:
        note(f"More: --cursor {shlex.quote(page.next_cursor)}")  # that of a stream has a key that a user chose


def print_tasks(tasks: Iterable[Task], now: datetime) -> None:
    """Print tasks below each other."""
    rows = []
    for task in tasks:
        attempt, age = Text(f"{task.attempts}/{task.max_attempts}"), Text(ago(task.created_at, now))
        identity = Text(task.task_id), Text(task.task_type), status_text(task.status)
        rows.append((*identity, attempt, age, Text(_remark(task, now))))
    print_rows(("Task", "Type", "Status", "Attempt", "Submitted", "Remark"), rows)


def print_letters(letters: Iterable[DeadLetter], now: datetime) -> None:
    """Print dead letters below each other."""
    rows = []
    for letter in letters:
        view = letter.view()
        status = status_text(view["status"]) if view["status"] else Text("message", style="yellow")
        identity = Text(letter.id), Text(printable(view["task_type"] or "")), status
        rows.append((*identity, Text(ago(letter.at, now)), Text(shorten(_reason(letter)))))
    print_rows(("Dead letter", "Type", "Status", "Ended", "Reason"), rows)


def task_facts(task: Task) -> Table:
    """All facts about one task except its history."""
    return facts(chain(_state_facts(task), _content_facts(task)))


def print_task(task: Task) -> None:
    """Print all facts about one task, with its history."""
    out().print(task_facts(task))
    out().print()
    print_timeline(task)
    print_next_step(task)


def print_explanation(explanation: Explanation) -> None:
    """Print why a task is not running, and what would change it."""
    cause, console = explanation.cause, out()
    line = status_text(explanation.task.status).append(f"  {cause.code}", style="bold default")
    console.print(line)
    console.print(Text(printable(cause.because)), soft_wrap=True)
    console.print(Text(printable(cause.change), style="dim"), soft_wrap=True)


def print_timeline(task: Task, after: int = 0) -> int:
    """Print the history after a sequence, and return the last sequence printed."""
    for entry in task.history:
        if entry.sequence > after:
            out().print(_timeline_line(entry, task.created_at), soft_wrap=True)
    return task.sequence


def print_outcome(task: Task) -> None:
    """Print how a final task ended."""
    console = out()
    line = status_text(task.status)
    if task.finished_at:
        line.append(f" after {duration_text(task.finished_at - _queued_at(task))}", style="default")
    if task.attempts > 1:
        line.append(f", attempt {task.attempts}", style="default")
    console.print(line)
    if task.status in SUCCEEDED:
        console.print(Text(as_json_text(task.result)), soft_wrap=True)
    elif task.error is not None:
        console.print(Text(error_text(task.error), style="red"), soft_wrap=True)
    print_next_step(task)


def print_next_step(task: Task) -> None:
    """Print what a person may do about the task now, if anything."""
    if task.error is not None and task.error.code == "subtasks_failed":
        note(f"See which failed, and why: taskframework tasks subtasks {task.task_id}")
    if task.status in REPLAYABLE and task.error is not None and task.error.code == "invalid_parameters":
        note(f"To queue it again with other parameters: taskframework dlq edit {task.task_id} JSON")
    elif task.status in REPLAYABLE:
        note(f"To queue it again: taskframework tasks retry {task.task_id}")
    elif not task.status.is_final:
        if task.status is not TaskStatus.RUNNING:
            note(f"See why it is waiting: taskframework tasks explain {task.task_id}")
        note(f"To follow it: taskframework tasks watch {task.task_id}")


_FAILURES = ("retrying", "failed", "dead_letter")


def event_line(event: dict[str, Any]) -> Text:
    """An external event on one line."""
    name, data = str(event["type"]).removeprefix("task."), event["data"]
    line = Text(f"{event['time']}  ", style="dim")
    line.append_text(status_text(f"{name:<16}")).append(f"  {data['task_type']}  {event['subject']}", style="default")
    # The data is the task at the time of publication: an event from before the failure may have its error, too.
    if (error := data.get("error")) is not None and name in _FAILURES:
        line.append("  ").append(shorten(f"{error['type'].rpartition('.')[2]}: {error['message']}"), style="red")
    elif name == "progress":
        line.append(f"  {progress_text(data['progress'])}", style="default")
    elif data["attempt"] > 1:
        line.append(f"  attempt {data['attempt']}", style="dim")
    return line


def _state_facts(task: Task) -> Iterator[tuple[str, str | Text]]:
    yield "Task", Text(task.task_id, style="bold")
    yield "Type", task.task_type
    yield "Status", status_text(task.status)
    yield "Attempt", f"{task.attempts} of {task.max_attempts}"
    if task.generation:
        yield "Generation", f"{task.generation} (times it was queued again)"
    yield "User", task.user_id
    yield "Priority", str(task.priority)
    yield "Submitted", rfc3339(task.created_at)
    if task.finished_at:
        finished = f"{rfc3339(task.finished_at)}, after {duration_text(task.finished_at - _queued_at(task))}"
        if task.started_at:
            finished += f"; the last attempt began {duration_text(task.finished_at - task.started_at)} before that"
        yield "Finished", finished
    if task.deadline:
        yield "Deadline", rfc3339(task.deadline)
    yield from _driver_facts(task)
    if task.cancel:
        cancel_text = f"by {task.cancel.by} at {rfc3339(task.cancel.at)}"
        yield "Cancel asked", cancel_text + (f": {task.cancel.reason}" if task.cancel.reason else "")


def _driver_facts(task: Task) -> Iterator[tuple[str, str]]:
    """The drivers of the task, and the counts of their work so far: docs/operations/stuck-task.md reads these."""
    if task.status in CLAIMABLE:
        yield "Not before", rfc3339(task.not_before)
        yield "Dispatches", str(task.dispatches)
    if task.subtasks:
        yield "Sub-tasks", counts_text(task.subtasks)
    if task.waits_for:
        until = f" until {rfc3339(task.waits_for.until)}" if task.waits_for.until else ""
        yield "Waits for", f"the signal {task.waits_for.name}{until}"
    if task.next_dispatch_at:
        yield "Next dispatch", rfc3339(task.next_dispatch_at)
    if task.lease:
        yield "Worker", task.lease.worker_id
        yield "Lease until", rfc3339(task.lease.expires_at)
    if task.fencing_token:
        yield "Fencing token", str(task.fencing_token)
    counts = {"Crashes": task.crashes, "Releases": task.releases, "No handler": task.no_handler}
    yield from ((name, str(count)) for name, count in counts.items() if count)


def _content_facts(task: Task) -> Iterator[tuple[str, str | Text]]:
    yield "Parameters", as_json_text(task.parameters)
    if task.progress is not None and not task.status.is_final:
        yield "Progress", progress_text(task.progress)
    if task.steps:
        yield "Steps done", ", ".join(entry.step for entry in task.steps)
    if task.status in SUCCEEDED:
        yield "Result", as_json_text(task.result)
    if task.error:
        yield "Error" if task.status.is_final else "Last error", Text(error_text(task.error), style="red")
        if task.error.traceback:
            yield "", Text(printable(task.error.traceback.rstrip()), style="dim")


def _timeline_line(entry: HistoryEntry, since: datetime) -> Text:
    line = Text(f"{rfc3339(entry.at)}  {'+' + duration_text(entry.at - since):>10}  ", style="dim")
    line.append_text(status_text(f"{entry.type:<16}"))
    details = [f"attempt {entry.attempt}"] if entry.attempt else []
    if entry.worker_id is not None and entry.type == "started":
        details.append(f"worker {entry.worker_id}")
    if isinstance(entry.data, dict):
        details += [f"{key} {value}" for key, value in entry.data.items() if value is not None]
    return line.append(printable("  " + ", ".join(details)).rstrip(), style="dim")


def print_rows(columns: Sequence[str], rows: Sequence[Sequence[Text]]) -> None:
    """Print rows in columns. A last cell that does not fit on its line goes below it, whole."""
    console = out()
    widths = [max(len(name), *(row[column].cell_len for row in rows)) for column, name in enumerate(columns[:-1])]
    header = [Text(name, style="bold") for name in columns]
    for number, row in enumerate((header, *rows)):
        line = Text()
        for cell, width in zip(row, widths, strict=False):
            line.append_text(cell).append(" " * (width - cell.cell_len + 2))
        last = row[-1]
        if number and last and line.cell_len + last.cell_len > console.width:
            line.append("\n    ")
        line.append_text(last).rstrip()
        console.print(line, soft_wrap=True)


def _queued_at(task: Task) -> datetime:
    """The time of the submission, or of the last replay."""
    beginnings = [entry.at for entry in task.history if entry.type in ("submitted", "replayed")]
    return beginnings[-1] if beginnings else task.created_at


def _remark(task: Task, now: datetime) -> str:
    """The most useful fact about the task now. The error of a running task is left out: it is of an earlier attempt."""
    if task.status is TaskStatus.CANCELLED and task.cancel is not None:
        reason = f": {task.cancel.reason}" if task.cancel.reason else ""
        return shorten(f"cancelled by {task.cancel.by}{reason}")
    if task.error is not None and task.status not in (TaskStatus.COMPLETED, TaskStatus.RUNNING):
        return shorten(error_text(task.error))
    if task.progress is not None and not task.status.is_final:
        return progress_text(task.progress)
    return f"starts {ago(task.not_before, now)}" if task.status in CLAIMABLE and task.not_before > now else ""


def _reason(letter: DeadLetter) -> str:
    entry = letter.entry
    if isinstance(entry, Task):
        return error_text(entry.error) if entry.error else entry.status.value
    return entry.reason


def shorten(text: str) -> str:
    line = " ".join(printable(text).split())
    return line if len(line) <= _MAX_CELL_LENGTH else line[: _MAX_CELL_LENGTH - 1] + "…"
