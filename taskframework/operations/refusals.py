"""Why an operation on a task is refused, and what can be done instead."""

from __future__ import annotations

from taskframework.errors import ParentFinishedError, TransitionRefusedError
from taskframework.model.batches import allowed_failures, is_sealed, purpose_of_retry
from taskframework.model.message import rfc3339
from taskframework.model.status import DEAD, REPLAYABLE, TaskStatus
from taskframework.model.streams import is_serial
from taskframework.model.task import Task
from taskframework.model.waiting import went_on_without
from taskframework.model.wording import pluralize

HINT_STILL_CANCELLING = "Its sub-tasks are still being cancelled; try again in a minute."


def parent_finished_error(subtask: Task, parent: Task, hint: str | None = None) -> ParentFinishedError:
    """Return the error that says why a sub-task of an ended parent is not retried; `hint` if it cannot be reopened."""
    alone = "retry this one with `reopen` (--reopen), so that the parent waits for it again."
    whole = _retry_of(parent)
    usual = f"{whole}; or {alone}" if whole else alone.capitalize()
    return ParentFinishedError(subtask.task_id, parent.task_id, parent.status, hint=hint or usual)


def hint_if_not_reopened_for(subtask: Task, parent: Task) -> str | None:
    """Return the next step if an ended parent never waits for this sub-task again; None if it may."""
    if subtask.parent is not None and parent.subtasks is not None and subtask.parent.round != parent.subtasks.round:
        return f"The parent has had another round of sub-tasks since then. {_retry_or_submit(parent)}"
    return hint_if_never_reopened(parent)


def hint_if_deleted(parent: Task, deleted: int) -> str:
    """Return the next step for a parent or batch that has lost so many of its sub-tasks."""
    lost = f"The retention has deleted {pluralize(deleted, 'sub-task')} of task {parent.task_id}."
    if parent.batch is not None:
        return f"{lost} Submit the items again, in a new batch."
    if parent.status in REPLAYABLE:
        return f"{lost} Retry that task; it begins with new ones."
    return f"{lost} That task is {parent.status}, so it cannot be retried; submit a new one."


def hint_if_never_reopened(parent: Task) -> str | None:
    """Return the next step for a sub-task whose ended parent never waits again; None if the parent may."""
    if parent.batch is not None and not is_sealed(parent):
        return "The batch was never uploaded completely, so it is not reopened. Submit the items again, in a new batch."
    if is_serial(parent):
        return f"A parent in a serial stream cannot be reopened. {_retry_or_submit(parent, 'waits for its turn')}"
    if parent.subtasks is not None and went_on_without(parent.subtasks):
        return f"The parent went on without its sub-tasks. {_retry_or_submit(parent)}"
    if parent.subtasks is not None and parent.subtasks.plan_records > 0:
        return f"The parent ended before all of its sub-tasks were stored. {_retry_or_submit(parent)}"
    return None


def _retry_of(parent: Task) -> str:
    """Return how an ended parent is retried as a whole; empty if it cannot be retried."""
    if parent.batch is None:
        return "Retry the parent" if parent.status in REPLAYABLE else ""
    if parent.status is TaskStatus.COMPLETED and not (parent.subtasks and allowed_failures(parent.subtasks)):
        return ""
    return f"Retry all failed tasks of the batch: `taskframework batch retry-failed {parent.task_id}`"


def _retry_or_submit(parent: Task, then: str = "begins with new ones") -> str:
    """Return the next step for an ended parent that cannot wait again; `then` is what it does after a retry."""
    if retry := _retry_of(parent):
        return f"{retry}; it {then}." if parent.batch is None else f"{retry}."
    return f"The parent is {parent.status}, so it cannot be retried; submit a new task."


def refusal_of(
    task: Task, action: str, allowed: frozenset[TaskStatus], *, message: str = "", hint: str = ""
) -> TransitionRefusedError:
    names = [status for status in TaskStatus if status in allowed]
    kind = "task" if task.batch is None else "batch"
    message = message or f"{kind.capitalize()} {task.task_id} is {task.status}; it cannot be {action}."
    hint = hint or f"Only a {kind} that is {' or '.join(names)} can be {action}."
    return TransitionRefusedError(task.task_id, action, task.status, hint=hint, message=message)


def not_discarded_error(task: Task) -> TransitionRefusedError:
    """Return the error that says why a task cannot be discarded."""
    message = hint = ""
    if (before := task.discarded) is not None:
        message = f"Dead letter {task.task_id} was already discarded by {before.by} at {rfc3339(before.at)}."
        hint = "No action is needed. The task can still be retried by its id."
    return refusal_of(task, "discarded", DEAD, message=message, hint=hint)


def not_retried_error(task: Task) -> TransitionRefusedError:
    """Return the error that says why a task cannot be queued again."""
    name, message, hint = task.task_id, "", ""
    if task.batch is not None:
        message = f"Task {name} is a batch, which is not retried as a task."
        hint = (
            f"To {purpose_of_retry(task)}: `taskframework batch retry-failed {name}`, "
            f"or over HTTP POST /api/v1/batches/{name}/retry-failed."
        )
    elif task.status is TaskStatus.QUEUED:
        message = f"Task {name} is already queued; nothing was changed."
    elif task.cascade_at is not None:
        hint = HINT_STILL_CANCELLING
    return refusal_of(task, "retried", REPLAYABLE | {TaskStatus.RETRYING}, message=message, hint=hint)
