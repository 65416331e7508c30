"""The marks of `taskframework.model.marks` as guarded MongoDB writes, except the marks of sub-tasks (see `waiting`)."""

from __future__ import annotations

from typing import Any

from taskframework.model.drivers import START
from taskframework.model.marks import (
    MAX_DOUBLINGS,
    ForgetDispatch,
    MakeDue,
    MarkDispatched,
    MarkPublished,
    PostponeRelay,
    RenewLease,
    ReserveDispatch,
    RestartQueueTimeout,
)
from taskframework.model.status import CLAIMABLE
from taskframework.stores.mongo.documents import Document
from taskframework.stores.mongo.expressions import (
    NOW,
    Changes,
    Expression,
    change,
    in_status,
    milliseconds,
    passed,
    plus,
    waits_from,
)
from taskframework.stores.mongo.joint import JointRequests, both
from taskframework.stores.mongo.queries import driven
from taskframework.stores.mongo.writes import Write, claimable, under_claim


def dispatch_marks(marks: JointRequests[MarkDispatched]) -> Write:
    guard = both(claimable(marks), _still_due(marks.each(lambda mark: mark.due)))
    return Write(guard, [change(_dispatched(marks))])


def _still_due(at: Expression) -> Document:
    """Filter: tasks that are due at this time; all tasks if the time is null."""
    return {"$expr": {"$eq": ["$next_dispatch_at", {"$ifNull": [at, "$next_dispatch_at"]}]}}


def reservations(reservations: JointRequests[ReserveDispatch]) -> Write:
    guard = both(claimable(reservations), passed("next_dispatch_at", "not_before"))
    return Write(guard, [change(_dispatched(reservations))])


def _dispatched(marks: JointRequests[Any]) -> Changes:
    doublings = {"$pow": [2, {"$min": ["$dispatches", MAX_DOUBLINGS]}]}
    first = {"$multiply": [marks.each(lambda mark: milliseconds(mark.first)), doublings]}
    wait = {"$min": [first, marks.each(lambda mark: milliseconds(mark.longest))]}
    due = {"$add": [{"$max": [NOW, "$not_before"]}, wait]}
    return {"next_dispatch_at": due, "dispatches": plus("$dispatches", 1)}


def due_marks(marks: JointRequests[MakeDue]) -> Write:
    delay = marks.each(lambda mark: milliseconds(mark.delay))
    due = plus(NOW, delay)
    start_by = {"$cond": [{"$gt": [delay, 0]}, waits_from(due), "$start_by"]}
    made_due: Changes = {"next_dispatch_at": due, "dispatches": 0, "start_by": start_by}
    if any(mark.limit for mark in marks):
        limit = marks.each(lambda mark: mark.limit)
        turn = {"limit": limit, "dispatch_epoch": "$dispatch_epoch", "until": due}
        made_due["waits_for_limit"] = {"$cond": [{"$eq": [limit, None]}, "$waits_for_limit", turn]}
    guard = both(claimable(marks), _still_due(marks.each(lambda mark: mark.due)))
    return Write(guard, [change(made_due)])


def waits_anew(marks: JointRequests[RestartQueueTimeout]) -> Write:
    guard = {**marks.of_them, **driven(START), "start_by": {"$type": "date"}}
    return Write(guard, [change({"start_by": waits_from(NOW)})])


def forgotten_dispatches(marks: JointRequests[ForgetDispatch]) -> Write:
    guard = {**marks.of_them, "status": in_status(*CLAIMABLE), "next_dispatch_at": {"$type": "date"}}
    may_have_message = {"$not": [marks.each(lambda mark: mark.only_put_off)]}
    is_behind = {"$gt": ["$next_dispatch_at", "$not_before"]}
    is_meant = {"$expr": {"$and": [is_behind, {"$or": [may_have_message, {"$eq": ["$dispatches", 0]}]}]}}
    return Write({**guard, **is_meant}, [change({"next_dispatch_at": "$not_before", "dispatches": 0})])


def renewals(renewals: JointRequests[RenewLease]) -> Write:
    expires_at = plus(NOW, renewals.each(lambda renewal: milliseconds(renewal.lease)))
    guard = under_claim(renewals)
    return Write(guard, [change({"lease.expires_at": expires_at})])


def published_marks(marks: JointRequests[MarkPublished]) -> Write:
    mark = marks.each(lambda mark: mark.sequence)
    published = {
        "published_sequence": {"$min": [mark, "$sequence"]},
        "publish_at": {"$cond": [{"$gte": [mark, "$sequence"]}, None, "$publish_at"]},
    }
    return Write({**marks.of_them, "$expr": {"$lt": ["$published_sequence", mark]}}, [change(published)])


def relay_delays(marks: JointRequests[PostponeRelay]) -> Write:
    due = plus(NOW, marks.each(lambda mark: milliseconds(mark.delay)))
    return Write({**marks.of_them, "publish_at": {"$ne": None}}, [change({"publish_at": due})])
