"""Transitions and marks as MongoDB writes: an update of one task with a filter as guard; and the registry of rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

from taskframework.model.status import CLAIMABLE, TaskStatus
from taskframework.stores.mongo.documents import Document
from taskframework.stores.mongo.expressions import in_status
from taskframework.stores.mongo.joint import JointRequests


@dataclass(frozen=True, slots=True)
class Write:
    """An update: the filter that must match, and the stages of the pipeline."""

    guard: Document
    stages: Sequence[Any]


@singledispatch
def build_single_write(request: object) -> Write:
    """The write for a request whose class is never joined. Each rule registers itself by the class of its argument.

    Raises:
        TypeError: for a class that has no rule here.
    """
    name = type(request).__name__
    raise TypeError(f"{name} has no rule for MongoDB; add it to the file of its name in taskframework/stores/mongo")


def under_claim(requests: JointRequests[Any]) -> Document:
    """Filter: each of these tasks runs under the claim of its request."""
    guard = requests.where(fencing_token=lambda request: request.fence.fencing_token)
    # A claim id belongs to one claim of one task, so no task can match by the claim of another task.
    claims = [request.fence.claim_id for request in requests]
    return {**guard, "status": TaskStatus.RUNNING, "lease.claim_id": claims[0] if len(claims) == 1 else {"$in": claims}}


def claimable(requests: JointRequests[Any]) -> Document:
    """Filter: these tasks, if they can be claimed in the epoch that each request names."""
    guard = requests.where(dispatch_epoch=lambda request: request.dispatch_epoch)
    return {**guard, "status": in_status(*CLAIMABLE)}
