"""The guarded writes of records as pipeline updates; to be read next to their rules in `taskframework.model`.

A record that is not there yet is made by the same update: its fields are missing then, which counts as null.
"""

from __future__ import annotations

from functools import singledispatch
from typing import Any

from taskframework.model.rate_limits import KEPT, RATE, ROUNDING, BucketLimit, HoldBucket, TakePermits
from taskframework.stores.mongo.expressions import NOW, Changes, Expression, milliseconds

#: The server's time in seconds, as `seconds_of` has it.
_NOW: Expression = {"$divide": [{"$toLong": NOW}, 1000.0]}


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
    rate, burst = float(take.limit.rate), take.limit.burst
    start = {"$max": [_field("full_at"), "$$now"]}
    ahead = {"$multiply": [{"$subtract": [{"$add": ["$$now", float(take.ahead)]}, "$$start"]}, rate]}
    ready = {"$floor": {"$add": [{"$add": [ahead, burst]}, ROUNDING]}}
    granted: Expression = {"$toInt": {"$max": [0, {"$min": [take.most, ready]}]}}
    if take.in_line and not take.has_turn:
        granted = {"$cond": [{"$gt": [_field("line_at"), "$$now"]}, 0, granted]}
    first_at: Expression = {"$add": ["$$start", (1 - burst) / rate]}
    line_at: Expression = _field("line_at")
    if take.in_line:
        turn = {"$max": [first_at, line_at, "$$now"]}
        line_at = {"$cond": ["$$granted", line_at, {"$add": [turn, 1 / rate]}]}
        first_at = {"$cond": ["$$granted", first_at, turn]}
    bucket = {
        "full_at": {"$add": ["$$start", {"$divide": ["$$granted", rate]}]},
        "line_at": line_at,
        "asked_at": "$$now",
        "granted": "$$granted",
        "first_at": first_at,
    }
    return _bucket(_let({"now": _NOW}, _let({"start": start}, _let({"granted": granted}, bucket))))


@changes_of.register
def _hold_bucket(hold: HoldBucket) -> Changes:
    held = {"$add": ["$$now", hold.seconds + _refill_after(hold.limit)]}
    bucket = {
        "full_at": {"$max": [_field("full_at"), held]},
        "line_at": _field("line_at"),
        "asked_at": "$$now",
        "granted": 0,
        "first_at": {"$add": ["$$now", float(hold.seconds)]},
    }
    return _bucket(_let({"now": _NOW}, bucket))


def _refill_after(limit: BucketLimit) -> float:
    return (limit.burst - 1) / limit.rate


def _bucket(bucket: Expression) -> Changes:
    """The record of a bucket: its content is put over what is there, so that fields of a newer release stay."""
    over_at = {"$max": ["$$bucket.full_at", "$$bucket.line_at"]}
    expires_at = {"$toDate": {"$toLong": {"$add": [{"$multiply": [over_at, 1000]}, milliseconds(KEPT)]}}}
    data = {"$mergeObjects": ["$data", "$$bucket"]}
    return {
        "kind": RATE.name,
        "data": _let({"bucket": bucket}, data),
        "expires_at": _let({"bucket": bucket}, expires_at),
    }


def _field(name: str) -> Expression:
    return {"$ifNull": [f"$data.{name}", 0.0]}


def _let(names: dict[str, Any], expression: Expression) -> Expression:
    return {"$let": {"vars": names, "in": expression}}
