"""The moves of signals, `taskframework.model.signals`, as guarded MongoDB writes."""

from __future__ import annotations

from taskframework.model.signals import MAX_SIGNALS, SendSignal, Wake
from taskframework.model.status import LIVE, TaskStatus
from taskframework.model.waiting import RECOUNT_AFTER
from taskframework.stores.mongo.documents import encode_value
from taskframework.stores.mongo.expressions import (
    NOW,
    Changes,
    Expression,
    choose_change,
    has_passed,
    in_scope,
    in_status,
    is_set,
    later,
    literal,
    plus,
    set_fields,
    with_event,
)
from taskframework.stores.mongo.waiting import IS_WAITING, SIGNALS, has_name, next_check, resumed, unused_signals
from taskframework.stores.mongo.writes import Write, build_single_write


@build_single_write.register
def _send_signal(send: SendSignal) -> Write:
    guard = {"_id": send.task_id, "status": in_status(*LIVE), "batch": None, **in_scope(send.scope)}
    signal = _signal(literal(send.key), literal(send.name), payload=literal(encode_value(send.payload)))
    is_waited_for = {"$and": [IS_WAITING, {"$eq": ["$waits_for.name", literal(send.name)]}]}
    has_room = {"$lt": [{"$size": _without_oldest_used()}, MAX_SIGNALS]}
    guard |= {"signals.key": {"$ne": send.key}, "$expr": {"$or": [is_waited_for, has_room]}}
    told = with_event("signalled", data={"signal": literal(send.name), "key": literal(send.key)})
    return Write(
        guard,
        [
            set_fields({"signals": {"$concatArrays": [_without_oldest_used(), [signal]]}}),
            choose_change(is_waited_for, {"woken_by": _first_unused_signal("$waits_for.name")}, {}),
            choose_change(is_waited_for, _resumed_by_signal(), told),
        ],
    )


@build_single_write.register
def _wake(wake: Wake) -> Write:
    guard = {"_id": wake.task_id, "status": TaskStatus.WAITING, **has_passed("check_at")}
    name, until = "$waits_for.name", "$waits_for.until"
    has_kept = {"$ne": [unused_signals(has_name(name)), []]}
    is_late = {"$and": [is_set(until), {"$lte": [until, NOW]}]}
    late = {
        "woken_by": _signal("", name, timed_out=True),
        **resumed("signal", {"signal": name, "timed_out": True}),
    }
    # If no round is awaited, the last value is null, which `$min` ignores.
    recount_at = {"$cond": ["$subtasks.is_awaited", later(RECOUNT_AFTER), None]}
    later_on = {"check_at": {"$min": [next_check(name, until), recount_at]}, "revision": plus("$revision", 1)}
    return Write(
        guard,
        [
            choose_change(has_kept, {"woken_by": _first_unused_signal(name)}, {}),
            choose_change(has_kept, _resumed_by_signal(), {"$cond": [is_late, late, later_on]}),
        ],
    )


def _signal(
    key: Expression, name: Expression, *, payload: Expression = None, timed_out: bool = False
) -> dict[str, Expression]:
    """A signal of this moment, in its stored form."""
    return {"key": key, "name": name, "at": NOW, "payload": payload, "is_heard": False, "timed_out": timed_out}


def _without_oldest_used() -> Expression:
    """`model.signals._without_oldest_used`."""
    heard = {"$filter": {"input": SIGNALS, "as": "signal", "cond": "$$signal.is_heard"}}
    is_other = {"$ne": ["$$signal.key", {"$first": "$$heard.key"}]}
    others = {"$filter": {"input": SIGNALS, "as": "signal", "cond": is_other}}
    with_room = {"$let": {"vars": {"heard": heard}, "in": others}}
    return {"$cond": [{"$lt": [{"$size": SIGNALS}, MAX_SIGNALS]}, SIGNALS, with_room]}


def _first_unused_signal(name: Expression) -> Expression:
    return {"$first": unused_signals(has_name(name))}


def _resumed_by_signal() -> Changes:
    """`model.signals.resumed_by_signal`; the previous stage has put the signal into `woken_by`."""
    heard = {"$mergeObjects": ["$$signal", {"payload": None, "is_heard": True}]}
    is_it = {"$eq": ["$$signal.key", "$woken_by.key"]}
    signals = {"$map": {"input": SIGNALS, "as": "signal", "in": {"$cond": [is_it, heard, "$$signal"]}}}
    data = {"signal": "$woken_by.name", "key": "$woken_by.key"}
    return {"signals": signals, **resumed("signal", data)}
