"""The transitions and marks of the model as guarded MongoDB writes, one function for each class.

To be read next to `taskframework.model`: the guard is the check of the pure rule `apply`, and the stages are its
changes. The conformance suite checks that both give the same documents. The rules are in files with the names of those
in `taskframework.model`; rules of requests that are often written together are in the table here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from taskframework.model.attempts import Claim, Complete, Fail
from taskframework.model.marks import (
    EndPutOff,
    ForgetDispatch,
    MakeDue,
    MarkDispatched,
    MarkPublished,
    PostponeRelay,
    RenewLease,
    ReserveDispatch,
    RestartQueueTimeout,
)
from taskframework.model.stream_moves import ClaimTurn, Unblock
from taskframework.model.waiting import Wait

# `batches`, `interventions` and `signals` register their rules when they are imported.
from taskframework.stores.mongo import attempts, batches, interventions, marks, signals, waiting  # noqa: F401
from taskframework.stores.mongo.joint import JointRequests
from taskframework.stores.mongo.streams import unblocks
from taskframework.stores.mongo.writes import Write, build_single_write


def build_write(requests: Sequence[Any]) -> Write:
    """The write for one transition or mark, or for several of one class in `JOINT`, each about another task.

    Raises:
        TypeError: for a class that has no rule here.
    """
    joint = _JOINT.get(type(requests[0]))
    if joint is not None:
        return joint(JointRequests(requests))
    [request] = requests
    return build_single_write(request)


_JOINT: dict[type[Any], Callable[[JointRequests[Any]], Write]] = {
    Claim: attempts.claims,
    ClaimTurn: attempts.turn_claims,
    Complete: attempts.completions,
    Fail: attempts.failures,
    EndPutOff: marks.ended_put_offs,
    ForgetDispatch: marks.forgotten_dispatches,
    MakeDue: marks.due_marks,
    MarkDispatched: marks.dispatch_marks,
    ReserveDispatch: marks.reservations,
    RenewLease: marks.renewals,
    MarkPublished: marks.published_marks,
    PostponeRelay: marks.relay_delays,
    Unblock: unblocks,
    Wait: waiting.waits,
    RestartQueueTimeout: marks.restarted_queue_timeouts,
}
#: The classes of which many requests can be one write: these requests are frequent.
JOINT = frozenset(_JOINT)
