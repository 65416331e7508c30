"""Store suite: every move and mark does what its rule does, in every situation that the rule distinguishes.

The promises of the rules themselves are tested next to the rules, without a store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, cast

import pytest

from taskframework.model.batches import AbandonUpload, Announce, EndRetry, ReopenBatch, Seal
from taskframework.model.debounce import ReplaceParameters
from taskframework.model.drivers import (
    CASCADE,
    CHECK,
    DRIVERS,
    OUTBOX,
    RETRY,
    SEAL,
    SPAWN,
    UNBLOCK,
    Driver,
    missing_drivers,
)
from taskframework.model.interventions import (
    Cancel,
    Discard,
    EndUnstarted,
    Expire,
    NewParameters,
    Postpone,
    Reap,
    Replay,
    RetryNow,
    Supersede,
)
from taskframework.model.marks import (
    CascadeAgain,
    CountAgain,
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
from taskframework.model.options import Debounce, KeptFor, StartLimit, StreamPlace
from taskframework.model.scope import EVERYONE, Scope
from taskframework.model.status import CLAIMABLE, FINAL, TaskStatus
from taskframework.model.stream_moves import MovePosition, Skip, Unblock
from taskframework.model.subtasks import Counts, Verdict
from taskframework.model.task import (
    ERRORS_KEPT,
    HISTORY_LENGTH,
    SCHEMA_VERSION,
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
    new_claim_id,
    new_task_id,
)
from taskframework.model.transitions import (
    BY_DEADLINE,
    Claim,
    Complete,
    Fail,
    Fence,
    RecordStep,
    Release,
    ReportProgress,
    Transition,
)
from taskframework.model.waiting import MAX_SIGNALS, CountSubtasks, Reopen, SendSignal, Wait, Wake
from taskframework.stores.base import TaskStore
from taskframework.testing.conformance.store_suite import (
    HOUR,
    MARKS,
    MINUTE,
    SKEW,
    Request,
    StoreSuite,
    ask,
    make_error,
    put,
    read_all_tasks,
    read_task,
)

NO_TIME = timedelta(0)
_FINE = HOUR + timedelta(microseconds=1_567)

RARE_DRIVERS = (SPAWN, CHECK, CASCADE, SEAL, RETRY, UNBLOCK)
#: The time of a driver that another process has read.
_READ_AT = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
A_ROUND = Subtasks(3, [{"task_type": "part", "items": [[{"$n": 1}, "hash"], ["$$ROOT", "hash"]]}], policy="at_least(2)")


def _count(fence: Fence, counts: Counts, verdict: Verdict | None, *, resumes: bool = False) -> CountSubtasks:
    return CountSubtasks(fence.task_id, 0, 1, 4, "at_least(2)", resumes, counts, verdict)


def _move_driver(fence: Fence, driver: Driver, delay: timedelta | None) -> MoveDriver:
    return MoveDriver(fence.task_id, driver, _READ_AT, delay)


REQUESTS: dict[str, Callable[[Fence], Request]] = {
    "claim": lambda fence: Claim(fence.task_id, 1, new_claim_id(), "worker-2", HOUR),
    "claim of a type": lambda fence: Claim(fence.task_id, 1, new_claim_id(), "worker-2", HOUR, "test-task"),
    "progress": lambda fence: ReportProgress(fence, {"percent": 50}),
    "step": lambda fence: RecordStep(fence, "charge", {"receipt": 8}),
    "complete": lambda fence: Complete(fence, "worker-1", {"words": 3}),
    "fail": lambda fence: Fail(fence, "worker-1", make_error(), True, NO_TIME),
    "fail for good": lambda fence: Fail(fence, "worker-1", make_error(), False, NO_TIME),
    "fail with a delay finer than a millisecond": lambda fence: Fail(fence, "worker-1", make_error(), True, _FINE),
    "release": lambda fence: Release(fence, "worker-1"),
    "reap": lambda fence: Reap(fence.task_id, 1, MINUTE / 2, 3, HOUR),
    "reap after a longer grace": lambda fence: Reap(fence.task_id, 1, 2 * MINUTE, 3, HOUR),
    "reap from a dead worker": lambda fence: Reap(fence.task_id, 1, None, 3, HOUR),
    "cancel": lambda fence: Cancel(fence.task_id, EVERYONE, "operator", None),
    "cancel one's own": lambda fence: Cancel(fence.task_id, Scope.of("alice"), "alice", "not needed"),
    "supersede": lambda fence: Supersede(fence.task_id, 3),
    "supersede what runs": lambda fence: Supersede(fence.task_id, 3, stops_running=True),
    "expire": lambda fence: Expire(fence.task_id),
    "end unstarted": lambda fence: EndUnstarted(fence.task_id),
    "postpone": lambda fence: Postpone(fence.task_id, 1, HOUR, 2),
    "replay": lambda fence: Replay(fence.task_id, EVERYONE, "operator", HOUR),
    "replay one's own": lambda fence: Replay(fence.task_id, Scope.of("alice"), "alice", HOUR, revision=1),
    "replay with other parameters": lambda fence: Replay(
        fence.task_id, EVERYONE, "$x", HOUR, edited=NewParameters({"$n": [{"a.b": 1}]}, "o"), reason="$r", replay_id="r"
    ),
    "retry now": lambda fence: RetryNow(fence.task_id, EVERYONE, "$x", HOUR, 1, "$reason", "r-1"),
    "retry one's own now": lambda fence: RetryNow(fence.task_id, Scope.of("alice"), "alice", NO_TIME, 1),
    "discard": lambda fence: Discard(fence.task_id, EVERYONE, "$operator", "$reason"),
    "discard one's own": lambda fence: Discard(fence.task_id, Scope.of("alice"), "alice", None),
    "reserve": lambda fence: ReserveDispatch(fence.task_id, 1, MINUTE, HOUR),
    "dispatched": lambda fence: MarkDispatched(fence.task_id, 1, MINUTE, HOUR),
    "make due": lambda fence: MakeDue(fence.task_id, 1),
    "make due later": lambda fence: MakeDue(fence.task_id, 1, HOUR),
    "make due at its turn": lambda fence: MakeDue(fence.task_id, 1, HOUR, "rate/openai/$alice"),
    "replace the parameters": lambda fence: ReplaceParameters(fence.task_id, {"$n": [1]}, "newer", MINUTE),
    "replace the parameters at once": lambda fence: ReplaceParameters(fence.task_id, "$ROOT", "newer", NO_TIME),
    "wait anew": lambda fence: RestartQueueTimeout(fence.task_id),
    "forget dispatch": lambda fence: ForgetDispatch(fence.task_id),
    "renew": lambda fence: RenewLease(fence, HOUR),
    "published": lambda fence: MarkPublished(fence.task_id, 1),
    "published beyond the end": lambda fence: MarkPublished(fence.task_id, 999),
    "postpone relay": lambda fence: PostponeRelay(fence.task_id, HOUR),
    "wait for sub-tasks": lambda fence: Wait(fence, "worker-1", A_ROUND, None, None, {"words": 3}),
    "wait for none": lambda fence: Wait(fence, "worker-1", replace(A_ROUND, planned=0, plan=[]), None, None, None),
    "wait for a signal": lambda fence: Wait(fence, "worker-1", None, "approved", None, None),
    "wait for either, not for ever": lambda fence: Wait(fence, "worker-1", A_ROUND, "approved", MINUTE, None),
    "wait for less than a look": lambda fence: Wait(fence, "worker-1", None, "$approved", _FINE, None),
    "count": lambda fence: _count(fence, Counts(2, 0, 0), None),
    "count that meets": lambda fence: _count(fence, Counts(3, 0, 0), Verdict.MET),
    "count that meets with errors": lambda fence: _count(fence, Counts(1, 1, 1), Verdict.MET_WITH_ERRORS),
    "count that does not meet": lambda fence: _count(fence, Counts(1, 1, 0), Verdict.NOT_MET),
    "count that resumes": lambda fence: _count(fence, Counts(3, 0, 0), Verdict.MET, resumes=True),
    "count that resumes early": lambda fence: _count(fence, Counts(1, 0, 0), Verdict.MET, resumes=True),
    "count that fails in spite of a method": lambda fence: _count(
        fence, Counts(0, 3, 0), Verdict.NOT_MET, resumes=True
    ),
    "signal": lambda fence: SendSignal(fence.task_id, EVERYONE, "key-1", "approved", {"by": "$alice"}),
    "signal with an odd value": lambda fence: SendSignal(fence.task_id, EVERYONE, "$key", "$approved", {"$ref": 1}),
    "signal one's own": lambda fence: SendSignal(fence.task_id, Scope.of("alice"), "key-9", "approved", None),
    "reopen": lambda fence: Reopen(fence.task_id, EVERYONE, "operator"),
    "reopen one's own": lambda fence: Reopen(fence.task_id, Scope.of("alice"), "alice"),
    "wake": lambda fence: Wake(fence.task_id),
    "skip": lambda fence: Skip(fence.task_id, _READ_AT),
    "skip too early": lambda fence: Skip(fence.task_id, datetime(9999, 1, 1, tzinfo=UTC)),
    "unblock": lambda fence: Unblock(fence.task_id, 0, HOUR),
    "unblock another generation": lambda fence: Unblock(fence.task_id, 1, HOUR),
    "move the position": lambda fence: MovePosition(fence.task_id, 7, 9),
    "spawned": lambda fence: MarkSpawned(fence.task_id, 0, 1),
    "spawned a later round": lambda fence: MarkSpawned(fence.task_id, 0, 2),
    "cascade again": lambda fence: CascadeAgain(fence.task_id),
    "count again": lambda fence: CountAgain(fence.task_id),
    "announce": lambda fence: Announce(fence.task_id, 7, HOUR),
    "announce what is known": lambda fence: Announce(fence.task_id, 2, HOUR),
    "seal": lambda fence: Seal(fence.task_id, 5),
    "abandon the upload": lambda fence: AbandonUpload(fence.task_id),
    "reopen the batch": lambda fence: ReopenBatch(fence.task_id, EVERYONE, "operator"),
    "reopen one's own batch": lambda fence: ReopenBatch(fence.task_id, Scope.of("alice"), "alice"),
    "end the retry": lambda fence: EndRetry(fence.task_id, _READ_AT),
    **{f"take up the {driver.name}": partial(_move_driver, driver=driver, delay=HOUR) for driver in RARE_DRIVERS},
    **{f"end the {driver.name}": partial(_move_driver, driver=driver, delay=None) for driver in RARE_DRIVERS},
}
each_request = pytest.mark.parametrize("make", REQUESTS.values(), ids=REQUESTS.keys())

#: In tasks of these statuses every field that a rule looks at is tried.
_TASK_STATUSES = (TaskStatus.QUEUED, TaskStatus.RUNNING, TaskStatus.FAILED)
_STREAM_STATUSES = (TaskStatus.BLOCKED, TaskStatus.QUEUED, TaskStatus.RUNNING, TaskStatus.FAILED)
_PARENT_STATUSES = (TaskStatus.RUNNING, TaskStatus.WAITING, TaskStatus.CANCELLED)


def _situations(now: datetime) -> Iterator[tuple[Fence, dict[str, Any]]]:
    """Fields of tasks, and the claim they may be under. All times are far away, so that no slow machine reaches one."""
    cancels = [{"cancel": CancelRequest(by, now, "why")} for by in ("alice", BY_DEADLINE)]
    deadlines = [{"deadline": now - MINUTE}, {"deadline": now + HOUR}]
    for status in TaskStatus:
        for changes in ({}, *cancels, *deadlines, *(_task_fields(now) if status in _TASK_STATUSES else ())):
            yield _in_status(status, now, changes)
    for status in _PARENT_STATUSES:
        for changes in (*_family_fields(now), *_batch_fields(now)):
            yield _in_status(status, now, changes)
    for changes in _batch_fields(now):
        yield _in_status(TaskStatus.COMPLETED, now, changes)
    for status in _STREAM_STATUSES:
        for changes in _stream_fields(now):
            yield _in_status(status, now, changes)
    for changes in (
        {"not_before": now + HOUR},
        {"next_dispatch_at": None},
        {"next_dispatch_at": now - MINUTE, "not_before": now - HOUR},
        {"next_dispatch_at": now - MINUTE, "not_before": now + HOUR},
        {"dispatches": 3},
        {"dispatches": 500},
    ):
        yield _in_status(TaskStatus.RETRYING, now, changes)
    for lease in (None, Lease("worker-1", "another claim", now - MINUTE)):
        yield _in_status(TaskStatus.RUNNING, now, {"lease": lease})
    fence, fields = _in_status(TaskStatus.RUNNING, now, {})
    yield fence, {**fields, "lease": replace(fields["lease"], expires_at=now + HOUR)}


def _in_status(status: TaskStatus, now: datetime, changes: Mapping[str, Any]) -> tuple[Fence, dict[str, Any]]:
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
    yield {**dict.fromkeys((driver.field for driver in RARE_DRIVERS), _READ_AT), "parent": ParentLink("parent", 0, 1)}
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
    yield {**is_open, "batch": replace(batch, chunk_size=2), "user_id": "bob"}
    yield {**sealed, "batch": batch, "seal_by": now - MINUTE, "cancel": CancelRequest("alice", now, None)}
    yield {**sealed, "batch": replace(batch, first_result_at=now - HOUR), "cascade_at": now, "purge_at": now + HOUR}
    yield {**sealed, "batch": replace(batch, retry_until=now - HOUR), "retry_at": _READ_AT, "error": make_error()}
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
    for place in (serial, ordered):
        yield {"stream": place, "subtasks": replace(A_ROUND, plan=None, plan_records=0, report_serial=4)}
    yield {"stream": serial, "unblock_at": now + HOUR, "not_before": now + HOUR}
    yield {"stream": serial, "unblock_at": now + HOUR, "generation": 1, "published_sequence": 1}
    yield {"stream": serial, "unblock_at": now, "start_limit": StartLimit(60_000), "start_by": now - MINUTE}
    yield {"stream": ordered, "cancel": CancelRequest("alice", now, None), "deadline": now - MINUTE}


class MoveCases(StoreSuite):
    """The promise of `apply` and `mark`: they do what the rule of the model does, whatever the task is like."""

    @each_request
    async def test_a_request_does_what_its_rule_says(self, store: TaskStore, make: Callable[[Fence], Request]) -> None:
        situations = list(_situations(store.now()))
        await asyncio.gather(*(put(store, **fields) for _, fields in situations))
        before = await read_all_tasks(store)
        answers = await asyncio.gather(*(ask(store, make(fence), before[fence.task_id]) for fence, _ in situations))

        tasks = await read_all_tasks(store)
        for answer in answers:
            answer.check(tasks[answer.before.task_id])
        for driver in set(DRIVERS) - {OUTBOX}:
            asked_at = store.now()
            due = {task.task_id for task in await store.due(driver, 1_000)}
            surely = {task.task_id for task in tasks.values() if driver.is_due(task, asked_at - SKEW)}
            perhaps = {task.task_id for task in tasks.values() if driver.is_due(task, store.now() + SKEW)}
            assert surely <= due <= perhaps, driver.name
        assert set(await store.undriven(1_000)) == {task.task_id for task in tasks.values() if missing_drivers(task)}

    @each_request
    async def test_a_request_for_nothing_does_nothing(self, store: TaskStore, make: Callable[[Fence], Request]) -> None:
        request = make(Fence(new_task_id(), 1, new_claim_id()))
        if isinstance(request, MARKS):
            await store.mark(request)
        else:
            assert await store.apply(cast(Transition, request)) is None
        assert set((await store.count_by_status()).values()) == {0}

    @pytest.mark.parametrize(
        ("name", "status"),
        [
            *(("reap", TaskStatus.RUNNING), ("replay", TaskStatus.FAILED)),
            *(("reserve", TaskStatus.RETRYING), ("retry now", TaskStatus.RETRYING)),
        ],
    )
    async def test_of_many_at_once_one_wins(self, store: TaskStore, name: str, status: TaskStatus) -> None:
        later = {"not_before": store.now() + HOUR} if name == "retry now" else {}
        fence, fields = _in_status(status, store.now(), {"next_dispatch_at": store.now() - MINUTE, **later})
        await put(store, **fields)
        request = cast(Transition, REQUESTS[name](fence))
        replies = await asyncio.gather(*(store.apply(request) for _ in range(10)))
        assert [reply for reply in replies if reply is not None] == [await read_task(store, fence.task_id)]
