"""The record of an operator's idempotency key: the one request for which it stands."""

from __future__ import annotations

from dataclasses import dataclass

from taskframework.model.records import RecordKind


@dataclass(frozen=True, slots=True)
class ReplayKey:
    """The request that came first with this key. The id of the record is the id that an action with this key has."""

    #: The hash of what was asked for, without the reason.
    request_hash: str
    #: The action on many tasks that was running already, so that the request began no other one.
    joined: str | None = None


REPLAY_KEY = RecordKind("replay-key", ReplayKey)
