"""One dead letter, and how it is shown."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from taskframework.model.letters import message_fingerprint
from taskframework.model.query import DeadMessage
from taskframework.model.task import Task
from taskframework.model.view import entry_view, error_view, format_time

#: How many bytes of a message's body a list shows. A whole view has the body, and this many bytes as digits too.
MAX_LISTED_BYTES = 4096


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One entry: a task, or a kept message."""

    id: str
    at: datetime
    entry: Task | DeadMessage

    def view(self, *, whole: bool = False) -> dict[str, Any]:
        """The entry as plain JSON.

        Args:
            whole: whether to add, for a task, its parameters, errors and history; for a message, all its bytes, also as
                text and digits, and its headers.
        """
        if isinstance(self.entry, Task):
            view = _task_view(self.id, self.at, self.entry)
            return view | _task_details(self.entry) if whole else view
        view = _message_view(self.entry, whole)
        return view | _message_details(self.entry) if whole else view


def of_task(task: Task) -> DeadLetter:
    """Return the entry of a dead task."""
    return DeadLetter(task.task_id, task.finished_at or task.updated_at, task)


def of_message(message: DeadMessage) -> DeadLetter:
    """Return the entry of a kept message."""
    return DeadLetter(message.id, message.at, message)


def _task_view(letter_id: str, at: datetime, task: Task) -> dict[str, Any]:
    return {
        "id": letter_id,
        "kind": "task",
        "task_id": task.task_id,
        "task_type": task.task_type,
        "user_id": task.user_id,
        "status": task.status.value,
        "reason": task.error.message if task.error else task.status.value,
        "error": error_view(task.error),
        "fingerprint": task.error.fingerprint if task.error else "",
        "attempt": task.attempts,
        "generation": task.generation,
        "at": format_time(at),
    }


def _task_details(task: Task) -> dict[str, Any]:
    discarded = task.discarded
    return {
        "parameters": task.parameters,
        # With the traceback: operators may see the program.
        "errors": [
            {
                "attempt": each.attempt,
                "at": format_time(each.at),
                **(error_view(each) or {}),
                "traceback": each.traceback,
            }
            for each in task.errors
        ],
        "history": [entry_view(entry) for entry in task.history],
        "discarded": discarded and {"by": discarded.by, "at": format_time(discarded.at), "reason": discarded.reason},
    }


def _message_view(message: DeadMessage, whole: bool) -> dict[str, Any]:
    return {
        "id": message.id,
        "kind": "message",
        "task_id": message.task_id,
        "task_type": message.task_type,
        "user_id": None,
        "status": None,
        "reason": message.reason,
        "error": None,
        "fingerprint": message_fingerprint(message.reason),
        "attempt": None,
        "generation": None,
        "at": format_time(message.at),
        "queue": message.queue,
        "body_size": len(message.body),
        "body_base64": base64.b64encode(message.body if whole else message.body[:MAX_LISTED_BYTES]).decode(),
    }


def _message_details(message: DeadMessage) -> dict[str, Any]:
    return {
        "headers": message.headers,
        "body_text": message.body.decode("utf-8", "replace"),
        "body_hex": message.body[:MAX_LISTED_BYTES].hex(" "),
    }
