"""Store suite: every move and mark, in every situation that its rule tells apart, is what the rule makes of it.

What the rules themselves promise is tested where they are, without a store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, cast

import pytest

from taskframework.model.drivers import DEADLINE, DISPATCH, LEASE, missing_drivers
from taskframework.model.interventions import Cancel, Expire, Postpone, Reap, Replay
from taskframework.model.marks import (
    ForgetDispatch,
    MakeDue,
    MarkDispatched,
    MarkPublished,
    PostponeRelay,
    RenewLease,
    ReserveDispatch,
)
from taskframework.model.scope import EVERYONE, Scope
from taskframework.model.status import CLAIMABLE, FINAL, TaskStatus
from taskframework.model.task import (
    ERRORS_KEPT,
    HISTORY_LENGTH,
    SCHEMA_VERSION,
    CancelRequest,
    HistoryEntry,
    Lease,
    ParentLink,
    StepOutcome,
    new_claim_id,
    new_task_id,
)
from taskframework.model.transitions import DEADLINE as BY_DEADLINE
from taskframework.model.transitions import (
    Claim,
    Complete,
    Fail,
    Fence,
    RecordStep,
    Release,
    ReportProgress,
    Transition,
)
from taskframework.stores.base import TaskStore
from taskframework.testing.conformance.store_suite import (
    HOUR,
    MARKS,
    MINUTE,
    SKEW,
    Request,
    StoreSuite,
    an_error,
    asked,
    put,
    stored,
)

NO_TIME = timedelta(0)
_FINE = HOUR + timedelta(microseconds=1_567)

REQUESTS: dict[str, Callable[[Fence], Request]] = {
    "claim": lambda fence: Claim(fence.task_id, 1, new_claim_id(), "worker-2", HOUR),
    "claim of a type": lambda fence: Claim(fence.task_id, 1, new_claim_id(), "worker-2", HOUR, "test-task"),
    "progress": lambda fence: ReportProgress(fence, {"percent": 50}),
    "step": lambda fence: RecordStep(fence, "charge", {"receipt": 8}),
    "complete": lambda fence: Complete(fence, "worker-1", {"words": 3}),
    "fail": lambda fence: Fail(fence, "worker-1", an_error(), True, NO_TIME),
    "fail for good": lambda fence: Fail(fence, "worker-1", an_error(), False, NO_TIME),
    "fail with a delay finer than a millisecond": lambda fence: Fail(fence, "worker-1", an_error(), True, _FINE),
    "release": lambda fence: Release(fence, "worker-1"),
    "reap": lambda fence: Reap(fence.task_id, 1, MINUTE / 2, 3, HOUR),
    "reap after a longer grace": lambda fence: Reap(fence.task_id, 1, 2 * MINUTE, 3, HOUR),
    "reap from a dead worker": lambda fence: Reap(fence.task_id, 1, None, 3, HOUR),
    "cancel": lambda fence: Cancel(fence.task_id, EVERYONE, "operator", None),
    "cancel one's own": lambda fence: Cancel(fence.task_id, Scope.of("alice"), "alice", "not needed"),
    "expire": lambda fence: Expire(fence.task_id),
    "postpone": lambda fence: Postpone(fence.task_id, 1, HOUR, 2),
    "replay": lambda fence: Replay(fence.task_id, EVERYONE, "operator", HOUR),
    "replay one's own": lambda fence: Replay(fence.task_id, Scope.of("alice"), "alice", HOUR, revision=1),
    "reserve": lambda fence: ReserveDispatch(fence.task_id, 1, MINUTE, HOUR),
    "dispatched": lambda fence: MarkDispatched(fence.task_id, 1, MINUTE, HOUR),
    "make due": lambda fence: MakeDue(fence.task_id, 1),
    "make due later": lambda fence: MakeDue(fence.task_id, 1, HOUR),
    "forget dispatch": lambda fence: ForgetDispatch(fence.task_id),
    "renew": lambda fence: RenewLease(fence, HOUR),
    "published": lambda fence: MarkPublished(fence.task_id, 1),
    "published beyond the end": lambda fence: MarkPublished(fence.task_id, 999),
    "postpone relay": lambda fence: PostponeRelay(fence.task_id, HOUR),
}
each_request = pytest.mark.parametrize("make", REQUESTS.values(), ids=REQUESTS.keys())

#: In these everything is tried that a rule looks at.
_TRIED_IN = (TaskStatus.QUEUED, TaskStatus.RUNNING, TaskStatus.FAILED)


def _situations(now: datetime) -> Iterator[tuple[Fence, dict[str, Any]]]:
    """Fields of tasks, and the claim they may be under. No time is near: a slow machine must not come to one."""
    wishes = [{"cancel": CancelRequest(by, now, "why")} for by in ("alice", BY_DEADLINE)]
    deadlines = [{"deadline": now - MINUTE}, {"deadline": now + HOUR}]
    for status in TaskStatus:
        for changes in ({}, *wishes, *deadlines, *(_changes(now) if status in _TRIED_IN else ())):
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


def _changes(now: datetime) -> Iterator[dict[str, Any]]:
    yield from ({"max_attempts": 1}, {"crashes": 1}, {"crashes": 2})
    yield {"cancel": CancelRequest("alice", now, None), "max_attempts": 1, "crashes": 2}
    yield from ({"dispatch_epoch": 2}, {"dispatch_epoch": 0}, {"fencing_token": 2}, {"fencing_token": 0})
    yield from ({"schema_version": SCHEMA_VERSION + 1}, {"task_type": "other"}, {"user_id": "bob"}, {"revision": 7})
    yield {"no_handler": 1}
    yield {"releases": 1, "no_handler": 2, "progress": 1, "result": 2, "started_at": now, "purge_at": now + HOUR}
    yield from ({"parent": ParentLink("parent", 0, 1)}, {"steps": (StepOutcome("charge", {"receipt": 7}),)})
    yield {"error": an_error(), "errors": (an_error("older"),) * ERRORS_KEPT}
    yield {"published_sequence": 1, "publish_at": None}
    history = tuple(HistoryEntry(n, "released", now, 1, "worker-1", None) for n in range(1, HISTORY_LENGTH + 21))
    for published in (0, 15, len(history)):
        yield {"history": history, "sequence": len(history), "published_sequence": published}


class MoveCases(StoreSuite):
    """What `apply` and `mark` promise: the rule of the model, whatever the task is like."""

    @each_request
    async def test_a_request_does_what_its_rule_says(self, store: TaskStore, make: Callable[[Fence], Request]) -> None:
        situations = list(_situations(store.now()))
        await asyncio.gather(*(put(store, **fields) for _, fields in situations))
        await asyncio.gather(*(asked(store, make(fence)) for fence, _ in situations))

        tasks = [await stored(store, fence.task_id) for fence, _ in situations]
        for driver in (DISPATCH, LEASE, DEADLINE):
            due = {task.task_id for task in await store.due(driver, 1_000)}
            assert due == {task.task_id for task in tasks if driver.is_due(task, store.now() + SKEW)}, driver.name
        assert set(await store.undriven(1_000)) == {task.task_id for task in tasks if missing_drivers(task)}

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
        [("reap", TaskStatus.RUNNING), ("replay", TaskStatus.FAILED), ("reserve", TaskStatus.RETRYING)],
    )
    async def test_of_many_at_once_one_wins(self, store: TaskStore, name: str, status: TaskStatus) -> None:
        fence, fields = _in_status(status, store.now(), {"next_dispatch_at": store.now() - MINUTE})
        await put(store, **fields)
        request = cast(Transition, REQUESTS[name](fence))
        replies = await asyncio.gather(*(store.apply(request) for _ in range(10)))
        assert [reply for reply in replies if reply is not None] == [await stored(store, fence.task_id)]
