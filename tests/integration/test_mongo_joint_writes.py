"""One write for many tasks does to each what a write of its own does, and what the pure rule says."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pymongo import MongoClient

from taskframework.model.attempts import Claim, Complete, Fail
from taskframework.model.marks import (
    EndPutOff,
    ForgetDispatch,
    MakeDue,
    MarkDispatched,
    MarkPublished,
    PostponeRelay,
    RenewLease,
    ReserveDispatch,
    RestartQueueTimeout,
)
from taskframework.model.options import StartLimit
from taskframework.model.status import TaskStatus
from taskframework.model.stream_moves import ClaimTurn, Unblock
from taskframework.model.task import Task
from taskframework.model.task_fields import CancelRequest, HistoryEntry, Lease, LimitWait, Signal, Subtasks, TaskError
from taskframework.model.transitions import Fence
from taskframework.model.waiting import Wait
from taskframework.stores.mongo.documents import document_of, task_of
from taskframework.stores.mongo.transitions import JOINT, build_write
from taskframework.testing.factories import new_task

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
#: How far the server's clock may be from ours when it makes the write.
_TOLERANCE = timedelta(seconds=30)


def deep(levels: int) -> Any:
    value: Any = "$bottom"
    for _ in range(levels):
        value = [value]
    return value


#: What is equal in Python or to the server and not the same, and what means something in a pipeline.
ODD = [
    *(0, 0.0, -0.0, 1, 1.0, True, False, None, "", "1", 2**62, 1e300, [], [[]], {}, [True], [1], [1.0], [None]),
    *("$x", "$$NOW", "$$ROOT", "$_id", ["$_id"], {"a": "$_id"}, {"a": {"b": 1}}, {"a": {"c": 1}}, {"a.b": 1}, {"": 1}),
    *({"$literal": 1}, [{"$literal": 1}], {"$add": [1, 2]}, {"a": {"$concat": ["x"]}}, {"$ref": "a", "$id": 1}),
    *({"b": 1, "a": 2}, {"a": 2, "b": 1}, deep(64), {"nul\0": 1}, "nul\0"),
]
VALUES = st.sampled_from(ODD) | st.text(max_size=3) | st.integers(-(2**63), 2**63 - 1)
TEXTS = st.sampled_from(["worker-1", "$status", "$$NOW", "{}", "ä"]) | st.text(max_size=3)
IDS = ("plain", "$_id", "$$ROOT", "a.b", "ünï", "1", "nul\0", " ")
CLAIM_IDS = st.sampled_from(["claim-1", "$claim"])
DELAYS = st.sampled_from([timedelta(0), SECOND, HOUR, timedelta(days=400)])
_START = datetime.now(UTC).replace(microsecond=123_000)
DUE = st.sampled_from([None, _START - HOUR, _START + HOUR])
ERRORS = st.builds(
    TaskError,
    code=TEXTS,
    type=TEXTS,
    message=TEXTS,
    retryable=st.booleans(),
    fingerprint=TEXTS,
    traceback=st.none() | TEXTS,
)
STATUSES = (TaskStatus.QUEUED, TaskStatus.RETRYING, TaskStatus.RUNNING, TaskStatus.COMPLETED)


@st.composite
def tasks(draw: st.DrawFn, usual: Sequence[TaskStatus]) -> Task:
    """A task in some state; most are in one in which the request can hold."""
    now = datetime.now(UTC)
    status = draw(st.sampled_from([*usual, *usual, *STATUSES]))
    lease = Lease("worker-1", draw(CLAIM_IDS), now + HOUR) if status is TaskStatus.RUNNING else None
    cancel = draw(st.sampled_from([None, None, CancelRequest("alice", now, None), CancelRequest("deadline", now, "x")]))
    sequence = draw(st.sampled_from([1, 2, 101]))
    start_limit = draw(st.sampled_from([None, StartLimit(1_000), StartLimit(1_000, counts_limits=True)]))
    return new_task(now=now - HOUR).evolve(
        task_type=draw(st.sampled_from(["test-task", "other"])),
        schema_version=draw(st.sampled_from([1, 1, 1, 2])),
        status=status,
        lease=lease,
        cancel=cancel,
        dispatch_epoch=draw(st.integers(1, 2)),
        fencing_token=draw(st.integers(1, 2)),
        attempts=draw(st.integers(0, 5)),
        dispatches=draw(st.integers(0, 20)),
        not_before=now + draw(st.sampled_from([-HOUR, -HOUR, HOUR])),
        next_dispatch_at=draw(DUE),
        sequence=sequence,
        history=tuple(HistoryEntry(n, "submitted", now, 0, None, None) for n in range(max(1, sequence - 99), sequence)),
        published_sequence=draw(st.integers(0, sequence)),
        publish_at=draw(st.sampled_from([None, now])),
        result=draw(VALUES),
        generation=draw(st.integers(0, 1)),
        subtasks=draw(st.none() | ROUNDS),
        start_limit=start_limit,
        start_by=None if start_limit is None else draw(DUE),
        started_at=draw(st.sampled_from([None, None, now])),
        waits_for_limit=draw(st.sampled_from([None, LimitWait("slots/$other", 1, now)])),
        signals=draw(st.lists(SIGNALS, max_size=2).map(tuple)),
    )


SIGNAL_NAMES = st.sampled_from(["approved", "$approved"])
SIGNALS = st.builds(Signal, TEXTS, SIGNAL_NAMES, st.just(_START), VALUES, st.booleans())
ROUNDS = st.builds(Subtasks, st.sampled_from([None, 0, 3]), VALUES, st.sampled_from([0, 3]), round=st.integers(1, 2))


FENCES = st.builds(Fence, st.just(""), st.integers(1, 2), CLAIM_IDS)
EPOCHS = st.integers(1, 2)
REQUESTS: dict[type[Any], st.SearchStrategy[Any]] = {
    Claim: st.builds(
        Claim, st.just(""), EPOCHS, CLAIM_IDS, TEXTS, DELAYS, st.sampled_from([None, None, "test-task", "other"])
    ),
    Complete: st.builds(Complete, FENCES, TEXTS, VALUES),
    Fail: st.builds(Fail, FENCES, TEXTS, ERRORS, st.booleans(), DELAYS),
    EndPutOff: st.builds(EndPutOff, st.just(""), DUE.filter(bool)),
    ForgetDispatch: st.builds(ForgetDispatch, st.just("")),
    MakeDue: st.builds(
        MakeDue, st.just(""), EPOCHS, DELAYS, st.sampled_from([None, "rate/a", "slots/$id"]), DUE, st.booleans()
    ),
    MarkDispatched: st.builds(MarkDispatched, st.just(""), EPOCHS, DELAYS, DELAYS, DUE),
    ReserveDispatch: st.builds(ReserveDispatch, st.just(""), EPOCHS, DELAYS, DELAYS),
    RenewLease: st.builds(RenewLease, FENCES, DELAYS),
    MarkPublished: st.builds(MarkPublished, st.just(""), st.integers(0, 102)),
    PostponeRelay: st.builds(PostponeRelay, st.just(""), DELAYS),
    Unblock: st.builds(Unblock, st.just(""), st.integers(0, 1), DELAYS),
    ClaimTurn: st.builds(
        ClaimTurn,
        st.just(""),
        st.integers(0, 1),
        TEXTS,
        TEXTS,
        DELAYS,
        st.sampled_from(["test-task", "other"]),
        st.sampled_from(["normal", "high"]),
    ),
    Wait: st.builds(Wait, FENCES, TEXTS, st.none() | ROUNDS, st.none() | SIGNAL_NAMES, st.none() | DELAYS, VALUES),
    RestartQueueTimeout: st.builds(RestartQueueTimeout, st.just("")),
}
_USUAL: dict[type[Any], list[TaskStatus]] = {kind: [TaskStatus.RUNNING] for kind in (Complete, Fail, RenewLease, Wait)}
_USUAL[Unblock] = _USUAL[ClaimTurn] = [TaskStatus.BLOCKED]


@st.composite
def groups(draw: st.DrawFn) -> list[tuple[Task, Any]]:
    kind = draw(st.sampled_from(list(REQUESTS)))
    usual = _USUAL.get(kind, [TaskStatus.QUEUED, TaskStatus.RETRYING])
    return draw(st.lists(st.tuples(tasks(usual), REQUESTS[kind]), min_size=2, max_size=len(IDS)))


def about(request: Any, task_id: str) -> Any:
    """The request, of the task with this id. No two tasks ever have a claim in common."""
    if isinstance(request, Complete | Fail | RenewLease | Wait):
        fence = replace(request.fence, task_id=task_id, claim_id=_claim_of(request.fence.claim_id, task_id))
        return replace(request, fence=fence)
    return replace(request, task_id=task_id)


def _claim_of(claim_id: str, task_id: str) -> str:
    return f"{claim_id} of {task_id}"


def _at(task: Task, task_id: str) -> Task:
    if task.lease is None:
        return task.evolve(task_id=task_id)
    return task.evolve(task_id=task_id, lease=replace(task.lease, claim_id=_claim_of(task.lease.claim_id, task_id)))


class Documents:
    """A collection for one group at a time, its tasks under the ids of `IDS`."""

    def __init__(self, client: MongoClient[dict[str, Any]]) -> None:
        self._tasks = client.get_default_database()["tasks"]

    def after(self, group: Sequence[tuple[Task, Any]], *, joint: bool) -> list[Task]:
        """What the requests make of the tasks."""
        self._tasks.delete_many({})
        there = [_at(task, id) for id, (task, _) in zip(IDS, group, strict=False)]
        requests = [about(request, task.task_id) for task, (_, request) in zip(there, group, strict=True)]
        self._tasks.insert_many([document_of(task) for task in there])
        for asked in [requests] if joint else [[request] for request in requests]:
            write = build_write(asked)
            self._tasks.update_many(write.guard, list(write.stages), hint="_id_")
        found = {document["_id"]: document for document in self._tasks.find()}
        return [task_of(found[task.task_id]) for task in there]


@pytest.fixture(scope="module")
def documents(mongo_server: Any) -> Iterator[Documents]:
    with MongoClient[dict[str, Any]](mongo_server.url_of("joint_writes")) as client:
        yield Documents(client)
        client.drop_database("joint_writes")


def unlike(actual: Any, expected: Any, path: str = "") -> list[str]:
    """Where two stored values differ in the least, the order of names and the sign of zero included."""
    if isinstance(actual, datetime) and isinstance(expected, datetime):
        return [] if abs(actual - expected) < _TOLERANCE else [f"{path}: {actual}, expected {expected}"]
    if isinstance(actual, dict) and isinstance(expected, dict) and list(actual) == list(expected):
        return [line for name in actual for line in unlike(actual[name], expected[name], f"{path}.{name}")]
    if isinstance(actual, list) and isinstance(expected, list) and len(actual) == len(expected):
        pairs = zip(itertools.count(), actual, expected, strict=False)
        return [line for place, left, right in pairs for line in unlike(left, right, f"{path}[{place}]")]
    return [] if _exactly(actual) == _exactly(expected) else [f"{path}: {actual!r}, expected {expected!r}"]


def _exactly(value: Any) -> str:
    is_integer = isinstance(value, int) and not isinstance(value, bool)  # the driver's class for 64 bits is one
    return repr(int(value) if is_integer else value)


def _record(task: Task) -> dict[str, Any]:
    return dict(sorted(task.to_document().items()))


TWO = new_task(now=datetime.now(UTC) - HOUR).evolve(
    status=TaskStatus.RUNNING, fencing_token=1, lease=Lease("w", "claim-1", datetime.now(UTC) + HOUR), attempts=1
)
LATE = new_task(now=datetime.now(UTC) - HOUR).evolve(
    dispatch_epoch=1, start_limit=StartLimit(1_000), start_by=datetime.now(UTC) - HOUR
)
SENT = LATE.evolve(next_dispatch_at=_START)
HELD = Fence("", 1, "claim-1")


@settings(
    deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@example([(TWO, Complete(HELD, "w", 0.0)), (TWO, Complete(HELD, "w", -0.0))])
@example([(TWO, Complete(HELD, "w", 1)), (TWO, Complete(HELD, "w", True)), (TWO, Complete(HELD, "w", 1.0))])
@example([(TWO, Complete(HELD, "w", [True])), (TWO, Complete(HELD, "w", [1]))])
@example([(TWO, Wait(HELD, "w", Subtasks(n, n), "$a", HOUR, value)) for n, value in enumerate((0.0, -0.0, 1, True))])
@example([(TWO, Wait(HELD, "w", None, None, None, 1)), (TWO, Wait(HELD, "w", Subtasks(1, {"$a": 1}), None, None, 1))])
@example([(TWO, Complete(HELD, "w", value)) for value in ODD[-len(IDS) :]])
@example([(TWO, Complete(HELD, "w", {"$literal": 1})), (TWO, Complete(HELD, "w", {"$literal": 1}))])
@example([(TWO, Complete(HELD, "$status", None)), (TWO, Complete(Fence("", 2, "claim-1"), "$status", None))])
@example([(LATE, MakeDue("", 1)), (LATE, MakeDue("", 1, HOUR)), (LATE, MakeDue("", 1, HOUR, "rate/a"))])
@example([(SENT, MakeDue("", 1, due=time)) for time in (_START, _START + HOUR, None)])
@given(groups())
def test_a_joint_write_makes_of_each_task_what_its_own_write_and_the_rule_make(
    documents: Documents, group: list[tuple[Task, Any]]
) -> None:
    single = documents.after(group, joint=False)
    joint = documents.after(group, joint=True)
    now = datetime.now(UTC)
    for task_id, (task, request), alone, together in zip(IDS, group, single, joint, strict=False):
        before = _at(task, task_id)
        ruled = about(request, task_id).apply(before, now)
        asked = f"{request!r} of {task!r}"
        assert unlike(_record(together), _record(alone)) == [], f"together, and alone: {asked}"
        assert unlike(_record(together), _record(ruled or before)) == [], f"together, and by the rule: {asked}"


def test_every_kind_that_may_be_joined_is_tried() -> None:
    assert frozenset(REQUESTS) == JOINT
