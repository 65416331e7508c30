"""From what the HTTP interface tells of dead letters, actions on many and the audit to the records that it tells of."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

from taskframework.cli.remote.views import View, error_of, moment, task_of, time_of
from taskframework.client.refusals import error_of as refusal_of
from taskframework.errors import TaskframeworkError
from taskframework.model.audit import AuditEntry
from taskframework.model.letters import LetterGroup
from taskframework.model.query import DeadMessage
from taskframework.model.replays import TIMES, Action, ManyReplay, Refused, ReplayStatus, Where
from taskframework.model.status import TaskStatus
from taskframework.model.task import Discarded, Task
from taskframework.operations.dead_letters import LetterOutcome
from taskframework.operations.letter_views import DeadLetter


def letter_of(view: View, task: View | None = None) -> DeadLetter:
    """A dead letter; `task` is all about its task, where that is wanted."""
    at = time_of(view["at"])
    if view["kind"] == "message":
        body, headers = base64.b64decode(view["body_base64"]), view.get("headers") or {}
        kept = (view["queue"], view["reason"], at, view["task_id"], view["task_type"])
        return DeadLetter(view["id"], at, DeadMessage(view["id"], body, headers, *kept))
    if task is not None:
        return DeadLetter(view["id"], at, _with_rest(task_of(task), view))
    names: dict[str, Any] = {"correlation_id": "", "parameters_hash": "", "max_attempts": 0, "next_dispatch_at": None}
    times: dict[str, Any] = {"not_before": at, "created_at": at, "finished_at": at, "updated_at": at}
    own = {name: view[name] for name in ("task_id", "task_type", "user_id", "generation")}
    entry = Task(
        status=TaskStatus(view["status"]),
        error=error_of(view["error"]),
        attempts=view["attempt"],
        **own,
        **names,
        **times,
    )
    return DeadLetter(view["id"], at, entry)


def _with_rest(task: Task, letter: View) -> Task:
    """A task with what only operators are told."""
    errors = [error_of({**each, "at": time_of(each["at"])}) for each in letter["errors"] or ()]
    gone = letter["discarded"]
    return replace(
        task,
        errors=tuple(error for error in errors if error is not None),
        error=errors[-1] if errors else task.error,
        discarded=gone and Discarded(**{**gone, "at": time_of(gone["at"])}),
    )


def group_of(view: View) -> LetterGroup:
    """Dead letters of one cause."""
    return LetterGroup(
        view["fingerprint"],
        view["count"],
        time_of(view["first_at"]),
        time_of(view["last_at"]),
        tuple(view["task_types"]),
        view["error"]["type"],
        view["error"]["message"],
        tuple(view["trend"]),
    )


def outcomes_of(answer: View) -> list[LetterOutcome]:
    """What became of each dead letter."""
    return [LetterOutcome(each["id"], _refusal(each["error"]), _refusal(each["warning"])) for each in answer["items"]]


def _refusal(problem: View | None) -> TaskframeworkError | None:
    return None if problem is None else refusal_of(problem, {})


def replay_of(view: View) -> ManyReplay:
    """An action on many tasks. Who is in hand there, and where it is in its lists, is not told."""
    at, status = time_of(view["at"]), view["filter"].get("status")
    chosen = {**view["filter"], "status": None if status is None else TaskStatus(status)}
    chosen |= {name: moment(chosen.get(name)) for name in TIMES}
    counts = {name: view[name] for name in ("total", "is_total_bounded", "done", "refused", "failed")}
    return ManyReplay(
        replay_id=view["replay_id"],
        action=Action(view["action"]),
        where=Where(**chosen),
        by=view["by"],
        at=at,
        reason=view["reason"],
        rate=view["rate"],
        status=ReplayStatus(view["status"]),
        refusals=tuple(Refused(each["id"], each["problem"]) for each in view["refusals"]),
        batch=("",) * view["in_hand"],
        due_at=at,
        paced_until=at,
        finished_at=moment(view["finished_at"]),
        **counts,
    )


def audit_entry_of(view: View) -> AuditEntry:
    """What an operator did."""
    return AuditEntry(**{**view, "at": time_of(view["at"])})
