"""Every transition, from every status, against the table of moves."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass
from types import ModuleType
from typing import Any

import pytest

from taskframework.failpoint import POINTS
from taskframework.model import attempts, batches, debounce, interventions, marks, signals, stream_moves, waiting
from taskframework.model.attempts import Claim, Complete, Fail, RecordStep, Release, ReportProgress
from taskframework.model.debounce import ReplaceParameters
from taskframework.model.drivers import CASCADE
from taskframework.model.events import ATTEMPT_END_TYPES, EVENT_BY_ENTRY_TYPE, event_of_move
from taskframework.model.interventions import (
    Cancel,
    Discard,
    EndUnstarted,
    Expire,
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
from taskframework.model.options import Debounce, StartLimit, StreamPlace
from taskframework.model.scope import EVERYONE
from taskframework.model.signals import SendSignal, Wake
from taskframework.model.status import (
    AT_REST,
    CLAIMABLE,
    DEAD,
    FINAL,
    LANES,
    LIVE,
    MOVES,
    REPLAYABLE,
    SUCCEEDED,
    TaskStatus,
    lane_of,
)
from taskframework.model.stream_moves import ClaimTurn, MovePosition, Skip, Unblock
from taskframework.model.subtasks import Counts, Verdict
from taskframework.model.task import Task
from taskframework.model.task_fields import ParentLink, Signal, SignalWait, Subtasks
from taskframework.model.transitions import BY_DEADLINE
from taskframework.model.waiting import CountSubtasks, Reopen, Wait
from tests.unit.model.scenes import FENCE, MINUTE, NOW, SECOND, TASK_ID, TOKEN, ZERO, an_error, in_status, wish_to_stop


def _count(counts: Counts, verdict: Verdict | None, *, resumes: bool = False) -> CountSubtasks:
    return CountSubtasks(TASK_ID, 0, 1, 0, "all_must_succeed", resumes, counts, verdict)


TRANSITIONS: dict[str, Any] = {
    "claim": Claim(TASK_ID, 1, "a-claim", "worker-2", MINUTE),
    "progress": ReportProgress(FENCE, 1),
    "step": RecordStep(FENCE, "charge", 7),
    "complete": Complete(FENCE, "worker-1", None),
    "fail": Fail(FENCE, "worker-1", an_error(), True, MINUTE),
    "fail for good": Fail(FENCE, "worker-1", an_error(), False, MINUTE),
    "release": Release(FENCE, "worker-1"),
    "reap": Reap(TASK_ID, TOKEN, ZERO, 3, MINUTE),
    "cancel": Cancel(TASK_ID, EVERYONE, "alice", None),
    "supersede": Supersede(TASK_ID, 3),
    "supersede what runs": Supersede(TASK_ID, 3, stops_running=True),
    "expire": Expire(TASK_ID),
    "end unstarted": EndUnstarted(TASK_ID),
    "replace the parameters": ReplaceParameters(TASK_ID, 2, "newer", MINUTE),
    "postpone": Postpone(TASK_ID, 1, MINUTE, 5),
    "postpone too often": Postpone(TASK_ID, 1, MINUTE, 0),
    "replay": Replay(TASK_ID, EVERYONE, "operator", ZERO),
    "retry now": RetryNow(TASK_ID, EVERYONE, "operator", ZERO, 1),
    "discard": Discard(TASK_ID, EVERYONE, "operator", "of last year"),
    "reserve": ReserveDispatch(TASK_ID, 1, SECOND, MINUTE),
    "make due": MakeDue(TASK_ID, 1),
    "make due later": MakeDue(TASK_ID, 1, MINUTE),
    "wait anew": RestartQueueTimeout(TASK_ID),
    "forget dispatch": ForgetDispatch(TASK_ID),
    "end a put-off": EndPutOff(TASK_ID, NOW - MINUTE),
    "renew": RenewLease(FENCE, MINUTE),
    "dispatched": MarkDispatched(TASK_ID, 1, SECOND, MINUTE),
    "published": MarkPublished(TASK_ID, 1),
    "postpone relay": PostponeRelay(TASK_ID, MINUTE),
    "wait": Wait(FENCE, "worker-1", Subtasks(3, []), "approved", None, None),
    "count": _count(Counts(succeeded=1), None),
    "count that meets": _count(Counts(succeeded=3), Verdict.MET),
    "count that meets with errors": _count(Counts(2, 1), Verdict.MET_WITH_ERRORS),
    "count that does not meet": _count(Counts(failed=1), Verdict.NOT_MET),
    "count that resumes": _count(Counts(succeeded=3), Verdict.MET, resumes=True),
    "signal": SendSignal(TASK_ID, EVERYONE, "key-2", "approved", None),
    "wake": Wake(TASK_ID),
    "reopen": Reopen(TASK_ID, EVERYONE, "operator"),
    "move a driver": MoveDriver(TASK_ID, CASCADE, NOW, MINUTE),
    "end a driver": MoveDriver(TASK_ID, CASCADE, NOW, None),
    "unblock": Unblock(TASK_ID, 0, SECOND),
    "claim a turn": ClaimTurn(TASK_ID, 0, "c-2", "worker-2", MINUTE, "test-task", "normal"),
    "skip": Skip(TASK_ID, NOW),
    "move the position": MovePosition(TASK_ID, 7, 9),
    "spawned": MarkSpawned(TASK_ID, 0, 1),
    "cascade again": CascadeAgain(TASK_ID, 0, 1),
    "count again": CountAgain(TASK_ID),
    "count after the end": CountAfterEnd(TASK_ID, 0, 1, Counts(2, 0, 1)),
}

#: They move a driver and tell nobody.
MODULES = (attempts, interventions, marks, signals, stream_moves, waiting, debounce)
MARKS = tuple(kind for kind in vars(marks).values() if is_dataclass(kind))

#: Moves of the table that nothing here makes yet.
LATER = {
    (TaskStatus.RUNNING, TaskStatus.COMPLETED_WITH_ERRORS),
    (TaskStatus.WAITING, TaskStatus.DEAD_LETTER),
}


@functools.cache
def situations(status: TaskStatus) -> Sequence[Task]:
    return list(_make_situations(status))


def _make_situations(status: TaskStatus) -> Iterator[Task]:
    """The status with every combination of what the guards and choices look at."""
    wishes = (None, wish_to_stop("alice"), wish_to_stop(BY_DEADLINE))
    for cancel, is_spent, is_late, is_due in itertools.product(wishes, *[(False, True)] * 3):
        changes: dict[str, Any] = {"max_attempts": 3 if is_spent else 9, "deadline": NOW if is_late else None}
        changes["cancel"] = cancel
        changes |= {"start_limit": StartLimit(60_000), "start_by": NOW if is_late else NOW + MINUTE}
        if is_due and status in CLAIMABLE:
            changes["next_dispatch_at"] = NOW
        if is_late and status is TaskStatus.RETRYING:
            changes["not_before"] = NOW + MINUTE
        yield in_status(status, **changes)
    for cancel, family in itertools.product(wishes, families(status)):
        yield in_status(status, cancel=cancel, **family)


def families(status: TaskStatus) -> Iterator[dict[str, Any]]:
    """What a parent, a task with signals and a sub-task have."""
    yield {"subtasks": Subtasks(3, []), "cascade_at": NOW}
    yield {"parent": ParentLink("parent", 0, 1)}
    for place, is_late in itertools.product(
        (StreamPlace("a", "serial", 7), StreamPlace("a", "ordered_results", 7)), (False, True)
    ):
        yield {"stream": place, "deadline": NOW if is_late else None}
    yield {"debounce": Debounce("key", 1_000, 3_600_000)}
    kept = Signal("key-1", "approved", NOW - MINUTE, {"by": "alice"})
    yield {"signals": (kept,), "waits_for": SignalWait("approved", NOW) if status is TaskStatus.WAITING else None}


@functools.cache
def outcomes() -> Sequence[tuple[str, Task, Task]]:
    return list(_make_outcomes())


def _make_outcomes() -> Iterator[tuple[str, Task, Task]]:
    for name, transition in TRANSITIONS.items():
        for status in TaskStatus:
            for before in situations(status):
                if (after := transition.apply(before, NOW)) is not None:
                    yield name, before, after


def rules_of(*modules: ModuleType) -> set[type]:
    kinds = [kind for module in modules for kind in vars(module).values()]
    return {kind for kind in kinds if isinstance(kind, type) and is_dataclass(kind) and hasattr(kind, "apply")}


def test_every_move_is_in_the_table() -> None:
    strange = {
        (name, before.status, after.status)
        for name, before, after in outcomes()
        if after.status is not before.status and after.status not in MOVES.get(before.status, ())
    }
    assert strange == set(), "moves that are not in `MOVES` of model/status.py"


def test_every_move_of_the_table_is_made() -> None:
    table = {(source, target) for source, targets in MOVES.items() for target in targets}
    made = {(before.status, after.status) for _, before, after in outcomes() if after.status is not before.status}
    assert table - made == LATER, "moves of `MOVES` in model/status.py that no rule among `TRANSITIONS` here makes"


def test_every_status_is_reached_by_some_move() -> None:
    reached = {TaskStatus.QUEUED}
    moves = {(before.status, after.status) for _, before, after in outcomes()}
    while found := {target for source, target in moves if source in reached} - reached:
        reached |= found
    assert reached == set(TaskStatus), "no rule among `TRANSITIONS` here leads to the rest"


def test_every_transition_applies_somewhere() -> None:
    assert {name for name, _, _ in outcomes()} == TRANSITIONS.keys()


def test_only_moves_of_an_operator_lead_out_of_a_final_status() -> None:
    leaving = {name for name, before, after in outcomes() if before.status in FINAL and after.status not in FINAL}
    assert leaving == {"replay", "reopen"}


def test_a_final_task_changes_only_by_marks_or_by_an_operator() -> None:
    for name, before, after in outcomes():
        by_operator = name in ("replay", "discard", "reopen", "move the position")
        if before.status in FINAL and not by_operator and type(TRANSITIONS[name]) not in MARKS:
            pytest.fail(f"{name} changed a {before.status} task into {after}")


def test_every_live_task_has_a_driver_after_every_move() -> None:
    for name, before, after in outcomes():
        if after.status in CLAIMABLE:
            assert after.next_dispatch_at is not None, (name, before)
        if after.status is TaskStatus.RUNNING:
            assert after.lease is not None, (name, before)
            assert after.next_dispatch_at is None, (name, before)
        if after.status is TaskStatus.WAITING:
            assert after.check_at is not None, (name, before)
            assert (after.lease, after.next_dispatch_at) == (None, None), (name, before)
        if after.status is TaskStatus.BLOCKED:
            assert after.unblock_at is not None, (name, before)
            assert (after.lease, after.next_dispatch_at) == (None, None), (name, before)
        if after.status in FINAL:
            driven = ("lease", "next_dispatch_at", "spawn_at", "check_at", "unblock_at", "waits_for")
            assert [getattr(after, field) for field in driven] == [None] * 6, (name, before)
            assert after.finished_at is not None, (name, before)
        if after.sequence > after.published_sequence:
            assert after.publish_at is not None, (name, before)


def test_every_change_of_status_is_exactly_one_event() -> None:
    for name, before, after in outcomes():
        events = after.history[len(before.history) :]
        assert after.sequence - before.sequence == len(events), name
        if after.status is not before.status:
            *others, event = events
            # A deadline also lets the stream go on, and who claims a turn also unblocks the task.
            also = {"expire": ["skipped"], "claim a turn": ["unblocked"]}
            is_told = after.stream is not None or name == "claim a turn"
            assert [other.type for other in others] == (also.get(name, []) if is_told else []), name
            assert (event.sequence, event.at) == (after.sequence, NOW), name


def test_every_transition_raises_the_revision_and_no_mark_does() -> None:
    for name, before, after in outcomes():
        assert after.revision - before.revision == (type(TRANSITIONS[name]) not in MARKS), name


def test_the_end_of_a_subtask_is_to_be_reported_and_what_a_parent_leaves_is_to_be_cancelled() -> None:
    for name, before, after in outcomes():
        if after.status in FINAL and before.status not in FINAL:
            is_left = after.subtasks is not None and after.subtasks.is_open
            assert (after.cascade_at is not None) is (is_left or before.cascade_at is not None), name


def test_a_step_that_was_recorded_before_changes_nothing() -> None:
    recorded = TRANSITIONS["step"].apply(in_status(TaskStatus.RUNNING), NOW)
    assert TRANSITIONS["step"].apply(recorded, NOW) is recorded


def test_revision_and_published_mark_show_every_change_that_the_end_of_an_attempt_depends_on() -> None:
    # A store may remember a running task and end it without reading it again, guarded by these two fields alone.
    ends = [
        end for name, end in TRANSITIONS.items() if name in ("complete", "fail", "fail for good", "release", "wait")
    ]
    for name, before, after in outcomes():
        # It does not remember one with sub-tasks.
        if before.status is after.status is TaskStatus.RUNNING and FENCE.holds(after) and before.subtasks is None:
            is_seen = (before.revision, before.published_sequence) != (after.revision, after.published_sequence)
            for end in ends:
                assert is_seen or end.apply(after, NOW) == end.apply(before, NOW), (name, end)


def test_every_class_with_a_rule_is_tried() -> None:
    tried = {type(rule) for rule in TRANSITIONS.values()}
    assert rules_of(*MODULES) == tried, "give `TRANSITIONS` here one of each class"


def test_every_event_has_its_class() -> None:
    appended = {entry.type for _, _, after in outcomes() for entry in after.history}
    assert appended <= EVENT_BY_ENTRY_TYPE.keys(), (
        "a type of the history has its event in `EVENT_BY_ENTRY_TYPE` of model/events.py"
    )


def test_a_move_ends_an_attempt_exactly_if_its_history_entry_is_an_attempt_end() -> None:
    for name, before, after in outcomes():
        if before.status is TaskStatus.RUNNING:
            appended = {entry.type for entry in after.history[len(before.history) :]}
            has_ended = after.status is not TaskStatus.RUNNING
            assert has_ended == bool(appended & ATTEMPT_END_TYPES), name
    assert EVENT_BY_ENTRY_TYPE.keys() >= ATTEMPT_END_TYPES


def test_the_event_of_a_move_is_the_one_of_its_history_entry() -> None:
    for name, before, after in outcomes():
        transition = TRANSITIONS[name]
        if not hasattr(transition, "failpoint"):  # a mark
            continue
        event = event_of_move(transition, after)
        appended = after.history[len(before.history) :]
        if appended:
            assert type(event) is EVENT_BY_ENTRY_TYPE[appended[-1].type], name
        else:
            assert event is None or name in ("progress", "count"), name


def test_every_move_has_a_failpoint() -> None:
    names = {transition.failpoint for transition in TRANSITIONS.values() if hasattr(transition, "failpoint")}
    assert names <= POINTS.keys()


def test_every_rule_says_which_failpoint_its_reply_passes() -> None:
    points = {kind.__name__: vars(kind).get("reply_failpoint", "") for kind in rules_of(*MODULES, batches)}
    assert [name for name, point in points.items() if point not in POINTS or not point.endswith(".reply")] == []


def test_tokens_and_epochs_only_grow() -> None:
    for name, before, after in outcomes():
        assert after.fencing_token - before.fencing_token == (name in ("claim", "claim a turn")), name
        was_over = before.status in FINAL and after.status is TaskStatus.BLOCKED
        became_claimable = was_over or (after.status in CLAIMABLE and before.status not in CLAIMABLE)
        has_another_time = name in ("replace the parameters", "retry now") and after.not_before != before.not_before
        is_new_epoch = became_claimable or has_another_time or name == "claim a turn"
        assert after.dispatch_epoch - before.dispatch_epoch == is_new_epoch, name
        assert after.generation - before.generation == (name == "replay"), name


def test_a_cancelled_task_never_completes_in_that_generation() -> None:
    for name, before, after in outcomes():
        if before.status is TaskStatus.CANCELLED and name not in ("replay", "reopen"):
            assert after.status is TaskStatus.CANCELLED, name


def test_no_rule_changes_what_only_the_submitter_decides() -> None:
    fixed = (
        "task_id",
        "task_type",
        "user_id",
        "priority",
        "correlation_id",
        "parameters",
        "created_at",
        "max_attempts",
    )
    for name, before, after in outcomes():
        if name == "replace the parameters":  # by a submitter
            before = before.evolve(parameters=after.parameters)
        assert [getattr(after, field) for field in fixed] == [getattr(before, field) for field in fixed], name


def test_the_named_sets_of_statuses_fit_together() -> None:
    assert set(TaskStatus) == FINAL | LIVE
    assert FINAL.isdisjoint(LIVE)
    assert CLAIMABLE < AT_REST < LIVE
    assert DEAD < REPLAYABLE < FINAL
    assert {status for status in TaskStatus if status.is_final} == FINAL
    assert SUCCEEDED | DEAD | {TaskStatus.CANCELLED} == FINAL, (
        "say what a final status counts as: docs/adding/status.md"
    )
    assert MOVES.keys() == set(TaskStatus), "say which moves lead out of a status: docs/adding/status.md"


def test_an_unknown_priority_travels_as_normal() -> None:
    assert [lane_of(priority) for priority in ("high", "normal", "low", "urgent", "")] == [*LANES, LANES[1], LANES[1]]


def test_a_newer_version_stops_a_waiting_parent_only_with_stops_running() -> None:
    parent = in_status(TaskStatus.WAITING)
    assert Supersede(TASK_ID, 3).apply(parent, NOW) is None
    stopped = Supersede(TASK_ID, 3, stops_running=True).apply(parent, NOW)
    assert stopped is not None
    assert stopped.status is TaskStatus.CANCELLED
