"""The marks of `taskframework.model.marks` as guarded MongoDB writes."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from taskframework.model.drivers import START
from taskframework.model.marks import (
    MAX_DOUBLINGS,
    CascadeAgain,
    CountAfterEnd,
    CountAgain,
    EndPutOff,
    ForgetDispatch,
    MakeDue,
    MarkDispatched,
    MarkPublished,
    MarkSpawned,
    MoveDriver,
    PostponeRelay,
    RenewLease,
    ReserveDispatch,
    RestartQueueTimeout,
)
from taskframework.model.status import CLAIMABLE, FINAL
from taskframework.stores.mongo.documents import Document
from taskframework.stores.mongo.expressions import (
    CASCADE_IF_OPEN,
    NOW,
    Changes,
    Expression,
    choose_change,
    has_passed,
    in_status,
    later,
    milliseconds,
    plus,
    set_fields,
    start_by_after,
)
from taskframework.stores.mongo.joint import JointRequests, combine_filters
from taskframework.stores.mongo.queries import driven
from taskframework.stores.mongo.waiting import IS_AWAITED
from taskframework.stores.mongo.writes import Write, build_single_write, claimable, under_claim


def dispatch_marks(marks: JointRequests[MarkDispatched]) -> Write:
    guard = combine_filters(claimable(marks), _still_due(marks.each(lambda mark: mark.due)))
    return Write(guard, [set_fields(_dispatched(marks))])


def _still_due(at: Expression) -> Document:
    """Filter: tasks that are due at this time; all tasks if the time is null."""
    return {"$expr": {"$eq": ["$next_dispatch_at", {"$ifNull": [at, "$next_dispatch_at"]}]}}


def reservations(reservations: JointRequests[ReserveDispatch]) -> Write:
    guard = combine_filters(claimable(reservations), has_passed("next_dispatch_at", "not_before"))
    return Write(guard, [set_fields(_dispatched(reservations))])


def _dispatched(marks: JointRequests[Any]) -> Changes:
    doublings = {"$pow": [2, {"$min": ["$dispatches", MAX_DOUBLINGS]}]}
    first = {"$multiply": [marks.each(lambda mark: milliseconds(mark.first)), doublings]}
    wait = {"$min": [first, marks.each(lambda mark: milliseconds(mark.longest))]}
    due = {"$add": [{"$max": [NOW, "$not_before"]}, wait]}
    return {"next_dispatch_at": due, "dispatches": plus("$dispatches", 1)}


def due_marks(marks: JointRequests[MakeDue]) -> Write:
    delay = marks.each(lambda mark: milliseconds(mark.delay))
    due = plus(NOW, delay)
    is_held = {"$and": [{"$gt": [delay, 0]}, {"$not": [marks.each(lambda mark: mark.was_refused)]}]}
    start_by = {"$cond": [is_held, start_by_after(due), "$start_by"]}
    made_due: Changes = {"next_dispatch_at": due, "dispatches": 0, "start_by": start_by}
    if any(mark.limit for mark in marks):
        limit = marks.each(lambda mark: mark.limit)
        turn = {"limit": limit, "dispatch_epoch": "$dispatch_epoch", "until": due}
        made_due["waits_for_limit"] = {"$cond": [{"$eq": [limit, None]}, "$waits_for_limit", turn]}
    guard = combine_filters(claimable(marks), _still_due(marks.each(lambda mark: mark.due)))
    return Write(guard, [set_fields(made_due)])


def restarted_queue_timeouts(marks: JointRequests[RestartQueueTimeout]) -> Write:
    guard = {**marks.id_filter, **driven(START), "start_by": {"$type": "date"}}
    return Write(guard, [set_fields({"start_by": start_by_after(NOW)})])


def forgotten_dispatches(marks: JointRequests[ForgetDispatch]) -> Write:
    guard = {**marks.id_filter, "status": in_status(*CLAIMABLE), "next_dispatch_at": {"$type": "date"}}
    is_behind = {"$expr": {"$gt": ["$next_dispatch_at", "$not_before"]}}
    return Write({**guard, **is_behind}, [set_fields({"next_dispatch_at": "$not_before", "dispatches": 0})])


def ended_put_offs(marks: JointRequests[EndPutOff]) -> Write:
    due = {"$cond": [{"$lte": ["$not_before", NOW]}, marks.each(lambda mark: mark.due), "$not_before"]}
    waiting = {"status": in_status(*CLAIMABLE), "next_dispatch_at": {"$type": "date"}, "dispatches": 0}
    guard = {**marks.id_filter, **waiting, "$expr": {"$gt": ["$next_dispatch_at", due]}}
    return Write(guard, [set_fields({"next_dispatch_at": due})])


def renewals(renewals: JointRequests[RenewLease]) -> Write:
    expires_at = plus(NOW, renewals.each(lambda renewal: milliseconds(renewal.lease)))
    guard = under_claim(renewals)
    return Write(guard, [set_fields({"lease.expires_at": expires_at})])


def published_marks(marks: JointRequests[MarkPublished]) -> Write:
    mark = marks.each(lambda mark: mark.sequence)
    published = {
        "published_sequence": {"$min": [mark, "$sequence"]},
        "publish_at": {"$cond": [{"$gte": [mark, "$sequence"]}, None, "$publish_at"]},
    }
    return Write({**marks.id_filter, "$expr": {"$lt": ["$published_sequence", mark]}}, [set_fields(published)])


def relay_delays(marks: JointRequests[PostponeRelay]) -> Write:
    due = plus(NOW, marks.each(lambda mark: milliseconds(mark.delay)))
    return Write({**marks.id_filter, "publish_at": {"$ne": None}}, [set_fields({"publish_at": due})])


@build_single_write.register
def _count_after_end(count: CountAfterEnd) -> Write:
    guard = {
        "_id": count.task_id,
        "status": in_status(*FINAL),
        "generation": count.generation,
        "subtasks.round": count.round,
        "subtasks.done": {"$lt": count.counts.done},
    }
    counts = {"done": count.counts.done, **asdict(count.counts)}
    return Write(guard, [set_fields({f"subtasks.{name}": number for name, number in counts.items()})])


@build_single_write.register
def _move_driver(mark: MoveDriver) -> Write:
    due = None if mark.delay is None else later(mark.delay)
    return Write({"_id": mark.task_id, mark.driver.field: mark.due}, [set_fields({mark.driver.field: due})])


@build_single_write.register
def _mark_spawned(mark: MarkSpawned) -> Write:
    stored = {"$mergeObjects": ["$subtasks", {"plan": None, "plan_records": 0}]}
    cascade_at = {"$cond": [IS_AWAITED, "$cascade_at", CASCADE_IF_OPEN]}
    spawned = {"spawn_at": None, "subtasks": stored, "cascade_at": cascade_at}
    guard = {"_id": mark.task_id, "subtasks": {"$type": "object"}}
    return Write(guard, [choose_change(_is_round(mark), spawned, {"cascade_at": NOW})])


@build_single_write.register
def _cascade_again(mark: CascadeAgain) -> Write:
    is_awaited = {"$and": [_is_round(mark), IS_AWAITED]}
    guard = {"_id": mark.task_id, "subtasks": {"$type": "object"}, "$expr": {"$not": [is_awaited]}}
    return Write(guard, [set_fields({"cascade_at": NOW})])


def _is_round(mark: MarkSpawned | CascadeAgain) -> Expression:
    """Whether the mark is about the newest round of the task."""
    return {"$and": [{"$eq": ["$generation", mark.generation]}, {"$eq": ["$subtasks.round", mark.round]}]}


@build_single_write.register
def _count_again(mark: CountAgain) -> Write:
    guard = {"_id": mark.task_id, "subtasks": {"$type": "object"}, "$expr": IS_AWAITED}
    return Write(guard, [set_fields({"subtasks.report_serial": plus("$subtasks.report_serial", 1), "check_at": NOW})])
