"""Idempotency keys of operators: the same request again does nothing new, another request is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta

from taskframework.errors import TaskframeworkError
from taskframework.model.action_filters import Action, ActionFilter
from taskframework.model.records import Record
from taskframework.model.replay_keys import REPLAY_KEY, ReplayKey
from taskframework.model.replays import BulkAction
from taskframework.model.values import Json, fingerprint
from taskframework.stores.base import TaskStore
from taskframework.stores.reading import read_record


class ReplayConflictError(TaskframeworkError):
    """The operator used the idempotency key before for another request."""

    code = "idempotency_conflict"
    hint = "Repeat the first request with this key, or use a new key."

    def __init__(self, key: str, known: BulkAction | None = None) -> None:
        what = "" if known is None else f": {known.action} {known.replay_id}"
        super().__init__(f"The idempotency key {key!r} belongs to another request{what}.")
        self.key = key
        self.replay_id = None if known is None else known.replay_id


def replay_id_of(by: str, key: str) -> str:
    """Return the id of the action for which an operator's idempotency key stands."""
    return fingerprint(by, key)


def hash_of_action(action: Action, where: ActionFilter, rate: float | None, *, reopen: bool) -> str:
    """Return the hash of the request for an action on many tasks."""
    return _hash_of(action, where.conditions, rate, reopen)


def hash_of_replay(ids: Sequence[str], edit: Sequence[Json] = (), *, reopen: bool) -> str:
    """Return the hash of the request to replay these dead letters, in whatever order; `edit` has the new parameters."""
    return _hash_of("ids", sorted(set(ids)), edit, reopen)


def _hash_of(*parts: object) -> str:
    return fingerprint(json.dumps(parts, sort_keys=True))  # in whatever order a caller wrote the fields


class ReplayKeys:
    """Remembers for which request each key stands."""

    def __init__(self, store: TaskStore, kept: timedelta | None) -> None:
        """Prepare; `kept` is how long a key is remembered, None means for ever."""
        self._store = store
        self._kept = kept

    async def find(self, by: str, key: str, request_hash: str) -> ReplayKey | None:
        """Return what is known of a key; None if it came for the first time.

        Args:
            by: the operator; the keys of others are other keys.
            key: the idempotency key.
            request_hash: what is asked for now.

        Raises:
            ReplayConflictError: if the key stands for another request.
        """
        return _content_of(await self._read(by, key), key, request_hash)

    async def claim(self, by: str, key: str, request_hash: str, *, joined: str | None = None) -> None:
        """Let a key stand for a request from now on. Call this only when nothing is wrong with the request: whoever
        corrects it may use the key again.

        Args:
            by, key, request_hash: as in `find`.
            joined: the running action that does what is asked for, so that no other one begins.

        Raises:
            ReplayConflictError: if the key stands for another request.
        """
        record = await self._read(by, key)
        known = _content_of(record, key, request_hash)
        if known is not None and joined is None:
            return
        expires_at = None if self._kept is None else self._store.now() + self._kept
        record_id, content = REPLAY_KEY.id_of(replay_id_of(by, key)), ReplayKey(request_hash, joined)
        claimed = REPLAY_KEY.with_id(record_id, record, content, expires_at=expires_at)
        [written] = await self._store.write_records([claimed])
        if written is None:  # another process wrote first
            await self.find(by, key, request_hash)

    async def _read(self, by: str, key: str) -> Record | None:
        return await read_record(self._store, REPLAY_KEY.id_of(replay_id_of(by, key)))


def _content_of(record: Record | None, key: str, request_hash: str) -> ReplayKey | None:
    known = None if record is None else REPLAY_KEY.content(record)
    if known is not None and known.request_hash != request_hash:
        raise ReplayConflictError(key)
    return known
