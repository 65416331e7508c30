"""Which limit a task waits for, and which slot of a limit it no longer needs."""

from __future__ import annotations

from urllib.parse import unquote

from taskframework.model.status import CLAIMABLE
from taskframework.model.task import HeldSlot, Task


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


def name_and_key(limit_id: str) -> tuple[str, str | None]:
    """The name and the key in the id of a limit's record; without a key, None."""
    _, name, *key = map(unquote, limit_id.split("/"))
    return name, key[0] if key else None
