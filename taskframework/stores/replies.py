"""The failpoints that the code passes when the reply to a write arrives. Every store uses the same names."""

from __future__ import annotations

from taskframework.model.interventions import Cancel, EndUnstarted, Expire, Postpone, Reap, Replay
from taskframework.model.marks import Mark, RenewLease, ReserveDispatch
from taskframework.model.transitions import Claim, Complete, Fail, RecordStep, Release, ReportProgress, Transition
from taskframework.model.waiting import Wait

_POINTS: dict[type[object], str] = {
    Claim: "claim.reply",
    ReportProgress: "progress.reply",
    RecordStep: "step.reply",
    Complete: "settle.reply",
    Fail: "settle.reply",
    Release: "settle.reply",
    Wait: "settle.reply",
    RenewLease: "renew.reply",
    ReserveDispatch: "reserve.reply",
    Reap: "reap.reply",
    Cancel: "cancel.reply",
    Replay: "replay.reply",
    Expire: "expire.reply",
    EndUnstarted: "expire.reply",
    Postpone: "postpone.reply",
}


def reply_point(request: Transition | Mark) -> str:
    """The failpoint for the reply to this write."""
    return _POINTS.get(type(request), "mark.reply")
