"""Dead letters: tasks that ended FAILED or DEAD_LETTER, and messages nobody could read, as one list."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from taskframework.errors import TaskframeworkError, TaskNotFoundError, TransitionRefusedError
from taskframework.model.query import Cursor, DeadMessage, Page, TaskFilter
from taskframework.model.scope import EVERYONE, Scope
from taskframework.model.status import DEAD
from taskframework.model.task import Task
from taskframework.model.view import error_view, moment
from taskframework.operations.tasks import TaskOperations
from taskframework.stores.base import TaskStore

#: What a list shows of a message's body; the entry itself has all of it.
LISTED_BYTES = 4096


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One entry: a task, or a kept message."""

    id: str
    at: datetime
    entry: Task | DeadMessage

    def view(self, *, whole: bool = False) -> dict[str, Any]:
        """The entry as plain JSON; whole gives a message's whole body, also as text, and its headers."""
        if isinstance(self.entry, Task):
            return _task_view(self.id, self.at, self.entry)
        return _message_view(self.entry, whole)


class AlreadyReplayedError(TransitionRefusedError):
    """The dead letter was queued anew before."""

    def __init__(self, task: Task) -> None:
        super().__init__(task.task_id, "replayed", task.status, tuple(sorted(DEAD)))
        self.message = f"Dead letter {task.task_id} is queued anew already; the task is {task.status} now."
        self.hint = "Look at the task; it can be replayed again when it is a dead letter again."


class NothingToReplayError(TransitionRefusedError):
    """The dead letter is a message without a task."""

    def __init__(self, letter_id: str) -> None:
        super().__init__(letter_id, "replayed", "a message without a task", ())
        self.message = f"Dead letter {letter_id} is a message without a task; there is nothing to queue."
        self.hint = "Show it to see what somebody sent, and submit the task it was meant for."


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    """What became of one id of a replay; `problem` None means queued anew."""

    id: str
    problem: TaskframeworkError | None


class DeadLetterOperations:
    """List, show and replay dead letters."""

    def __init__(self, store: TaskStore, tasks: TaskOperations) -> None:
        self._store = store
        self._tasks = tasks

    async def list_letters(self, scope: Scope, *, limit: int, cursor: str | None = None) -> Page[DeadLetter]:
        """Both kinds, the newest first. A kept message belongs to nobody: only everyone's scope has it.

        Raises:
            CursorInvalidError: if the cursor is not one of this list.
        """
        tasks = await self._store.list_tasks(scope, TaskFilter(dead=True), limit=limit, cursor=cursor)
        messages = await self._list_messages(scope, limit, cursor)
        merged = sorted(
            [*map(_of_task, tasks.items), *map(_of_message, messages.items)],
            key=lambda letter: (letter.at, letter.id),
            reverse=True,
        )
        page = tuple(merged[:limit])
        more = len(merged) > limit or tasks.next_cursor is not None or messages.next_cursor is not None
        return Page(page, Cursor(page[-1].at, page[-1].id).encode() if page and more else None)

    async def _list_messages(self, scope: Scope, limit: int, cursor: str | None) -> Page[DeadMessage]:
        if scope != EVERYONE:
            return Page((), None)
        return await self._store.list_dead_messages(limit=limit, cursor=cursor)

    async def get(self, letter_id: str, scope: Scope) -> DeadLetter:
        """One entry by its id.

        Raises:
            TaskNotFoundError: if there is no dead letter of this id.
        """
        task = await self._store.get(letter_id, scope)
        if task is not None and task.status in DEAD:
            return _of_task(task)
        message = await self._store.get_dead_message(letter_id) if scope == EVERYONE else None
        if message is None:
            raise TaskNotFoundError(letter_id, what="dead letter")
        return _of_message(message)

    async def replay(
        self, ids: Sequence[str], scope: Scope, *, by: str, dry_run: bool = False, reopen: bool = False
    ) -> list[ReplayOutcome]:
        """Queue dead tasks anew; each id has its own outcome. A message without a task cannot be replayed.

        Args:
            ids: dead letters; one that stands there twice counts once.
            scope: whose tasks may be queued anew.
            by: who asks; it is in the task's history.
            dry_run: only say what would become of each.
            reopen: as in `TaskOperations.retry`: let a parent that is over wait for its sub-task again.
        """
        outcomes = []
        for name in dict.fromkeys(ids):
            try:
                await self._require_task(name, scope)
                if dry_run:
                    await self._tasks.check_retry(name, scope, reopen=reopen)
                else:
                    await self._tasks.retry(name, scope, by=by, reopen=reopen)
                outcomes.append(ReplayOutcome(name, None))
            except (TaskNotFoundError, TransitionRefusedError) as problem:
                outcomes.append(ReplayOutcome(name, await self._explained(problem, name, scope)))
        return outcomes

    async def _require_task(self, letter_id: str, scope: Scope) -> None:
        letter = await self.get(letter_id, scope)
        if isinstance(letter.entry, DeadMessage):
            raise NothingToReplayError(letter_id)

    async def _explained(self, problem: TaskframeworkError, letter_id: str, scope: Scope) -> TaskframeworkError:
        """The problem; or that somebody was faster, if that is why."""
        task = await self._store.get(letter_id, scope)
        if task is None or task.generation == 0 or task.status in DEAD:
            return problem
        return AlreadyReplayedError(task)


def _of_task(task: Task) -> DeadLetter:
    return DeadLetter(task.task_id, task.finished_at or task.updated_at, task)


def _of_message(message: DeadMessage) -> DeadLetter:
    return DeadLetter(message.id, message.at, message)


def _task_view(letter_id: str, at: datetime, task: Task) -> dict[str, Any]:
    return {
        "id": letter_id,
        "kind": "task",
        "task_id": task.task_id,
        "task_type": task.task_type,
        "status": task.status.value,
        "reason": task.error.message if task.error else task.status.value,
        "error": error_view(task.error),
        "attempt": task.attempts,
        "at": moment(at),
    }


def _message_view(message: DeadMessage, whole: bool) -> dict[str, Any]:
    view: dict[str, Any] = {
        "id": message.id,
        "kind": "message",
        "task_id": message.task_id,
        "task_type": message.task_type,
        "status": None,
        "reason": message.reason,
        "error": None,
        "attempt": None,
        "at": moment(message.at),
        "queue": message.queue,
        "body_size": len(message.body),
        "body_base64": base64.b64encode(message.body if whole else message.body[:LISTED_BYTES]).decode(),
    }
    if whole:
        view["headers"] = message.headers
        view["body_text"] = message.body.decode("utf-8", "replace")
    return view
