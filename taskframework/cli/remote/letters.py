"""Converts views of dead letters, actions on many and the audit from the HTTP interface to objects of the model."""

from __future__ import annotations

import base64
from typing import Any

from taskframework.cli.remote.views import View, task_of, time_of
from taskframework.client.answers import read
from taskframework.client.refusals import error_of as refusal_of
from taskframework.errors import TaskframeworkError
from taskframework.model.audit import AuditEntry
from taskframework.model.letters import LetterGroup
from taskframework.model.query import DeadMessage
from taskframework.model.replays import BulkAction
from taskframework.model.task import Task
from taskframework.model.task_fields import Discarded, TaskError
from taskframework.operations.dead_letters import LetterOutcome
from taskframework.operations.letter_views import DeadLetter


def letter_of(view: View, task: View | None = None) -> DeadLetter:
    """A dead letter; `task` is the full view of its task, if it is needed."""
    at = time_of(view["at"])
    if view["kind"] == "message":
        body, headers = base64.b64decode(view["body_base64"]), view.get("headers") or {}
        message_fields = (view["queue"], view["reason"], at, view["task_id"], view["task_type"])
        return DeadLetter(view["id"], at, DeadMessage(view["id"], body, headers, *message_fields))
    if task is not None:
        return DeadLetter(view["id"], at, _with_operator_fields(task_of(task), view))
    missing_fields: dict[str, Any] = {
        "correlation_id": "",
        "parameters_hash": "",
        "max_attempts": 0,
        "next_dispatch_at": None,
    }
    unknown_times = dict.fromkeys(("not_before", "created_at", "finished_at", "updated_at"), at)
    return DeadLetter(
        view["id"], at, read(Task, {**view, **missing_fields, **unknown_times, "attempts": view["attempt"]})
    )


def _with_operator_fields(task: Task, letter: View) -> Task:
    """Add the fields that only operators see to a task."""
    errors = tuple(read(TaskError, error) for error in letter["errors"] or ())
    discarded = letter["discarded"] and read(Discarded, letter["discarded"])
    return task.evolve(errors=errors, error=errors[-1] if errors else task.error, discarded=discarded)


def group_of(view: View) -> LetterGroup:
    """Dead letters of one cause."""
    error = view["error"]
    return read(LetterGroup, {**view, "error_type": error["type"], "error_message": error["message"]})


def outcomes_of(answer: View) -> list[LetterOutcome]:
    """The outcome for each dead letter."""
    return [LetterOutcome(item["id"], _refusal(item["error"]), _refusal(item["warning"])) for item in answer["items"]]


def _refusal(problem: View | None) -> TaskframeworkError | None:
    return None if problem is None else refusal_of(problem, {})


def replay_of(view: View) -> BulkAction:
    """An action on many tasks. The view does not show the ids in hand, nor the position in the lists."""
    converted = {
        "where": view["filter"],
        "batch": ("",) * view["in_hand"],
        "due_at": view["at"],
        "paced_until": view["at"],
    }
    return read(BulkAction, {**view, **converted})


def audit_entry_of(view: View) -> AuditEntry:
    """An action of an operator."""
    return read(AuditEntry, view)
