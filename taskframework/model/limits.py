"""What a task says of the limits that hold it up or that it takes part of."""

from __future__ import annotations

from taskframework.model.status import CLAIMABLE
from taskframework.model.task import HeldSlot, Task


def waiting_limit(task: Task) -> str | None:
    """The id of the limit that lets no more begin, if the task waits in the store for that."""
    wait = task.waits_for_limit
    if wait is None or wait.dispatch_epoch != task.dispatch_epoch or task.status not in CLAIMABLE:
        return None
    return wait.limit


def slot_given_up(task: Task) -> HeldSlot | None:
    """The slot of its last attempt that had one, once the task does not run under that claim any more."""
    held, lease = task.slot, task.lease
    if held is None or (lease is not None and lease.claim_id == held.claim_id):
        return None
    return held
