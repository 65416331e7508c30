"""Store suite: every move and mark does what its rule does, in every situation that the rule distinguishes.

The promises of the rules themselves are tested next to the rules, without a store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import cast

import pytest

from taskframework.model.attempts import Claim, Complete, Fail, RecordStep, Release, ReportProgress
from taskframework.model.batches import AbandonUpload, Announce, EndRetry, ReopenBatch, Seal
from taskframework.model.debounce import ReplaceParameters
from taskframework.model.drivers import DRIVERS, OUTBOX, Driver, missing_drivers
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
from taskframework.model.scope import EVERYONE, Scope
from taskframework.model.signals import SendSignal, Wake
from taskframework.model.status import TaskStatus
from taskframework.model.stream_moves import ClaimTurn, MovePosition, Skip, Unblock
from taskframework.model.subtasks import Counts, Verdict
from taskframework.model.task import new_claim_id, new_task_id
from taskframework.model.transitions import Fence, Transition
from taskframework.model.waiting import CountSubtasks, Reopen, Wait
from taskframework.stores.base import TaskStore
from taskframework.testing.conformance.store_situations import A_ROUND, RARE_DRIVERS, READ_AT, in_status, situations
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


def _count(fence: Fence, counts: Counts, verdict: Verdict | None, *, resumes: bool = False) -> CountSubtasks:
    return CountSubtasks(fence.task_id, 0, 1, 4, "at_least(2)", resumes, counts, verdict)


def _move_driver(fence: Fence, driver: Driver, delay: timedelta | None) -> MoveDriver:
    return MoveDriver(fence.task_id, driver, READ_AT, delay)


def _claim_turn(fence: Fence, generation: int, task_type: str, priority: str) -> ClaimTurn:
    return ClaimTurn(fence.task_id, generation, new_claim_id(), "worker-2", HOUR, task_type, priority)


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
    "cancel one generation": lambda fence: Cancel(fence.task_id, EVERYONE, "parent", "over", 0),
    "cancel one's own": lambda fence: Cancel(fence.task_id, Scope.of("alice"), "alice", "not needed"),
    "supersede": lambda fence: Supersede(fence.task_id, 3),
    "supersede what runs": lambda fence: Supersede(fence.task_id, 3, stops_running=True),
    "expire": lambda fence: Expire(fence.task_id),
    "end unstarted": lambda fence: EndUnstarted(fence.task_id),
    "postpone": lambda fence: Postpone(fence.task_id, 1, HOUR, 2),
    "replay": lambda fence: Replay(fence.task_id, EVERYONE, "operator", HOUR),
    "replay one's own": lambda fence: Replay(fence.task_id, Scope.of("alice"), "alice", HOUR, revision=1),
    "replay with other parameters": lambda fence: Replay(
        fence.task_id, EVERYONE, "$x", HOUR, edited=NewParameters({"$n": [{"a.b": 1}]}), reason="$r", replay_id="r"
    ),
    "retry now": lambda fence: RetryNow(fence.task_id, EVERYONE, "$x", HOUR, 1, "$reason", "r-1"),
    "retry one's own now": lambda fence: RetryNow(fence.task_id, Scope.of("alice"), "alice", NO_TIME, 1),
    "discard": lambda fence: Discard(fence.task_id, EVERYONE, "$operator", "$reason"),
    "discard one's own": lambda fence: Discard(fence.task_id, Scope.of("alice"), "alice", None),
    "reserve": lambda fence: ReserveDispatch(fence.task_id, 1, MINUTE, HOUR),
    "dispatched": lambda fence: MarkDispatched(fence.task_id, 1, MINUTE, HOUR),
    "make due": lambda fence: MakeDue(fence.task_id, 1),
    "make due later": lambda fence: MakeDue(fence.task_id, 1, HOUR),
    "make due later, refused": lambda fence: MakeDue(fence.task_id, 1, HOUR, was_refused=True),
    "make due at its turn": lambda fence: MakeDue(fence.task_id, 1, HOUR, "rate/openai/$alice"),
    "replace the parameters": lambda fence: ReplaceParameters(fence.task_id, {"$n": [1]}, "newer", MINUTE),
    "replace the parameters at once": lambda fence: ReplaceParameters(fence.task_id, "$ROOT", "newer", NO_TIME),
    "wait anew": lambda fence: RestartQueueTimeout(fence.task_id),
    "forget dispatch": lambda fence: ForgetDispatch(fence.task_id),
    "end a put-off": lambda fence: EndPutOff(fence.task_id, READ_AT - HOUR),
    "end a put-off later": lambda fence: EndPutOff(fence.task_id, datetime(9999, 1, 1, tzinfo=UTC)),
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
    "skip": lambda fence: Skip(fence.task_id, READ_AT),
    "skip too early": lambda fence: Skip(fence.task_id, datetime(9999, 1, 1, tzinfo=UTC)),
    "unblock": lambda fence: Unblock(fence.task_id, 0, HOUR),
    "unblock another generation": lambda fence: Unblock(fence.task_id, 1, HOUR),
    "claim a turn": lambda fence: _claim_turn(fence, 0, "test-task", "normal"),
    "claim a turn of another generation": lambda fence: _claim_turn(fence, 1, "test-task", "normal"),
    "claim a turn of another type": lambda fence: _claim_turn(fence, 0, "$task_type", "normal"),
    "claim a turn of another priority": lambda fence: _claim_turn(fence, 0, "test-task", "high"),
    "move the position": lambda fence: MovePosition(fence.task_id, 7, 9),
    "spawned": lambda fence: MarkSpawned(fence.task_id, 0, 1),
    "spawned a later round": lambda fence: MarkSpawned(fence.task_id, 0, 2),
    "cascade again": lambda fence: CascadeAgain(fence.task_id, 0, 1),
    "cascade an earlier round": lambda fence: CascadeAgain(fence.task_id, 0, 0),
    "count again": lambda fence: CountAgain(fence.task_id),
    "count after the end": lambda fence: CountAfterEnd(fence.task_id, 0, 1, Counts(2, 1, 1)),
    "count fewer after the end": lambda fence: CountAfterEnd(fence.task_id, 0, 1, Counts(1, 0, 0)),
    "count a later round after the end": lambda fence: CountAfterEnd(fence.task_id, 0, 2, Counts(2, 1, 1)),
    "announce": lambda fence: Announce(fence.task_id, 7, HOUR),
    "announce what is known": lambda fence: Announce(fence.task_id, 2, HOUR),
    "seal": lambda fence: Seal(fence.task_id, 5),
    "abandon the upload": lambda fence: AbandonUpload(fence.task_id),
    "reopen the batch": lambda fence: ReopenBatch(fence.task_id, EVERYONE, "operator"),
    "reopen one's own batch": lambda fence: ReopenBatch(fence.task_id, Scope.of("alice"), "alice"),
    "end the retry": lambda fence: EndRetry(fence.task_id, READ_AT),
    **{f"take up the {driver.name}": partial(_move_driver, driver=driver, delay=HOUR) for driver in RARE_DRIVERS},
    **{f"end the {driver.name}": partial(_move_driver, driver=driver, delay=None) for driver in RARE_DRIVERS},
}
each_request = pytest.mark.parametrize("make", REQUESTS.values(), ids=REQUESTS.keys())


class MoveCases(StoreSuite):
    """The promise of `apply` and `mark`: they do what the rule of the model does, whatever the task is like."""

    @each_request
    async def test_a_request_does_what_its_rule_says(self, store: TaskStore, make: Callable[[Fence], Request]) -> None:
        cases = list(situations(store.now()))
        await asyncio.gather(*(put(store, **fields) for _, fields in cases))
        before = await read_all_tasks(store)
        answers = await asyncio.gather(*(ask(store, make(fence), before[fence.task_id]) for fence, _ in cases))

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
    async def test_one_of_many_equal_concurrent_requests_wins(
        self, store: TaskStore, name: str, status: TaskStatus
    ) -> None:
        later = {"not_before": store.now() + HOUR} if name == "retry now" else {}
        fence, fields = in_status(status, store.now(), {"next_dispatch_at": store.now() - MINUTE, **later})
        await put(store, **fields)
        request = cast(Transition, REQUESTS[name](fence))
        replies = await asyncio.gather(*(store.apply(request) for _ in range(10)))
        assert [reply for reply in replies if reply is not None] == [await read_task(store, fence.task_id)]
