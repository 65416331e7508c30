"""Which limit a task waits for, and which slot of a limit it no longer needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from taskframework.model.rate_limits import RATE
from taskframework.model.records import parts_of
from taskframework.model.slots import SLOTS
from taskframework.model.status import CLAIMABLE
from taskframework.model.task import Task
from taskframework.model.task_fields import HeldSlot
from taskframework.model.values import fingerprint
from taskframework.model.wording import pluralize

#: Most characters of a key in an id; a longer one is replaced by its hash.
_MAX_KEY_LENGTH = 200
#: Most characters of a limit that a person names as `NAME/KEY`: a key may be given in full length.
MAX_LIMIT_LENGTH = 2000


def short_key(key: str) -> str:
    """The text that stands for a key in the ids of records, in lists and in messages: the key, or its hash."""
    return key if len(key) <= _MAX_KEY_LENGTH else fingerprint(key)


def waiting_limit(task: Task) -> str | None:
    """The id of the limit for which the task waits in the store; None if it waits for no limit."""
    wait = task.waits_for_limit
    if wait is None or wait.dispatch_epoch != task.dispatch_epoch or task.status not in CLAIMABLE:
        return None
    return wait.limit


def slot_to_give_back(task: Task) -> HeldSlot | None:
    """The slot of the last claim that had a slot; None if there is none, or the task runs under that claim."""
    held, lease = task.slot, task.lease
    if held is None or (lease is not None and lease.claim_id == held.claim_id):
        return None
    return held


def key_text(key: str) -> str:
    """A key as part of a sentence; tasks without a value have the empty key."""
    return key or "tasks without a value"


def kind_of(limit_id: str) -> str:
    """The name of the record kind of a limit: of rate limits or of concurrency limits."""
    return limit_id.partition("/")[0]


def name_and_key(limit_id: str) -> tuple[str, str | None]:
    """The name and the key in the id of a limit's record; without a key, None."""
    name, *key = parts_of(limit_id)
    return name, key[0] if key else None


@dataclass(frozen=True, slots=True)
class ReachedLimit:
    """A limit that lets no more tasks begin now."""

    kind: Literal["rate", "concurrency"]
    name: str
    key: str | None


def reached_limits_text(limits: Sequence[ReachedLimit]) -> str:
    """Which limits are reached, and what lets more tasks begin."""
    return " ".join(_reached_limit_texts(limits))


def _reached_limit_texts(limits: Sequence[ReachedLimit]) -> Iterator[str]:
    if rates := [limit for limit in limits if limit.kind == "rate"]:
        what = f"The rate limit {rates[0].name!r}{_keys_text(rates)} is used up"
        yield f"{what}: a higher rate in rate_limiter lets more tasks start."
    if slots := [limit for limit in limits if limit.kind == "concurrency"]:
        what = f"All slots of {slots[0].name}{_keys_text(slots)} are in use"
        yield f"{what}: a higher concurrency_limit lets more tasks run."


def _keys_text(limits: Sequence[ReachedLimit]) -> str:
    keys = [limit.key for limit in limits if limit.key is not None]
    if not keys:
        return ""
    return f" for {key_text(keys[0])}" + (f" and {pluralize(len(keys) - 1, 'other key')}" if len(keys) > 1 else "")


def limit_ids(name: str) -> tuple[str, ...]:
    """The ids of the limits that a person calls `NAME`, or `NAME/KEY`: a rate limit, and the slots of a task type."""
    name, has_key, key = name.partition("/")
    parts = (name, short_key(key)) if has_key else (name,)
    return tuple(kind.id_of(*parts) for kind in (RATE, SLOTS))
