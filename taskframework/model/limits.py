"""What a task says of limits: which one it waits for, and whose slot it no longer needs."""

from __future__ import annotations

from taskframework.model.status import CLAIMABLE
from taskframework.model.task import HeldSlot, Task


def waiting_limit(task: Task) -> str | None:
    """The id of the limit for which the task waits in the store, if it does."""
    wait = task.waits_for_limit
    if wait is None or wait.dispatch_epoch != task.dispatch_epoch or task.status not in CLAIMABLE:
        return None
    return wait.limit


def slot_given_up(task: Task) -> HeldSlot | None:
    """The slot of the last claim that had one, if the task does not run under that claim any more."""
    held, lease = task.slot, task.lease
    if held is None or (lease is not None and lease.claim_id == held.claim_id):
        return None
    return held
