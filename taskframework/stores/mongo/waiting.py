"""The moves of parents, `taskframework.model.waiting`, as guarded MongoDB writes."""

from __future__ import annotations

from taskframework.model.status import FINAL, TaskStatus
from taskframework.model.subtasks import Verdict
from taskframework.model.task import FAMILY_VERSION, Stage, record_to_document
from taskframework.model.task_fields import Subtasks
from taskframework.model.transitions import framework_error
from taskframework.model.waiting import (
    REOPENED_COUNT_DELAY,
    SPAWN_AFTER,
    WAIT_CHECK_INTERVAL,
    CountSubtasks,
    Reopen,
    Wait,
)
from taskframework.stores.mongo.documents import Document, encode_value
from taskframework.stores.mongo.expressions import (
    CASCADE_IF_OPEN,
    NOW,
    REOPENED,
    WHEN_CANCELLED,
    Changes,
    Expression,
    choose_change,
    claimable_at,
    ended_by_cancel,
    error_of,
    first_status_of,
    in_scope,
    in_status,
    is_set,
    later,
    literal,
    milliseconds,
    plus,
    set_fields,
    with_error,
    with_event,
    with_final_status,
)
from taskframework.stores.mongo.joint import JointRequests
from taskframework.stores.mongo.writes import Write, build_single_write, under_claim

IS_WAITING: Expression = {"$eq": ["$status", TaskStatus.WAITING]}
#: Whether the task waits for its newest round of sub-tasks.
IS_AWAITED: Expression = {"$and": [IS_WAITING, {"$eq": ["$subtasks.is_awaited", True]}]}
SIGNALS: Expression = {"$ifNull": ["$signals", []]}
#: The field `batch` of a task after one of its sub-tasks has succeeded; unchanged if the task is not a batch.
_WITH_FIRST_RESULT: Expression = {
    "$cond": [
        is_set("$batch"),
        {"$mergeObjects": ["$batch", {"first_result_at": {"$ifNull": ["$batch.first_result_at", NOW]}}]},
        "$batch",
    ]
}


def waits(waits: JointRequests[Wait]) -> Write:
    status = first_status_of(*WHEN_CANCELLED, otherwise=TaskStatus.WAITING)
    settled = {"status": status, "last_claim_id": "$lease.claim_id"}
    worker_id = waits.each(lambda wait: wait.worker_id)
    signal = waits.each(lambda wait: wait.signal)
    until = {"$add": [NOW, waits.each(_timeout_of)]}  # null if the timeout is null
    plans = waits.each(lambda wait: wait.subtasks is not None)
    waiting = {
        "schema_version": FAMILY_VERSION,
        "lease": None,
        "subtasks": _round_after(waits),
        "spawn_at": {"$cond": [plans, later(SPAWN_AFTER), None]},
        "waits_for": {"$cond": [{"$eq": [signal, None]}, None, {"name": signal, "until": until}]},
        "check_at": {"$cond": [waits.each(lambda wait: wait.is_empty_round), NOW, next_check(signal, until)]},
        "result": waits.each(lambda wait: encode_value(wait.result)),
        "error": None,
        **with_event("waiting", worker_id=worker_id, data=waits.each(_data_of)),
    }
    return Write(
        under_claim(waits), [set_fields(settled), choose_change(IS_WAITING, waiting, ended_by_cancel(worker_id))]
    )


def _round_after(waits: JointRequests[Wait]) -> Expression:
    number = plus({"$ifNull": ["$subtasks.round", 0]}, 1)
    begun = {"$mergeObjects": ["$$given", {"round": number}]}
    left = {"$cond": [is_set("$subtasks"), {"$mergeObjects": ["$subtasks", {"is_awaited": False}]}, None]}
    chosen = {"$cond": [{"$eq": ["$$given", None]}, left, begun]}
    # With a variable, so that the command contains a large plan only once.
    return {"$let": {"vars": {"given": waits.each(lambda wait: _document_of(wait.subtasks))}, "in": chosen}}


def _document_of(subtasks: Subtasks | None) -> Document | None:
    return None if subtasks is None else {**record_to_document(subtasks), "plan": encode_value(subtasks.plan)}


def _timeout_of(wait: Wait) -> int | None:
    return None if wait.signal is None or wait.timeout is None else milliseconds(wait.timeout)


def _data_of(wait: Wait) -> Document:
    return {"subtasks": wait.subtasks and wait.subtasks.planned, "signal": wait.signal}


@build_single_write.register
def _count_subtasks(count: CountSubtasks) -> Write:
    guard = {
        "_id": count.task_id,
        "status": TaskStatus.WAITING,
        "generation": count.generation,
        "subtasks.round": count.round,
        "subtasks.report_serial": count.report_serial,
        "subtasks.is_awaited": {"$ne": False},
    }
    counts = {"done": count.counts.done, **count.data}
    counted = {f"subtasks.{name}": number for name, number in counts.items()}
    counted["subtasks.report_serial"] = plus("$subtasks.report_serial", 1)
    if count.counts.succeeded:
        counted["batch"] = _WITH_FIRST_RESULT
    return Write(guard, [set_fields(counted), set_fields(_after(count))])


def _after(count: CountSubtasks) -> Changes:
    """The changes of the parent that follow from the counts, which the previous stage has set."""
    if count.verdict is None:
        return {
            "check_at": next_check("$waits_for.name", "$waits_for.until"),
            "progress_revision": plus("$progress_revision", 1),
            "revision": plus("$revision", 1),
            "updated_at": NOW,
        }
    data = literal(count.data)
    if count.verdict is not Verdict.NOT_MET and count.resumes:
        return resumed("resume", data)
    ended = {**with_final_status(count.status), **with_event(count.status.lower(), data=data)}
    if count.status is not TaskStatus.FAILED:
        return {**ended, "result": "$result"}
    error = framework_error("subtasks_failed", count.message, retryable=False)
    return {**ended, **with_error(error_of(error))}


@build_single_write.register
def _reopen(reopen: Reopen) -> Write:
    guard = {"_id": reopen.task_id, "status": in_status(*FINAL), "subtasks.plan_records": 0, **in_scope(reopen.scope)}
    guard |= {"stream.mode": {"$ne": "serial"}, "subtasks.planned": {"$type": "number"}}
    guard["$or"] = [{"subtasks.is_awaited": {"$ne": False}}, {"subtasks.resumes": True}]
    waiting = {
        "status": TaskStatus.WAITING,
        **dict.fromkeys(("finished_at", "purge_at", "cancel", "discarded", "deadline", "error", "cascade_at")),
        **REOPENED,
        "retry_at": None,
        "batch": {"$cond": [is_set("$batch"), {"$mergeObjects": ["$batch", {"retry_until": None}]}, "$batch"]},
        "result": {"$cond": ["$subtasks.resumes", None, "$result"]},
        "spawn_at": {"$cond": [is_set("$subtasks.plan"), later(SPAWN_AFTER), None]},
        "check_at": later(REOPENED_COUNT_DELAY),
        "stream": {"$cond": [is_set("$stream"), {"$mergeObjects": ["$stream", {"is_skipped": False}]}, "$stream"]},
    }
    return Write(guard, [set_fields({**waiting, **with_event("reopened", data=literal({"by": reopen.by}))})])


def unused_signals(*conditions: Expression) -> Expression:
    """The signals that the task has and has not used; only those to which these conditions on `$$signal` apply."""
    is_unused = {"$eq": ["$$signal.is_heard", False]}
    return {"$filter": {"input": SIGNALS, "as": "signal", "cond": {"$and": [is_unused, *conditions]}}}


def has_name(name: Expression) -> Expression:
    return {"$eq": ["$$signal.name", name]}


def resumed(stage: Stage, data: Expression) -> Changes:
    """`model.waiting.resumed`."""
    left = {"$cond": [is_set("$subtasks"), {"$mergeObjects": ["$subtasks", {"is_awaited": False}]}, "$subtasks"]}
    return {
        **({"subtasks": left} if stage == "signal" else {}),
        **claimable_at(TaskStatus.QUEUED, NOW),
        "stage": stage,
        **dict.fromkeys(("attempts", "crashes", "releases"), 0),
        **dict.fromkeys(("spawn_at", "check_at", "waits_for")),
        "cascade_at": CASCADE_IF_OPEN,
        **with_event("resumed", data=data, attempt=0),
    }


def next_check(name: Expression, until: Expression) -> Expression:
    """`model.waiting.next_check_of`; name and time are null or missing if there is no signal, or no time limit."""
    return {
        "$cond": [{"$ne": [unused_signals(has_name(name)), []]}, NOW, {"$min": [until, later(WAIT_CHECK_INTERVAL)]}]
    }
