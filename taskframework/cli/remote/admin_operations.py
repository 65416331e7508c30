"""Dead letters, actions on many tasks and the audit, over an HTTP interface."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import quote

from taskframework.cli.remote import letters, views
from taskframework.cli.remote.operations import STATUS_OF_NEW_TASK, user_field
from taskframework.cli.remote.remote_method import RemoteService, page_of, remote_method
from taskframework.client.operations import begin_call
from taskframework.client.paths import resource_path, task_path
from taskframework.client.requests import json_call
from taskframework.model.action_filters import Action, ActionFilter
from taskframework.model.letters import ANY_LETTER, LetterFilter, LetterGroup
from taskframework.model.replays import BulkAction
from taskframework.model.scope import Scope
from taskframework.model.values import Json
from taskframework.operations.audit import AuditLog, Noted
from taskframework.operations.dead_letters import DeadLetterOperations
from taskframework.operations.letter_views import DeadLetter
from taskframework.operations.replays import Count, ReplayOperations
from taskframework.submission.service import Submission

_LETTERS_PATH = "/admin/dead-letters"
#: The path at which each action on many begins.
_BEGIN_PATHS = {
    Action.REPLAY: f"{_LETTERS_PATH}/replay",
    Action.DISCARD: f"{_LETTERS_PATH}/discard",
    Action.RETRY: "/tasks/retry",
    Action.CANCEL: "/tasks/cancel",
}
#: Characters that are not percent-encoded in the header, besides letters and digits.
_SAFE_HEADER_CHARACTERS = " !\"'(),-./:;=?@[]_"


class RemoteAudit(RemoteService):
    """As `AuditLog`. The interface itself records each action, so only the reason is sent."""

    list_entries = remote_method(AuditLog.list_entries, "GET /admin/audit", page_of(letters.audit_entry_of))

    @asynccontextmanager
    async def noted(
        self, action: str, target: str | None, *, by: str, reason: str | None = None, **details: Json
    ) -> AsyncIterator[Noted | None]:
        if reason is not None:
            self._api.headers["X-Reason"] = quote(reason, safe=_SAFE_HEADER_CHARACTERS)
        yield None


class RemoteDeadLetters(RemoteService):
    """As `DeadLetterOperations`."""

    list_letters = remote_method(
        DeadLetterOperations.list_letters, "GET /admin/dead-letters", page_of(letters.letter_of)
    )
    replay = remote_method(
        DeadLetterOperations.replay, "POST /admin/dead-letters/replay", letters.outcomes_of, is_repeatable=False
    )
    replay_edited = remote_method(
        DeadLetterOperations.replay_edited, "POST /admin/dead-letters/replay", letters.outcomes_of, is_repeatable=False
    )
    discard = remote_method(
        DeadLetterOperations.discard, "POST /admin/dead-letters/discard", letters.outcomes_of, is_repeatable=False
    )

    async def groups(self, scope: Scope, wanted: LetterFilter = ANY_LETTER) -> list[LetterGroup]:
        chosen = {"task_type": wanted.task_type, "user_id": scope.owner}
        found, cursor = list[LetterGroup](), None
        while True:
            page = await self._get(f"{_LETTERS_PATH}/groups", cursor=cursor, **chosen)
            found += map(letters.group_of, page["items"])
            if (cursor := page["next_cursor"]) is None:
                return found

    async def get(self, letter_id: str, scope: Scope) -> DeadLetter:
        letter = await self._get(resource_path(_LETTERS_PATH, letter_id, what="dead letter"))
        return letters.letter_of(letter, await self._get(task_path(letter_id)) if letter["kind"] == "task" else None)


class RemoteMending(RemoteService):
    """As `MessageMending`."""

    async def mend(
        self, message_id: str, task_type: str, parameters: Json, *, user_id: str, by: str, dry_run: bool = False
    ) -> Submission | None:
        body = {"task_type": task_type, "parameters": parameters, "dry_run": dry_run, **user_field(user_id)}
        path = f"{resource_path(_LETTERS_PATH, message_id, what='dead letter')}/repair"
        status, view = await self._api.ask_with_status(json_call("POST", path, body))
        return None if dry_run else Submission(views.task_of(view), status == STATUS_OF_NEW_TASK)


class RemoteReplays(RemoteService):
    """As `ReplayOperations`."""

    list_replays = remote_method(ReplayOperations.list_replays, "GET /admin/replays", page_of(letters.replay_of))
    get = remote_method(ReplayOperations.get, "GET /admin/replays/{replay_id}", letters.replay_of)
    stop = remote_method(ReplayOperations.stop, "POST /admin/replays/{replay_id}/stop", letters.replay_of)

    async def begin(
        self,
        action: Action,
        where: ActionFilter,
        *,
        by: str,
        rate: float | None = None,
        reason: str | None = None,
        reopen: bool = False,
        key: str | None = None,
    ) -> BulkAction:
        reopen_option = {"reopen": reopen} if action in (Action.REPLAY, Action.RETRY) else {}
        call = begin_call(_BEGIN_PATHS[action], where.conditions, rate=rate, key=key, reason=reason, **reopen_option)
        return letters.replay_of(await self._api.ask(call))

    async def count_of(self, action: Action, where: ActionFilter) -> Count:
        answer = await self._post(_BEGIN_PATHS[action], {"filter": where.conditions, "dry_run": True})
        return Count(answer["total"], answer.get("is_total_bounded", False))


class RemoteCarrier:
    """As `ReplayCarrier`: processes of the installation carry the action on, not the command."""

    async def run_once(self) -> bool:
        return False
