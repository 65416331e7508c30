"""Causes that follow from the status of a task: it has ended, it runs, it waits for other tasks or for a signal."""

from __future__ import annotations

from typing import Any

from taskframework.model.batches import is_sealed, purpose_of_retry
from taskframework.model.facts import Cause, Facts
from taskframework.model.interventions import BY_NEWER_VERSION
from taskframework.model.message import rfc3339
from taskframework.model.status import REPLAYABLE, TaskStatus
from taskframework.model.streams import go_on_command
from taskframework.model.task import Task
from taskframework.model.task_fields import Lease, SignalWait, Subtasks
from taskframework.model.values import shell_quoted
from taskframework.model.view import error_view, format_time, subtasks_view
from taskframework.model.wording import error_line, one_line, pluralize


def explain_ended(facts: Facts) -> Cause | None:
    """The cause if the task has ended."""
    task = facts.task
    if not task.status.is_final:
        return None
    since = "" if task.finished_at is None else f" since {rfc3339(task.finished_at)}"
    change = "No action is needed: it has ended."
    if task.cancel is not None and task.cancel.by == BY_NEWER_VERSION:
        change = "No action is needed: a newer version has taken its place. To run it, submit a higher version."
    elif task.batch is not None and not is_sealed(task):
        change = "Its upload was never completed: submit the items again, in a new batch."
    elif task.batch is not None and task.status in REPLAYABLE:
        change = f"To {purpose_of_retry(task)}: taskframework batch retry-failed {task.task_id}"
    elif task.status in REPLAYABLE:
        change = f"To queue it again: taskframework tasks retry {task.task_id}"
        if task.error is not None and task.error.code == "subtasks_failed":
            change = f"See which failed, and why: taskframework tasks subtasks {task.task_id}. {change}"
    details = {"finished_at": format_time(task.finished_at), "error": error_view(task.error)}
    return Cause("final", f"It is {task.status}{since}{_error_suffix(task)}.", change, details)


def explain_cancel_requested(facts: Facts) -> Cause | None:
    """The cause if the task was asked to stop and still runs."""
    task, cancel = facts.task, facts.task.cancel
    if cancel is None:
        return None
    reason = f" ({one_line(cancel.reason)})" if cancel.reason else ""
    asked = f"{cancel.by} asked it to stop at {rfc3339(cancel.at)}{reason}"
    details = {"by": cancel.by, "at": rfc3339(cancel.at), "reason": cancel.reason, **_attempt_details(task)}
    if task.lease is not None:
        details |= _lease_details(facts, task.lease)
        if problems := _signs_of_loss(facts, task.lease):  # a lost worker cannot stop the code
            because = f"{asked}, but its worker {task.lease.worker_id} seems to be lost: it {' and '.join(problems)}."
            return Cause("cancel_requested", because, _what_takes_it(facts, task.lease), details)
    return Cause(
        "cancel_requested",
        f"{asked}, and its code is still running.",
        "No action is needed: if the code does not stop, its worker gives up on it within seconds.",
        details,
    )


def explain_running(facts: Facts) -> Cause | None:
    """The cause if a worker runs the task."""
    task, lease = facts.task, facts.task.lease
    if task.status is not TaskStatus.RUNNING:
        return None
    worker = "A worker" if lease is None else f"Worker {lease.worker_id}"
    since = "" if task.started_at is None else f" since {rfc3339(task.started_at)}"
    attempt = f"{worker} runs attempt {task.attempts} of {task.max_attempts}{since}"
    details = {**_attempt_details(task), "is_lease_over": False, "progress": task.progress}
    if lease is None:
        return Cause("running", f"{attempt}.", "It ends when its code ends.", details)
    return _explain_lease(facts, lease, attempt, details)


def _explain_lease(facts: Facts, lease: Lease, attempt: str, details: dict[str, Any]) -> Cause:
    details |= _lease_details(facts, lease)
    problems = _signs_of_loss(facts, lease)
    if not problems:
        until = rfc3339(lease.expires_at)
        because = f"{attempt}. Its lease is valid until {until}; the worker renews it as long as it is alive."
        change = "It ends when its code ends. If its worker is lost, another worker takes it when the lease is over."
        return Cause("running", because, change, details)
    return Cause("running", f"{attempt}, but {' and '.join(problems)}.", _what_takes_it(facts, lease), details)


def _signs_of_loss(facts: Facts, lease: Lease) -> list[str]:
    """What the worker has not done that a living worker does; the subject of each is the worker."""
    worker = facts.worker
    signs = []
    if lease.expires_at <= facts.now:
        signs.append(f"has not renewed its lease, which was valid until {rfc3339(lease.expires_at)}")
    if worker is not None and worker.is_silent(facts.now):
        signs.append(f"has sent no sign of life since {rfc3339(worker.seen_at)}")
    return signs


def _what_takes_it(facts: Facts, lease: Lease) -> str:
    """What happens to a task whose worker seems to be lost."""
    taken_after = rfc3339(lease.expires_at + facts.lease_grace)
    if lease.expires_at > facts.now:
        return f"If the worker does not renew its lease, the task is taken from it after {taken_after}."
    return f"The task is taken from this worker after {taken_after}, if at least one api or worker process is running."


def _lease_details(facts: Facts, lease: Lease) -> dict[str, Any]:
    return {
        "is_lease_over": lease.expires_at <= facts.now,
        "taken_over_after": rfc3339(lease.expires_at + facts.lease_grace),
        "worker_seen_at": None if facts.worker is None else rfc3339(facts.worker.seen_at),
    }


def explain_waiting(facts: Facts) -> Cause | None:
    """The cause if the task waits for its sub-tasks or for a signal."""
    task = facts.task
    if task.status is not TaskStatus.WAITING:
        return None
    if task.subtasks is not None and (task.subtasks.is_awaited or task.waits_for is None):
        return _explain_waiting_for_subtasks(facts, task.subtasks)
    return _explain_waiting_for_signal(task, task.waits_for)


def explain_waiting_for_stream(facts: Facts) -> Cause | None:
    """The cause if the turn of the task in a serial stream has not come."""
    task, place, stream = facts.task, facts.task.stream, facts.stream
    if task.status is not TaskStatus.BLOCKED:
        return None
    key, position = ("", None) if place is None else (place.key, place.position)
    holder, is_halted = facts.turn_holder, stream is not None and stream.is_halted
    halted_turn = stream.turn if stream is not None and is_halted else None
    details: dict[str, Any] = {"key": key, "position": position, "is_halted": is_halted, "turn": _turn_details(facts)}
    if halted_turn is not None and holder is None:
        because = f"Stream {key!r} is halted: task {halted_turn.task_id}, which has the turn, failed and was deleted."
        change = f"Let the others continue without it: {go_on_command(task.user_id, key, halted_turn.position)}"
        return Cause("waiting_for_stream", because, change, details)
    if holder is None or holder.task_id == task.task_id or (holder.status.is_final and not is_halted):
        because = f"The turn in stream {key!r} is about to move to the next task."
        at = "in a moment" if task.unblock_at is None else f"at {rfc3339(task.unblock_at)}"
        return Cause("waiting_for_stream", because, f"A process checks {at} whether it is its turn.", details)
    if halted_turn is not None:
        because = f"Stream {key!r} is halted: task {holder.task_id}, which has the turn, is {holder.status}."
        command = go_on_command(task.user_id, key, halted_turn.position)
        change = f"Retry it, if no newer version has taken its place; or let the others continue without it: {command}"
        return Cause("waiting_for_stream", because, change, details)
    because = f"In stream {key!r}, task {holder.task_id} has the turn; it is {holder.status}."
    change = f"It starts after the tasks before it have ended: taskframework tasks explain {holder.task_id}"
    return Cause("waiting_for_stream", because, change, details)


def _explain_waiting_for_subtasks(facts: Facts, subtasks: Subtasks) -> Cause:
    task, open_ones = facts.task, facts.open_subtasks
    details: dict[str, Any] = {
        "subtasks": subtasks_view(task),
        "policy": subtasks.policy,
        "open": [{"task_id": it.task_id, "task_type": it.task_type, "status": str(it.status)} for it in open_ones],
        "signal": None if task.waits_for is None else task.waits_for.name,
    }
    or_signal = "" if task.waits_for is None else f", or for the signal {task.waits_for.name!r}"
    if subtasks.planned is None:
        because = f"It is a batch whose upload is not complete: {subtasks.done:,} of its sub-tasks have ended so far."
        change = "It ends when the upload is complete and all of its sub-tasks have ended."
        return Cause("waiting_for_subtasks", because, change, details)
    counted = f"{subtasks.done:,} of its {pluralize(subtasks.planned, 'sub-task')} had ended at the last count"
    if open_ones:
        first = open_ones[0]
        because = f"It waits for its sub-tasks{or_signal}: {counted}, and {first.task_id} is {first.status}."
        change = f"It continues when they end ({subtasks.policy}): taskframework tasks explain {first.task_id}"
    elif subtasks.is_being_stored:
        because = f"It waits for its sub-tasks{or_signal}: {counted}, and not all of them are stored yet."
        change = "The rest are stored within seconds, if at least one api or worker process is running."
    else:
        because = f"It waits for its sub-tasks{or_signal}: {counted}, and now all of them have ended."
        at = "in a moment" if task.check_at is None else f"by {rfc3339(task.check_at)}"
        change = f"They are counted again {at}."
    return Cause("waiting_for_subtasks", because, change, details)


def _explain_waiting_for_signal(task: Task, wait: SignalWait | None) -> Cause:
    name, until = ("", None) if wait is None else (wait.name, wait.until)
    limit = "" if until is None else f", until {rfc3339(until)}"
    return Cause(
        "waiting_for_signal",
        f"It waits for the signal {name!r}{limit}.",
        f"To send it: taskframework tasks signal {task.task_id} {shell_quoted(name)}",
        {"signal": name, "until": format_time(until)},
    )


def _turn_details(facts: Facts) -> dict[str, Any] | None:
    holder = facts.turn_holder
    if holder is None:
        return None
    position = None if holder.stream is None else holder.stream.position
    return {"task_id": holder.task_id, "status": str(holder.status), "position": position}


def _attempt_details(task: Task) -> dict[str, Any]:
    lease = task.lease
    return {
        "worker_id": None if lease is None else lease.worker_id,
        "since": format_time(task.started_at),
        "lease_until": None if lease is None else rfc3339(lease.expires_at),
        "attempt": task.attempts,
        "max_attempts": task.max_attempts,
    }


def _error_suffix(task: Task) -> str:
    return "" if task.error is None else f": {error_line(task.error)}"
