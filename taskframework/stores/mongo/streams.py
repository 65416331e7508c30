"""The moves of tasks in ordered streams as guarded MongoDB writes; to be read next to `model.stream_moves`."""

from __future__ import annotations

from taskframework.model.status import LIVE, TaskStatus
from taskframework.model.stream_moves import UNBLOCK_CHECK_INTERVAL, ClaimTurn, MovePosition, Skip, Unblock
from taskframework.stores.mongo.documents import Document
from taskframework.stores.mongo.expressions import (
    IS_RUNNING,
    NOW,
    Changes,
    Expression,
    Stage,
    choose_change,
    claimable_at,
    in_status,
    is_set,
    later,
    milliseconds,
    plus,
    set_fields,
    start_by,
    with_event,
)
from taskframework.stores.mongo.joint import JointRequests
from taskframework.stores.mongo.writes import Write, build_single_write

_IS_SERIAL: Expression = {"$eq": ["$stream.mode", "serial"]}


@build_single_write.register
def _skip(skip: Skip) -> Write:
    is_due = {"$expr": {"$gte": [NOW, skip.due]}}
    guard = {"_id": skip.task_id, "status": in_status(*LIVE), "stream.is_skipped": False, **is_due}
    return Write(guard, [set_fields(_skipped())])


def unblocks(requests: JointRequests[Unblock]) -> Write:
    due = {"$max": ["$not_before", NOW]}
    dispatch_at = plus(due, requests.each(lambda unblock: milliseconds(unblock.dispatch_after)))
    return Write(blocked_in_generation(requests), [set_fields(unblocked(due, next_dispatch_at=dispatch_at))])


def blocked_in_generation(requests: JointRequests[Unblock] | JointRequests[ClaimTurn]) -> Document:
    """Filter: the tasks are BLOCKED, in the generations that the requests name."""
    return {**requests.where(generation=lambda request: request.generation), "status": TaskStatus.BLOCKED}


def unblocked(due: Expression, **changes: Expression) -> Changes:
    """The changes of a task that is unblocked, and due at this time."""
    began = {"unblock_at": None, "start_by": start_by(due), **changes}
    return {**claimable_at(TaskStatus.QUEUED, due), **began, **with_event("unblocked")}


@build_single_write.register
def _move_position(move: MovePosition) -> Write:
    guard = {"_id": move.task_id, "stream.position": move.before}
    return Write(guard, [set_fields({"stream.position": move.after, "revision": plus("$revision", 1)})])


def skipped_in_stream() -> Stage:
    """`model.stream_moves.skipped_in_stream`."""
    is_running_in_turn = {"$and": [_IS_SERIAL, IS_RUNNING]}
    goes_on = {"$and": [is_set("$stream"), {"$not": ["$stream.is_skipped"]}, {"$not": [is_running_in_turn]}]}
    changes = _skipped()
    del changes["revision"]  # the event that follows raises it
    return choose_change(goes_on, changes, {})


def blocked_if_serial() -> Stage:
    """`model.stream_moves.blocked_if_serial`, for a task that the previous stage has made claimable now."""
    waits: Document = {
        "stream": {"$mergeObjects": ["$stream", {"is_skipped": False}]},
        "status": {"$cond": [_IS_SERIAL, TaskStatus.BLOCKED, "$status"]},
        "next_dispatch_at": {"$cond": [_IS_SERIAL, None, "$next_dispatch_at"]},
        "unblock_at": {"$cond": [_IS_SERIAL, later(UNBLOCK_CHECK_INTERVAL), "$unblock_at"]},
    }
    return choose_change(is_set("$stream"), waits, {})


def _skipped() -> Changes:
    """`model.stream_moves.skipped`."""
    data = {"stream": "$stream.key", "position": "$stream.position"}
    place = {"$mergeObjects": ["$stream", {"is_skipped": True}]}
    return {"stream": place, **with_event("skipped", data=data)}
