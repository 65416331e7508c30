"""Dead letters, actions on many tasks and the audit, asked of an HTTP interface as the other operations are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from typing import Any
from urllib.parse import quote

from taskframework.cli.remote import letters, views
from taskframework.cli.remote.operations import ADMIN, CREATED_NOW, Remote, named_user
from taskframework.client.connection import json_call, new_key, task_path
from taskframework.model.audit import AuditEntry
from taskframework.model.letters import ANY_LETTER, LetterFilter, LetterGroup
from taskframework.model.query import Page
from taskframework.model.replays import Action, ManyReplay, Where
from taskframework.model.scope import Scope
from taskframework.model.values import Json
from taskframework.operations.dead_letters import LetterOutcome
from taskframework.operations.letter_views import DeadLetter
from taskframework.operations.replays import Count
from taskframework.submission.service import Submission

_LETTERS = f"{ADMIN}/dead-letters"
_REPLAYS = f"{ADMIN}/replays"
#: Where an action on many begins.
_BEGIN = {
    Action.REPLAY: f"{_LETTERS}/replay",
    Action.DISCARD: f"{_LETTERS}/discard",
    Action.RETRY: "/tasks/retry",
    Action.CANCEL: "/tasks/cancel",
}
#: A second, the most there is. With a rate the interface always does it in the background, and so tells of it.
_MOST = 1000
#: Characters that a header has as they are, beside letters and digits.
_IN_A_HEADER = " !\"'(),-./:;=?@[]_"


class RemoteAudit(Remote):
    """As `AuditLog`. The interface itself notes what is asked of it, so that only the reason goes along."""

    @asynccontextmanager
    async def noted(
        self, action: str, target: str | None, *, by: str, reason: str | None = None, **details: Json
    ) -> AsyncIterator[None]:
        if reason is not None:
            self._api.headers["X-Reason"] = quote(reason, safe=_IN_A_HEADER)
        yield

    async def list_entries(
        self, *, limit: int, cursor: str | None = None, by: str | None = None, action: str | None = None
    ) -> Page[AuditEntry]:
        chosen = {"limit": limit, "cursor": cursor, "by": by, "action": action}
        return await self._page(f"{ADMIN}/audit", letters.audit_entry_of, **chosen)


class RemoteDeadLetters(Remote):
    """As `DeadLetterOperations`."""

    async def list_letters(
        self, scope: Scope, *, limit: int, cursor: str | None = None, wanted: LetterFilter = ANY_LETTER
    ) -> Page[DeadLetter]:
        chosen = {**asdict(wanted), "user_id": scope.owner}
        return await self._page(_LETTERS, letters.letter_of, limit=limit, cursor=cursor, **chosen)

    async def groups(self, scope: Scope, wanted: LetterFilter = ANY_LETTER) -> list[LetterGroup]:
        chosen = {"task_type": wanted.task_type, "user_id": scope.owner}
        page = await self._page(f"{_LETTERS}/groups", letters.group_of, **chosen)
        found = [*page.items]
        while page.next_cursor is not None:
            page = await self._page(f"{_LETTERS}/groups", letters.group_of, cursor=page.next_cursor, **chosen)
            found += page.items
        return found

    async def get(self, letter_id: str, scope: Scope) -> DeadLetter:
        letter = await self._get(f"{_LETTERS}/{quote(letter_id, safe='')}")
        return letters.letter_of(letter, await self._get(task_path(letter_id)) if letter["kind"] == "task" else None)

    async def replay(
        self,
        ids: Sequence[str],
        scope: Scope,
        *,
        by: str,
        dry_run: bool = False,
        reopen: bool = False,
        reason: str | None = None,
    ) -> list[LetterOutcome]:
        wanted = {"ids": list(ids), "dry_run": dry_run, "reopen": reopen, "reason": reason}
        return await self._outcomes(Action.REPLAY, wanted)

    async def replay_edited(
        self,
        ids: Sequence[str],
        parameters: Json,
        scope: Scope,
        *,
        by: str,
        dry_run: bool = False,
        reopen: bool = False,
        reason: str | None = None,
    ) -> list[LetterOutcome]:
        wanted = {"ids": list(ids), "dry_run": dry_run, "reopen": reopen, "reason": reason}
        return await self._outcomes(Action.REPLAY, {**wanted, "parameters": parameters})

    async def discard(
        self, ids: Sequence[str], scope: Scope, *, by: str, reason: str | None, dry_run: bool = False
    ) -> list[LetterOutcome]:
        return await self._outcomes(Action.DISCARD, {"ids": list(ids), "dry_run": dry_run, "reason": reason})

    async def _outcomes(self, action: Action, wanted: Mapping[str, Any]) -> list[LetterOutcome]:
        answer = await self._post(_BEGIN[action], wanted, is_repeatable=False)
        return [letters.outcome_of(item) for item in answer["items"]]


class RemoteMending(Remote):
    """As `MessageMending`."""

    async def mend(
        self, message_id: str, task_type: str, parameters: Json, *, user_id: str, by: str, dry_run: bool = False
    ) -> Submission | None:
        wanted = {"task_type": task_type, "parameters": parameters, "dry_run": dry_run, **named_user(user_id)}
        path = f"{_LETTERS}/{quote(message_id, safe='')}/repair"
        status, view = await self._api.answered(json_call("POST", path, wanted))
        return None if dry_run else Submission(views.task_of(view), status == CREATED_NOW)


class RemoteReplays(Remote):
    """As `ReplayOperations`."""

    async def begin(
        self,
        action: Action,
        where: Where,
        *,
        by: str,
        rate: float | None = None,
        reason: str | None = None,
        reopen: bool = False,
        key: str | None = None,
    ) -> ManyReplay:
        wanted = {"filter": where.conditions, "rate": rate or _MOST, "reason": reason}
        if action in (Action.REPLAY, Action.RETRY):
            wanted["reopen"] = reopen
        call = json_call("POST", _BEGIN[action], wanted, headers={"Idempotency-Key": key or new_key()})
        return replace(letters.replay_of(await self._api.ask(call)), rate=rate)

    async def count_of(self, action: Action, where: Where) -> Count:
        reason = {"reason": "?"} if action is Action.DISCARD else {}  # it must have one, and nothing happens
        counted = await self._post(_BEGIN[action], {"filter": where.conditions, "dry_run": True, **reason})
        return Count(counted["total"], counted.get("is_total_bounded", False))

    async def list_replays(self, *, limit: int, after: str | None = None) -> Page[ManyReplay]:
        return await self._page(_REPLAYS, letters.replay_of, limit=limit, cursor=after)

    async def get(self, replay_id: str) -> ManyReplay:
        return letters.replay_of(await self._get(f"{_REPLAYS}/{quote(replay_id, safe='')}"))

    async def stop(self, replay_id: str) -> ManyReplay:
        return letters.replay_of(await self._post(f"{_REPLAYS}/{quote(replay_id, safe='')}/stop"))


class RemoteCarrier:
    """As `ReplayCarrier`: those that run there carry on, and not the command that looks."""

    async def look(self) -> bool:
        return False
