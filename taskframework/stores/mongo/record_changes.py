"""The guarded writes of records as pipeline updates; to be read next to their rules in `taskframework.model`.

The same update also inserts a record that does not exist yet: its fields are then missing, which counts as null.
"""

from __future__ import annotations

from dataclasses import asdict, fields
from functools import singledispatch
from typing import Any

from taskframework.model import slots
from taskframework.model.rate_limits import (
    KEPT_AFTER_FULL,
    RATE,
    ROUNDING,
    UNUSED_TURNS_SECONDS,
    HoldBucket,
    TakePermits,
)
from taskframework.model.streams import MAX_KEPT_REQUESTS, STREAMS, PassTurn, Stream, TakePositions, Turn
from taskframework.stores.mongo.expressions import NOW, Changes, Expression, literal, milliseconds, plus
from taskframework.stores.mongo.joint import JointRequests

#: The server's time in seconds since 1970, like `to_timestamp`.
_NOW: Expression = {"$divide": [{"$toLong": NOW}, 1000.0]}


def steps_of(change: object) -> list[Changes]:
    """The fields of the record after each step of a change; nearly every change has one step.

    Raises:
        TypeError: as `changes_of`.
    """
    if not isinstance(change, slots.SlotChanges):
        return [changes_of(change)]
    *before, last = map(changes_of, change.changes)
    return [*({"data": changes["data"]} for changes in before), last]  # the next step reads only the data


@singledispatch
def changes_of(change: object) -> Changes:
    """The fields of the record after a change.

    Raises:
        TypeError: for a class that has no rule here.
    """
    name = type(change).__name__
    raise TypeError(f"{name} has no rule for MongoDB; add it to taskframework.stores.mongo.record_changes")


@changes_of.register
def _take_permits(take: TakePermits) -> Changes:
    rate = float(take.limit.rate)
    start = {"$max": [_field("full_at"), "$$now"]}
    ahead = {"$multiply": [{"$subtract": [{"$add": ["$$now", float(take.ahead)]}, "$$start"]}, rate]}
    ready = {"$floor": {"$add": [{"$add": [ahead, take.limit.capacity]}, ROUNDING]}}
    granted: Expression = {"$toInt": {"$max": [0, {"$min": [take.most, ready]}]}}
    lines = _lines()
    if take.in_line and not take.has_turn:
        is_unused = {"$gt": [{"$subtract": ["$$now", _field("full_at")]}, UNUSED_TURNS_SECONDS + 1 / rate]}
        lines = {name: {"$cond": [is_unused, 0.0, turn_at]} for name, turn_at in lines.items()}
        granted = {"$cond": [{"$gt": [{"$max": [*lines.values()]}, "$$now"]}, 0, granted]}
    first_at: Expression = {"$subtract": ["$$start", take.limit.burst_seconds]}
    if take.in_line:
        own, before = ("late_at", [lines["late_at"]]) if take.has_turn else ("line_at", [*lines.values()])
        turn = {"$max": [first_at, *before, "$$now"]}
        lines[own] = {"$cond": ["$$granted", lines[own], {"$add": [turn, take.most / rate]}]}
        first_at = {"$cond": ["$$granted", first_at, turn]}
    bucket = {
        "full_at": {"$cond": ["$$granted", {"$add": ["$$start", {"$divide": ["$$granted", rate]}]}, _field("full_at")]},
        **lines,
        "asked_at": "$$now",
        "granted": "$$granted",
        "first_at": first_at,
    }
    return _bucket(_let({"now": _NOW}, _let({"start": start}, _let({"granted": granted}, bucket))))


@changes_of.register
def _hold_bucket(hold: HoldBucket) -> Changes:
    held = {"$add": ["$$now", hold.seconds + hold.limit.burst_seconds]}
    bucket = {
        "full_at": {"$max": [_field("full_at"), held]},
        **_lines(),
        "asked_at": "$$now",
        "granted": 0,
        "first_at": {"$add": ["$$now", float(hold.seconds)]},
    }
    return _bucket(_let({"now": _NOW}, bucket))


@changes_of.register
def _take_slot(take: slots.TakeSlot) -> Changes:
    until = {"$add": ["$$now", float(take.claimed_within)]}
    is_it: Expression = {"$eq": ["$$it.claim_id", literal(take.claim_id)]}
    renewed = {"$map": {"input": "$$holders", "as": "it", "in": {"$cond": [is_it, _with("$$it", until=until), "$$it"]}}}
    rank, since = {"$lt": ["$$it.rank", take.rank]}, {"$lt": ["$$it.since", float(take.since)]}
    is_ahead = {"$or": [rank, {"$and": [{"$eq": ["$$it.rank", take.rank]}, since]}]}
    others = {"$and": [_COUNTS, {"$ne": ["$$it.task_id", literal(take.task_id)]}]}
    in_use = {"$add": [{"$size": "$$holders"}, {"$size": _filtered("$$line", {"$and": [others, is_ahead]})}]}
    names = {"task_id": literal(take.task_id), "claim_id": literal(take.claim_id), "worker_id": literal(take.worker_id)}
    holder = {**names, "since": "$$now", "until": until}
    taken = {"holders": {"$concatArrays": ["$$holders", [holder]]}, "line": _filtered("$$line", others)}
    waiting_until = {"$max": [_field("waiting_until"), {"$add": ["$$now", float(take.asks_again_within)]}]}
    back = {"waiting_until": waiting_until, "line": taken["line"]} if take.asks_again_within else {}
    holds = {"$in": [literal(take.claim_id), "$$holders.claim_id"]}
    refused = {"$gte": [in_use, take.number]}
    changed = {"$cond": [holds, {"holders": renewed}, {"$cond": [refused, back, taken]}]}
    return _slots({"$mergeObjects": [{"number": take.number}, changed]})


@changes_of.register
def _give_slot_back(back: slots.GiveSlotBack) -> Changes:
    stays: Expression = {"$ne": ["$$it.claim_id", literal(back.claim_id)]}
    if back.until is not None:
        stays = {"$or": [stays, {"$ne": ["$$it.until", back.until]}]}
    return _slots({"holders": _filtered("$$holders", stays)})


@changes_of.register
def _keep_place(keep: slots.KeepPlace) -> Changes:
    is_it = {"$eq": ["$$it.task_id", literal(keep.task_id)]}
    is_given = {"$and": [is_it, _COUNTS, {"$ne": ["$$it.by", literal(keep.by)]}]}
    until = {"$add": ["$$now", float(keep.seconds)]}
    place = {"task_id": literal(keep.task_id), "rank": keep.rank, "since": float(keep.since), "by": literal(keep.by)}
    others = _filtered("$$line", {"$and": [_COUNTS, {"$not": is_it}]})
    line = {"$concatArrays": [others, [{**place, "until": until}]]}
    stays = [{"$ne": [_filtered("$$line", is_given), []]}]
    if keep.for_free_slot:
        in_use = {"$add": [{"$size": "$$holders"}, {"$size": _filtered("$$line", _COUNTS)}]}
        has_none = {"$eq": [_filtered("$$line", {"$and": [is_it, _COUNTS]}), []]}
        stays.append({"$and": [has_none, {"$gte": [in_use, _field("number", 0)]}]})
    return _slots({"line": {"$cond": [{"$or": stays}, "$$line", line]}})


@changes_of.register
def _announce_waiting(announce: slots.AnnounceWaiting) -> Changes:
    waiting_until = {"$max": [_field("waiting_until"), {"$add": ["$$now", float(announce.seconds)]}]}
    return _slots({"number": announce.number, "waiting_until": waiting_until})


#: Whether a place in the line still counts.
_COUNTS: Expression = {"$gt": ["$$it.until", "$$now"]}


def _slots(changed: Expression) -> Changes:
    """The record of the slots with changed fields. Their expressions see `now`, and `holders` and `line` before it."""
    before = {
        "number": _field("number", 0),
        "holders": "$$holders",
        "line": "$$line",
        "waiting_until": _field("waiting_until"),
        "asked_at": "$$now",
    }
    names = {"now": _NOW, "holders": _field("holders", []), "line": _field("line", [])}
    after = _let(names, {"$mergeObjects": ["$data", before, changed]})
    over_at = {"$max": ["$$after.asked_at", "$$after.waiting_until"]}
    is_held = {"$ne": ["$$after.holders", []]}
    expires_at = {"$cond": [is_held, None, _moment(over_at, milliseconds(slots.KEPT_AFTER_USE))]}
    return {"kind": slots.SLOTS.name, "data": after, "expires_at": _let({"after": after}, expires_at)}


def _filtered(entries: Expression, condition: Expression) -> Expression:
    return {"$filter": {"input": entries, "as": "it", "cond": condition}}


def _with(entry: Expression, **fields: Expression) -> Expression:
    return {"$mergeObjects": [entry, fields]}


#: Whether there is no record yet.
_IS_NEW: Expression = {"$eq": [{"$type": "$data"}, "missing"]}


@changes_of.register
def _take_positions(take: TakePositions) -> Changes:
    alone = JointRequests([take], [take.record_id])
    taken = taken_positions(alone)
    new = literal(STREAMS.data_of(take.apply(Stream(take.mode))))
    data = {"$cond": [_IS_NEW, new, {"$cond": [may_take(alone), taken["data"], "$data"]}]}
    return {**taken, "data": data}


def taken_positions(takes: JointRequests[TakePositions]) -> Changes:
    """The fields after each stream's request has taken its positions; valid only where `may_take` holds."""
    taken = {"by": takes.each(lambda take: take.by), "first": "$data.next_position"}
    data = {
        "next_position": {"$add": ["$data.next_position", takes.each(lambda take: take.count)]},
        "taken": {"$slice": [{"$concatArrays": [_field("taken", []), [taken]]}, -MAX_KEPT_REQUESTS]},
    }
    return {
        "kind": STREAMS.name,
        "data": {"$mergeObjects": ["$data", data]},
        "expires_at": {"$max": ["$expires_at", _kept(takes)]},
    }


def may_take(takes: JointRequests[TakePositions]) -> Expression:
    """The expression that says whether the stream has the mode of the request, which has taken no positions yet."""
    is_mode = {"$eq": ["$data.mode", takes.each(lambda take: take.mode)]}
    has_taken = {"$in": [takes.each(lambda take: take.by), _field("taken.by", [])]}
    return {"$and": [is_mode, {"$not": has_taken}]}


@changes_of.register
def _pass_turn(pass_: PassTurn) -> Changes:
    alone = JointRequests([pass_], [pass_.record_id])
    passed = passed_turns(alone)
    new = literal(STREAMS.data_of(pass_.apply(Stream())))
    data = {"$cond": [_IS_NEW, new, {"$cond": [are_turns_unchanged(alone), passed["data"], "$data"]}]}
    return {**passed, "data": data}


def passed_turns(passes: JointRequests[PassTurn]) -> Changes:
    """The fields after each stream's request has passed the turn on; valid only where `are_turns_unchanged` holds."""
    passed = {
        "next_position": {"$max": ["$data.next_position", "$$asked.behind"]},
        "turn": "$$asked.after",
        "is_halted": "$$asked.is_halted",
    }
    data = {"$mergeObjects": ["$data", passed]}
    return {
        "kind": STREAMS.name,
        "data": _let({"asked": passes.each(_asked_of)}, data),
        "expires_at": {"$max": ["$expires_at", _kept(passes)]},
    }


def are_turns_unchanged(passes: JointRequests[PassTurn]) -> Expression:
    """The expression that says whether each stream still has the turn that was read."""
    before = passes.each(lambda pass_: None if pass_.before is None else asdict(pass_.before))
    names = [field.name for field in fields(Turn)]
    same = [{"$eq": [_or_null(f"$data.turn.{it}"), _or_null(f"$$before.{it}")]} for it in names]
    return _let({"before": before}, {"$and": same})


def _kept(requests: JointRequests[Any]) -> Expression:
    return plus(NOW, requests.each(lambda request: milliseconds(request.kept_for)))


def _asked_of(pass_: PassTurn) -> dict[str, Any]:
    after = pass_.after
    return {
        "after": None if after is None else asdict(after),
        "behind": 0 if after is None else after.position + 1,
        "is_halted": pass_.is_halted,
    }


def _or_null(path: str) -> Expression:
    return {"$ifNull": [path, None]}


def _bucket(bucket: Expression) -> Changes:
    """The record of a bucket. Its content is merged into the stored content, so that fields of a newer release stay."""
    over_at = {"$max": ["$$bucket.full_at", "$$bucket.line_at", "$$bucket.late_at"]}
    expires_at = _moment(over_at, milliseconds(KEPT_AFTER_FULL))
    data = {"$mergeObjects": ["$data", "$$bucket"]}
    return {
        "kind": RATE.name,
        "data": _let({"bucket": bucket}, data),
        "expires_at": _let({"bucket": bucket}, expires_at),
    }


def _lines() -> dict[str, Expression]:
    """The next turns of both lines of a bucket."""
    return {name: _field(name) for name in ("line_at", "late_at")}


def _moment(seconds: Expression, delay: int) -> Expression:
    """The time that is `delay` milliseconds after this number of seconds since 1970."""
    return {"$toDate": {"$toLong": {"$add": [{"$multiply": [seconds, 1000]}, delay]}}}


def _field(name: str, default: Expression = 0.0) -> Expression:
    return {"$ifNull": [f"$data.{name}", default]}


def _let(names: dict[str, Any], expression: Expression) -> Expression:
    return {"$let": {"vars": names, "in": expression}}
