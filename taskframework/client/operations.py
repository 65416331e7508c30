"""The calls of an operator: dead letters, and actions on many tasks. The key needs the role `operator`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from pydantic import AwareDatetime

from taskframework.client.answers import Answer, RemoteTask, read
from taskframework.client.connection import Calls
from taskframework.client.paths import resource_path
from taskframework.client.requests import Call, json_call, key_header

_LETTERS_PATH = "/admin/dead-letters"
_REPLAYS_PATH = "/admin/replays"


class RemoteLetter(Answer):
    """A dead letter.

    Attributes:
        kind: `task` or `message`.
        fingerprint: equal for all dead letters of one cause.
        parameters, errors, history: only of a task that was asked for by its id.
        body_text, body_hex, headers: only of a message that was asked for by its id.
    """

    id: str
    kind: str
    task_type: str | None
    reason: str
    fingerprint: str
    error: dict[str, Any] | None
    at: AwareDatetime
    parameters: Any = None
    errors: list[dict[str, Any]] | None = None
    history: list[dict[str, Any]] | None = None
    body_text: str | None = None
    body_hex: str | None = None
    headers: dict[str, str] | None = None


class RemoteGroup(Answer):
    """Dead letters of one cause; `trend` is how many ended in each of the last 24 hours."""

    fingerprint: str
    count: int
    first_at: AwareDatetime
    last_at: AwareDatetime
    task_types: list[str]
    error: dict[str, Any]
    trend: list[int]


class RemoteOutcome(Answer):
    """The outcome for one dead letter: `error` None means that the action was done, or in a dry run would be done.

    Attributes:
        warning: in a dry run, why its next attempt would fail at once.
    """

    id: str
    status: int
    error: dict[str, Any] | None
    warning: dict[str, Any] | None = None


class _Outcomes(Answer):
    items: list[RemoteOutcome]


class RemoteReplay(Answer):
    """An action on many tasks, and how far it is: `status` is RUNNING, DONE or STOPPED.

    Attributes:
        total: how many matched at the beginning.
        refused: how many a rule forbids, for example because the parent has ended.
        skipped: when it is DONE, how many had changed before it came to them.
        remaining: how many are still to be done; when it is STOPPED, how many were not done because of that.
    """

    replay_id: str
    action: str
    status: str
    total: int
    done: int
    refused: int
    failed: int
    skipped: int = 0
    remaining: int = 0
    rate: float | None
    by: str
    at: AwareDatetime
    reason: str | None
    finished_at: datetime | None


class OperatorCalls(Calls):
    """Look at dead letters, replay, edit, discard and repair them; do something with many tasks."""

    def dead_letters(
        self,
        *,
        kind: Literal["task", "message"] | None = None,
        task_type: str | None = None,
        user_id: str | None = None,
        fingerprint: str | None = None,
        text: str | None = None,
        finished_after: datetime | str | None = None,
        finished_before: datetime | str | None = None,
    ) -> AsyncGenerator[RemoteLetter, None]:
        """Dead letters from the newest to the oldest, read page by page while they are iterated.

        Args:
            kind: only tasks, or only messages.
            task_type: only dead letters of this type.
            user_id: only tasks of this user.
            fingerprint: only dead letters of this group.
            text: only dead letters with this text in the error.
            finished_after: only tasks that ended, and messages that were received, at this time or later.
            finished_before: only those that ended, or were received, earlier than this.
        """
        query = {
            "kind": kind,
            "task_type": task_type,
            "user_id": user_id,
            "fingerprint": fingerprint,
            "text": text,
            "finished_after": finished_after,
            "finished_before": finished_before,
        }
        return self._api.pages(Call("GET", _LETTERS_PATH, query=query), RemoteLetter)

    def dead_letter_groups(
        self, *, task_type: str | None = None, user_id: str | None = None
    ) -> AsyncGenerator[RemoteGroup, None]:
        """The causes of dead letters, the most frequent first; only of one task type or user, if it is given."""
        query = {"task_type": task_type, "user_id": user_id}
        return self._api.pages(Call("GET", f"{_LETTERS_PATH}/groups", query=query), RemoteGroup)

    async def dead_letter(self, letter_id: str) -> RemoteLetter:
        """One dead letter with all its fields.

        Raises:
            TaskNotFoundError: if there is no such dead letter.
        """
        return read(
            RemoteLetter,
            await self._api.ask(Call("GET", _letter_path(letter_id), error_context={"task_id": letter_id})),
        )

    async def replay(
        self, ids: Sequence[str], *, dry_run: bool = False, reopen: bool = False, reason: str | None = None
    ) -> list[RemoteOutcome]:
        """Queue up to 500 dead letters again.

        Args:
            ids: the dead letters.
            dry_run: only report what would happen to each.
            reopen: if the parent of a sub-task has ended, let the parent wait for it and end again.
            reason: kept in the history.
        """
        return await self._act_on_letters("replay", ids, dry_run=dry_run, reopen=reopen, reason=reason)

    async def replay_edited(
        self,
        ids: Sequence[str],
        parameters: Any,
        *,
        dry_run: bool = False,
        reopen: bool = False,
        reason: str | None = None,
    ) -> list[RemoteOutcome]:
        """`replay` with other parameters, which are checked before anything is changed.

        Raises:
            InvalidParametersError: if they do not fit one of the tasks; then no task is queued.
        """
        options = {"dry_run": dry_run, "reopen": reopen, "reason": reason}
        return await self._act_on_letters("replay", ids, parameters=parameters, **options)

    async def discard(self, ids: Sequence[str], *, reason: str, dry_run: bool = False) -> list[RemoteOutcome]:
        """Give up dead letters: they are removed from all lists. A task can still be retried by its id."""
        return await self._act_on_letters("discard", ids, reason=reason, dry_run=dry_run)

    async def repair(
        self, letter_id: str, task_type: str, parameters: Any = None, *, user_id: str | None = None
    ) -> RemoteTask[Any]:
        """Make a task from a dead message. A message that is repaired twice gives one task.

        Args:
            letter_id: the message.
            task_type: the name of the type.
            parameters: what the type accepts.
            user_id: the owner of the task; None means the caller.

        Raises:
            TaskNotFoundError: if there is no such message.
            SubmissionError: if type or parameters are wrong.
        """
        named = {} if user_id is None else {"user_id": user_id}
        content = {"task_type": task_type, "parameters": parameters, **named}
        call = json_call("POST", f"{_letter_path(letter_id)}/repair", content, error_context={"task_id": letter_id})
        return read(RemoteTask[Any], await self._api.ask(call))

    async def replay_all(
        self, where: dict[str, str], *, rate: float | None = None, reopen: bool = False, reason: str | None = None
    ) -> RemoteReplay:
        """Queue again all dead letters that match the conditions; the installation does so in the background.

        Args:
            where: `kind`, `task_type`, `user_id`, `fingerprint`, `text`; all conditions must hold.
            rate: how many a second at most; None means as fast as possible.
            reopen: as in `replay`.
            reason: kept in the history.
        """
        return await self._begin(f"{_LETTERS_PATH}/replay", where, rate=rate, reopen=reopen, reason=reason)

    async def discard_all(self, where: dict[str, str], *, reason: str, rate: float | None = None) -> RemoteReplay:
        """Discard all dead letters that match the conditions, in the background; `where` as in `replay_all`."""
        return await self._begin(f"{_LETTERS_PATH}/discard", where, rate=rate, reason=reason)

    async def retry_all(
        self, where: dict[str, str], *, rate: float | None = None, reopen: bool = False, reason: str | None = None
    ) -> RemoteReplay:
        """Queue failed and dead tasks again, in the background.

        Args:
            where: `status`, `task_type`, `user_id`, `parent_task_id`, `stream`, `fingerprint`, `text`; all must hold.
            rate: how many a second at most; None means as fast as possible.
            reopen: as in `replay`.
            reason: kept in the history.
        """
        return await self._begin("/tasks/retry", where, rate=rate, reopen=reopen, reason=reason)

    async def cancel_all(
        self, where: dict[str, str], *, rate: float | None = None, reason: str | None = None
    ) -> RemoteReplay:
        """Cancel tasks that are not final, in the background; `where` as in `retry_all`."""
        return await self._begin("/tasks/cancel", where, rate=rate, reason=reason)

    async def replay_status(self, replay_id: str) -> RemoteReplay:
        """How far an action on many is.

        Raises:
            ApiError: if there is no action with this id.
        """
        return read(RemoteReplay, await self._api.ask(Call("GET", _replay_path(replay_id))))

    async def stop_replay(self, replay_id: str) -> RemoteReplay:
        """Let an action on many begin no further tasks; the answer shows what it has done.

        Raises:
            ApiError: if there is no action with this id.
        """
        return read(RemoteReplay, await self._api.ask(json_call("POST", f"{_replay_path(replay_id)}/stop", {})))

    async def _act_on_letters(self, action: str, ids: Sequence[str], **more: Any) -> list[RemoteOutcome]:
        if isinstance(ids, str):  # its letters would be taken for ids
            raise TypeError("the ids of dead letters are a list; for one dead letter write a list of one")
        call = json_call("POST", f"{_LETTERS_PATH}/{action}", {"ids": list(ids), **more}, is_repeatable=False)
        return read(_Outcomes, await self._api.ask(call)).items

    async def _begin(self, path: str, where: dict[str, str], *, rate: float | None, **more: Any) -> RemoteReplay:
        return read(RemoteReplay, await self._api.ask(begin_call(path, where, rate=rate, **more)))


def begin_call(path: str, where: Mapping[str, str], *, rate: float | None, key: str | None = None, **more: Any) -> Call:
    """Make the call that begins an action on many tasks.

    Args:
        path: the path of this kind of action.
        where: the conditions for the tasks.
        rate: how many a second at most; None means as fast as possible.
        key: an idempotency key; without it a new one is made. With a key the action runs in the background always, so
            that the answer is the action.
        more: fields of the body.
    """
    content = {"filter": where, **({} if rate is None else {"rate": rate}), **more}
    return json_call("POST", path, content, headers=key_header(key))


def _letter_path(letter_id: str) -> str:
    return resource_path(_LETTERS_PATH, letter_id, what="dead letter")


def _replay_path(replay_id: str) -> str:
    return resource_path(_REPLAYS_PATH, replay_id, what="action on many tasks")
