"""The tasks that the store suite tries each request on: one for every situation that a rule distinguishes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from taskframework.model.drivers import CASCADE, CHECK, RETRY, SEAL, SPAWN, UNBLOCK
from taskframework.model.options import Debounce, KeptFor, StartLimit, StreamPlace, Unique
from taskframework.model.signals import MAX_SIGNALS
from taskframework.model.status import CLAIMABLE, FINAL, TaskStatus
from taskframework.model.task import ERRORS_KEPT, HISTORY_LENGTH, SCHEMA_VERSION, new_claim_id, new_task_id
from taskframework.model.task_fields import (
    Batch,
    CancelRequest,
    Discarded,
    HistoryEntry,
    Lease,
    ParentLink,
    Signal,
    SignalWait,
    StepOutcome,
    Subtasks,
)
from taskframework.model.transitions import BY_DEADLINE, Fence
from taskframework.testing.conformance.store_suite import HOUR, MINUTE, make_error

#: The drivers of parents and of other waiting tasks, which few tasks have.
RARE_DRIVERS = (SPAWN, CHECK, CASCADE, SEAL, RETRY, UNBLOCK)
#: The time of a driver that another process has read.
READ_AT = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
#: A plan whose values must not be taken for expressions of MongoDB.
A_ROUND = Subtasks(3, [{"task_type": "part", "items": [[{"$n": 1}, "hash"], ["$$ROOT", "hash"]]}], policy="at_least(2)")

#: In tasks of these statuses every field that a rule looks at is tried.
_TASK_STATUSES = (TaskStatus.QUEUED, TaskStatus.RUNNING, TaskStatus.FAILED)
_STREAM_STATUSES = (TaskStatus.BLOCKED, TaskStatus.QUEUED, TaskStatus.RUNNING, TaskStatus.FAILED)
_PARENT_STATUSES = (TaskStatus.RUNNING, TaskStatus.WAITING, TaskStatus.CANCELLED)


def situations(now: datetime) -> Iterator[tuple[Fence, dict[str, Any]]]:
    """Fields of tasks, and the claim they may be under. All times are far away, so that no slow machine reaches one."""
    cancels = [{"cancel": CancelRequest(by, now, "why")} for by in ("alice", BY_DEADLINE)]
    deadlines = [{"deadline": now - MINUTE}, {"deadline": now + HOUR}]
    for status in TaskStatus:
        for changes in ({}, *cancels, *deadlines, *(_task_fields(now) if status in _TASK_STATUSES else ())):
            yield in_status(status, now, changes)
    for status in _PARENT_STATUSES:
        for changes in (*_family_fields(now), *_batch_fields(now)):
            yield in_status(status, now, changes)
    for changes in _batch_fields(now):
        yield in_status(TaskStatus.COMPLETED, now, changes)
    for status in _STREAM_STATUSES:
        for changes in _stream_fields(now):
            yield in_status(status, now, changes)
    for changes in (
        {"not_before": now + HOUR},
        {"next_dispatch_at": None},
        {"next_dispatch_at": now - MINUTE, "not_before": now - HOUR},
        {"next_dispatch_at": now - MINUTE, "not_before": now + HOUR},
        {"dispatches": 3},
        {"dispatches": 500},
    ):
        yield in_status(TaskStatus.RETRYING, now, changes)
    for lease in (None, Lease("worker-1", "another claim", now - MINUTE)):
        yield in_status(TaskStatus.RUNNING, now, {"lease": lease})
    fence, fields = in_status(TaskStatus.RUNNING, now, {})
    yield fence, {**fields, "lease": replace(fields["lease"], expires_at=now + HOUR)}


def in_status(status: TaskStatus, now: datetime, changes: Mapping[str, Any]) -> tuple[Fence, dict[str, Any]]:
    """A claim, and the fields of a task in this status; if it runs, it runs under the claim."""
    fence = Fence(new_task_id(), 1, new_claim_id())
    usual = {"task_id": fence.task_id, "attempts": 1, "fencing_token": 1, "status": status, "updated_at": now - HOUR}
    usual["next_dispatch_at"] = now + HOUR if status in CLAIMABLE else None
    usual["finished_at"] = now if status in FINAL else None
    usual["lease"] = Lease("worker-1", fence.claim_id, now - MINUTE) if status is TaskStatus.RUNNING else None
    return fence, {**usual, **changes}


def _task_fields(now: datetime) -> Iterator[dict[str, Any]]:
    yield from ({"max_attempts": 1}, {"crashes": 1}, {"crashes": 2})
    yield {"cancel": CancelRequest("alice", now, None), "max_attempts": 1, "crashes": 2}
    yield from ({"dispatch_epoch": 2}, {"dispatch_epoch": 0}, {"fencing_token": 2}, {"fencing_token": 0})
    yield from ({"schema_version": SCHEMA_VERSION + 1}, {"task_type": "other"}, {"user_id": "bob"}, {"revision": 7})
    yield {"no_handler": 1}
    for limit in (StartLimit(60_000), StartLimit(60_000, counts_limits=True)):
        yield {"start_limit": limit, "start_by": now - MINUTE}
        yield {"start_limit": limit, "start_by": now + 2 * HOUR}
        yield {"start_limit": limit, "start_by": now - MINUTE, "started_at": now - HOUR}
    yield {"start_limit": StartLimit(60_000)}
    yield from ({"retention": kept} for kept in (KeptFor(60_000), KeptFor(None, 0), KeptFor(0, 3_600_000)))
    yield {"retention": KeptFor(1_000, 2_000), "max_attempts": 1}
    for debounce in (Debounce("$key", 1_000, 100), Debounce("$key", 1_000, 7_200_000)):
        yield {"debounce": debounce}
        yield {"debounce": debounce, "start_limit": StartLimit(60_000), "start_by": now - MINUTE}
        yield {"debounce": debounce, "not_before": now + HOUR, "next_dispatch_at": now + HOUR}
        yield {"debounce": debounce, "generation": 1}
        yield {"debounce": debounce, "started_at": now - MINUTE}
    for by in ("alice", BY_DEADLINE):
        yield {"retention": KeptFor(1_000, 2_000), "cancel": CancelRequest(by, now, "why"), "deadline": now - MINUTE}
    yield {"retention": KeptFor(1_000, 2_000), "deadline": now - MINUTE, "no_handler": 7}
    yield {"releases": 1, "no_handler": 2, "progress": 1, "result": 2, "started_at": now, "purge_at": now + HOUR}
    yield from ({"parent": ParentLink("parent", 0, 1)}, {"steps": (StepOutcome("charge", {"receipt": 7}),)})
    yield {"discarded": Discarded("alice", now - HOUR, "given up")}
    yield {"error": make_error(), "errors": (make_error("older"),) * ERRORS_KEPT}
    yield {"published_sequence": 1, "publish_at": None}
    history = tuple(HistoryEntry(n, "released", now, 1, "worker-1", None) for n in range(1, HISTORY_LENGTH + 21))
    for published in (0, 15, len(history)):
        yield {"history": history, "sequence": len(history), "published_sequence": published}


def _family_fields(now: datetime) -> Iterator[dict[str, Any]]:
    """Fields of a parent, of a sub-task, and of a task that waits for a signal."""
    counted = replace(A_ROUND, done=2, succeeded=1, failed=1, report_serial=4)
    ended = replace(counted, plan=None, done=3, cancelled=1)
    for subtasks in (A_ROUND, counted, ended, replace(counted, round=2), replace(counted, planned=None, resumes=True)):
        yield {"subtasks": subtasks, "result": {"words": 3}, "check_at": now + HOUR}
    yield {
        "subtasks": replace(counted, is_awaited=False),
        "waits_for": SignalWait("approved", None),
        "check_at": now + HOUR,
    }
    yield {
        "subtasks": counted,
        "attempts": 2,
        "crashes": 1,
        "releases": 1,
        "error": make_error(),
        "errors": (make_error(),),
    }
    yield {"subtasks": counted, "cancel": CancelRequest("alice", now, None), "cascade_at": now - MINUTE}
    yield {"subtasks": counted, "generation": 1, "user_id": "bob"}
    yield {"subtasks": replace(counted, plan=None, plan_records=3), "spawn_at": now - MINUTE, "cascade_at": now + HOUR}
    yield {**dict.fromkeys((driver.field for driver in RARE_DRIVERS), READ_AT), "parent": ParentLink("parent", 0, 1)}
    yield {"parent": ParentLink("parent", 2, 1, 3, 4), "generation": 1}
    yield {"subtasks": counted, "retention": KeptFor(1_000, 2_000)}
    yield {"subtasks": counted, "discarded": Discarded("alice", now - HOUR, None)}
    heard, kept, other = (
        Signal(f"key-{n}", name, now - HOUR, payload, is_heard)
        for n, name, payload, is_heard in (
            (1, "approved", None, True),
            (2, "approved", ["$x"], False),
            (3, "$approved", 1, False),
        )
    )
    for signals in ((), (heard,), (heard, kept, other), (other, kept, replace(kept, key="key-4"))):
        for until in (None, now - MINUTE, now + MINUTE):
            wait = SignalWait("approved", until)
            yield {"signals": signals, "waits_for": wait, "check_at": now - MINUTE, "woken_by": other}
    yield {"waits_for": SignalWait("$approved", None), "check_at": now + HOUR, "stage": "signal", "subtasks": counted}
    for until in (None, now - MINUTE):
        wait = SignalWait("approved", until)
        yield {"subtasks": counted, "waits_for": wait, "check_at": now - MINUTE, "result": {"words": 3}}
    yield {"subtasks": replace(ended, is_awaited=False, resumes=True)}
    yield {"signals": tuple(replace(kept, key=f"key-{n}") for n in range(10, 10 + MAX_SIGNALS - 1))}
    full = tuple(replace(kept, key=f"key-{n}") for n in range(10, 10 + MAX_SIGNALS))
    yield {"signals": full}
    for waits_for in (None, SignalWait("approved", None)):
        yield {"signals": (full[0], heard, replace(heard, key="key-9"), *full[3:]), "waits_for": waits_for}
        others = tuple(replace(other, key=one.key) for one in full)
        yield {"signals": others, "waits_for": waits_for}
        yield {"signals": (*others, heard), "waits_for": waits_for}


def _batch_fields(now: datetime) -> Iterator[dict[str, Any]]:
    """Fields of a batch that is open, complete, or retried."""
    batch = Batch(items=5)
    is_open = {"subtasks": Subtasks(None, None, done=1, succeeded=1, report_serial=4), "check_at": now + HOUR}
    sealed = {**is_open, "subtasks": replace(A_ROUND, done=3, succeeded=1, failed=1, cancelled=1, report_serial=4)}
    for seal_by in (None, now - MINUTE, now + HOUR):
        yield {**is_open, "batch": batch, "seal_by": seal_by}
    yield {**is_open, "batch": replace(batch, chunk_size=2, not_before=now - MINUTE), "user_id": "bob"}
    yield {**sealed, "batch": batch, "seal_by": now - MINUTE, "cancel": CancelRequest("alice", now, None)}
    yield {**sealed, "batch": replace(batch, first_result_at=now - HOUR), "cascade_at": now, "purge_at": now + HOUR}
    yield {**sealed, "batch": replace(batch, retry_until=now - HOUR), "retry_at": READ_AT, "error": make_error()}
    spawned = replace(A_ROUND, plan=None, plan_records=0, report_serial=4)
    yield {**sealed, "subtasks": spawned, "batch": batch, "user_id": "bob", "deadline": now + HOUR}
    allowing = replace(spawned, policy="allow_failures", done=3, succeeded=3)
    for counts in (allowing, replace(allowing, failed=1), replace(allowing, cancelled=1)):
        yield {**sealed, "subtasks": counts, "batch": batch}


def _stream_fields(now: datetime) -> Iterator[dict[str, Any]]:
    """Fields of a task that belongs to an ordered stream."""
    serial, ordered = StreamPlace("$a.b", "serial", 7, halts=True), StreamPlace("a", "ordered_results", 8)
    for place in (serial, ordered, replace(serial, is_skipped=True), replace(ordered, is_skipped=True, position=7)):
        yield {"stream": place, "unblock_at": now - MINUTE, "deadline": now - MINUTE}
    for place in (serial, ordered, replace(ordered, is_skipped=True)):
        yield {"stream": place, "subtasks": replace(A_ROUND, plan=None, plan_records=0, report_serial=4)}
    yield {"stream": serial, "unblock_at": now + HOUR, "not_before": now + HOUR}
    yield {"stream": serial, "unblock_at": now + HOUR, "generation": 1, "published_sequence": 1}
    yield {"stream": serial, "unblock_at": now, "start_limit": StartLimit(60_000), "start_by": now - MINUTE}
    for field in ({"crashes": 1}, {"unique": Unique("a", 7)}, {"schema_version": SCHEMA_VERSION + 1}):
        yield {"stream": serial, "unblock_at": now + HOUR, **field}
    yield {"stream": serial, "unblock_at": now + HOUR, "cancel": CancelRequest("alice", now, None)}
    yield {"stream": ordered, "cancel": CancelRequest("alice", now, None), "deadline": now - MINUTE}
