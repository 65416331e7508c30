"""Waiting and signals: what is heard when, and what wakes a task."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from taskframework.model.drivers import CASCADE, CHECK, SPAWN
from taskframework.model.interventions import Cancel, Replay
from taskframework.model.marks import CascadeAgain, CountAfterEnd, MarkSpawned, MoveDriver
from taskframework.model.options import StreamPlace
from taskframework.model.scope import EVERYONE, Scope
from taskframework.model.signals import MAX_SIGNALS, SendSignal, Wake
from taskframework.model.status import FINAL, LIVE, TaskStatus
from taskframework.model.subtasks import Counts
from taskframework.model.task import FAMILY_VERSION, Task
from taskframework.model.task_fields import Batch, Signal, SignalWait, Subtasks
from taskframework.model.transitions import BY_DEADLINE
from taskframework.model.waiting import RECOUNT_AFTER, SPAWN_AFTER, WAIT_CHECK_INTERVAL, CountSubtasks, Reopen, Wait
from tests.unit.model.scenes import FENCE, MINUTE, NOW, SECOND, TASK_ID, in_status, running, wish_to_stop

PLANNED = Subtasks(2, [{"items": [1, 2]}])


def wait(subtasks: Subtasks | None = None, signal: str | None = None, timeout: timedelta | None = None) -> Wait:
    return Wait(FENCE, "worker-1", subtasks, signal, timeout, {"n": 1})


def waiting(**changes: Any) -> Task:
    usual: dict[str, Any] = {"waits_for": SignalWait("approved", None), "check_at": NOW}
    return in_status(TaskStatus.WAITING, **(usual | changes))


def send(key: str = "key", name: str = "approved", payload: Any = "yes", scope: Scope = EVERYONE) -> SendSignal:
    return SendSignal(TASK_ID, scope, key, name, payload)


def made(transition: Any, task: Task) -> Task:
    after = transition.apply(task, NOW)
    assert after is not None, transition
    assert isinstance(after, Task)
    return after


def test_a_task_that_planned_sub_tasks_waits_for_them() -> None:
    after = made(wait(PLANNED), running())
    assert (after.status, after.lease, after.schema_version) == (TaskStatus.WAITING, None, FAMILY_VERSION)
    assert after.subtasks == PLANNED
    assert (after.spawn_at, after.check_at, after.result) == (NOW + SPAWN_AFTER, NOW + WAIT_CHECK_INTERVAL, {"n": 1})
    assert after.history[-1].data == {"subtasks": 2, "signal": None}
    assert wait(PLANNED).was_applied(after), "asked for again, it is recognised"


def test_the_next_round_has_the_next_number() -> None:
    first = made(wait(PLANNED), running()).subtasks
    again = made(wait(PLANNED), running(subtasks=first)).subtasks
    assert (first and first.round, again and again.round) == (1, 2)
    left = made(wait(signal="approved"), running(subtasks=first))
    assert first is not None
    assert left.subtasks == replace(first, is_awaited=False), "no round begins"


def test_a_round_that_was_left_behind_decides_nothing() -> None:
    """Its last end may be reported after the task went on: it waits for a signal alone now."""
    left = made(wait(signal="approved"), running(subtasks=replace(PLANNED, resumes=True)))
    assert CountSubtasks.of(left, Counts(2, 0, 0)).apply(left, NOW) is None
    ended = left.evolve(status=TaskStatus.CANCELLED)
    reopened = made(Reopen(TASK_ID, EVERYONE, "operator"), ended)
    assert CountSubtasks.of(reopened, Counts(2, 0, 0)).apply(reopened, NOW) is not None


def test_a_round_of_nothing_is_looked_at_at_once() -> None:
    after = made(wait(Subtasks(0, [], resumes=True)), running())
    assert after.check_at == NOW
    assert made(CountSubtasks.of(after, Counts()), after).stage == "resume"


@pytest.mark.parametrize("timeout", [None, MINUTE, SECOND])
def test_a_parent_is_counted_again_if_the_counting_process_dies(timeout: Any) -> None:
    after = made(wait(PLANNED, None if timeout is None else "approved", timeout=timeout), running())
    due = after.evolve(check_at=NOW)
    again_at = NOW + min(timeout or RECOUNT_AFTER, RECOUNT_AFTER)
    assert made(Wake(TASK_ID), due).check_at == again_at
    counted = made(CountSubtasks.of(due, Counts(1, 0, 0)), due)
    assert counted.check_at == NOW + min(timeout or WAIT_CHECK_INTERVAL, WAIT_CHECK_INTERVAL)
    left = due.evolve(subtasks=replace(PLANNED, is_awaited=False), waits_for=SignalWait("approved", None))
    assert made(Wake(TASK_ID), left).check_at == NOW + WAIT_CHECK_INTERVAL, "nobody counts for it"


@pytest.mark.parametrize(
    ("timeout", "until", "check_at"),
    [
        (None, None, NOW + WAIT_CHECK_INTERVAL),
        (MINUTE, NOW + MINUTE, NOW + MINUTE),
        (timedelta(days=1), NOW + timedelta(days=1), NOW + WAIT_CHECK_INTERVAL),
    ],
)
def test_a_task_waits_for_a_signal_until_its_time(timeout: Any, until: Any, check_at: Any) -> None:
    after = made(wait(signal="approved", timeout=timeout), running())
    assert after.waits_for == SignalWait("approved", until)
    assert (after.check_at, after.spawn_at) == (check_at, None)


@pytest.mark.parametrize(
    ("by", "status"),
    [("alice", TaskStatus.CANCELLED), (BY_DEADLINE, TaskStatus.FAILED), ("parent", TaskStatus.CANCELLED)],
)
def test_a_task_with_a_cancel_ends_instead_of_waiting(by: str, status: TaskStatus) -> None:
    after = made(wait(PLANNED, "approved"), running(cancel=wish_to_stop(by)))
    assert (after.status, after.subtasks, after.waits_for, after.spawn_at) == (status, None, None, None)
    assert (after.result, after.finished_at) == (None, NOW)


def test_the_signal_that_a_task_waits_for_resumes_it() -> None:
    after = made(send(), waiting())
    assert (after.status, after.stage) == (TaskStatus.QUEUED, "signal")
    assert after.woken_by == Signal("key", "approved", NOW, "yes")
    assert after.signals == (Signal("key", "approved", NOW, None, is_heard=True),), "its payload is kept once"
    assert (after.waits_for, after.check_at) == (None, None)
    assert after.history[-1].type == "resumed"


@pytest.mark.parametrize("status", sorted(LIVE))
def test_a_signal_that_comes_early_is_kept(status: TaskStatus) -> None:
    after = made(send(), in_status(status))
    assert (after.status, after.signals) == (status, (Signal("key", "approved", NOW, "yes"),))
    assert after.history[-1].type == "signalled"


def test_a_signal_that_came_early_wakes_the_task_at_once() -> None:
    early = made(send(), running())
    after = made(wait(signal="approved", timeout=MINUTE), early)
    assert (after.status, after.check_at) == (TaskStatus.WAITING, NOW)
    woken = made(Wake(TASK_ID), after)
    assert (woken.status, woken.woken_by and woken.woken_by.payload) == (TaskStatus.QUEUED, "yes")


def test_signals_are_heard_in_the_order_in_which_they_came() -> None:
    early = Signal("first", "approved", NOW - MINUTE, 1)
    after = made(send("second", payload=2), waiting(signals=(early,)))
    assert after.woken_by == early
    assert [(signal.key, signal.is_heard) for signal in after.signals] == [("first", True), ("second", False)]


def test_a_task_is_not_woken_by_another_signal() -> None:
    after = made(send(name="rejected"), waiting())
    assert (after.status, after.waits_for) == (TaskStatus.WAITING, SignalWait("approved", None))


@pytest.mark.parametrize("is_heard", [False, True])
def test_the_same_key_is_the_same_signal_even_when_it_was_heard(is_heard: bool) -> None:
    known = Signal("key", "approved", NOW, None, is_heard)
    assert send().apply(waiting(signals=(known,)), NOW) is None
    assert send(name="rejected").apply(waiting(signals=(known,)), NOW) is None


def test_a_task_keeps_so_many_signals_and_no_more() -> None:
    kept = tuple(Signal(f"key-{n}", "other", NOW) for n in range(MAX_SIGNALS))
    assert send(name="further").apply(waiting(signals=kept), NOW) is None
    assert len(made(send(), waiting(signals=kept[1:])).signals) == MAX_SIGNALS


def test_a_full_list_takes_the_signal_that_the_task_waits_for() -> None:
    kept = tuple(Signal(f"key-{n}", "other", NOW) for n in range(MAX_SIGNALS))
    first = made(send(), waiting(signals=kept))
    assert (first.status, first.woken_by) == (TaskStatus.QUEUED, Signal("key", "approved", NOW, "yes"))
    assert send("second").apply(first, NOW) is None, "it does not wait now"
    second = made(send("second"), made(wait(signal="approved"), running(signals=first.signals)))
    assert second.status is TaskStatus.QUEUED
    assert [signal.key for signal in second.signals] == [*(signal.key for signal in kept), "second"]


def test_a_replay_keeps_the_signals_that_were_not_used() -> None:
    used, kept = Signal("first", "approved", NOW, None, is_heard=True), Signal("second", "approved", NOW, "yes")
    dead = in_status(TaskStatus.DEAD_LETTER, signals=(used, kept))
    assert made(Replay(TASK_ID, EVERYONE, "ann", timedelta(0)), dead).signals == (kept,)


def test_the_oldest_heard_signal_of_a_full_list_makes_room() -> None:
    kept = [Signal(f"key-{n}", "other", NOW, None, n in (1, 2)) for n in range(MAX_SIGNALS)]
    signals = made(send(), waiting(signals=tuple(kept))).signals
    assert [signal.key for signal in signals] == ["key-0", *(signal.key for signal in kept[2:]), send().key]


@pytest.mark.parametrize("status", sorted(FINAL))
def test_a_task_that_is_over_hears_nothing(status: TaskStatus) -> None:
    assert send().apply(in_status(status), NOW) is None


def test_a_stranger_cannot_signal() -> None:
    assert send(scope=Scope.of("bob")).apply(waiting(), NOW) is None
    assert send(scope=Scope.of("alice")).apply(waiting(), NOW) is not None


def test_a_task_whose_signal_is_late_continues_as_timed_out() -> None:
    late = waiting(waits_for=SignalWait("approved", NOW))
    after = made(Wake(TASK_ID), late)
    assert (after.status, after.stage) == (TaskStatus.QUEUED, "signal")
    assert after.woken_by == Signal("", "approved", NOW, timed_out=True)
    assert after.signals == (), "nobody sent it"
    assert after.history[-1].data == {"signal": "approved", "timed_out": True}


@pytest.mark.parametrize("until", [None, NOW + SECOND])
def test_a_task_whose_signal_is_still_to_come_is_looked_at_again(until: Any) -> None:
    before = waiting(waits_for=SignalWait("approved", until))
    after = made(Wake(TASK_ID), before)
    assert after == before.evolve(check_at=until or NOW + WAIT_CHECK_INTERVAL, revision=before.revision + 1)
    assert Wake(TASK_ID).apply(waiting(check_at=NOW + SECOND), NOW) is None, "before its time"


def test_a_signal_leaves_the_sub_tasks_behind_that_are_still_alive() -> None:
    assert made(send(), waiting(subtasks=PLANNED)).cascade_at == NOW
    done = Subtasks(2, None, done=2, succeeded=2)
    assert made(send(), waiting(subtasks=done)).cascade_at is None


@pytest.mark.parametrize("move", [send(), Wake(TASK_ID)], ids=["with its signal", "without it"])
def test_a_parent_that_goes_on_by_its_signal_waits_for_no_sub_task_any_more(move: Any) -> None:
    subtasks = replace(PLANNED, done=2, succeeded=1, cancelled=1)
    after = made(move, waiting(subtasks=subtasks, waits_for=SignalWait("approved", NOW)))
    assert after.subtasks == replace(subtasks, is_awaited=False)


def test_a_task_that_continues_stores_no_more_sub_tasks() -> None:
    after = made(send(), waiting(subtasks=PLANNED, spawn_at=NOW))
    assert (after.spawn_at, after.check_at, after.waits_for, after.cascade_at) == (None, None, None, NOW)


def test_only_the_plan_of_the_stored_round_is_dropped() -> None:
    before = made(wait(PLANNED), running())
    after = made(MarkSpawned(TASK_ID, 0, 1), before)
    assert (after.spawn_at, after.subtasks and after.subtasks.plan) == (None, None)
    for other in (MarkSpawned(TASK_ID, 1, 1), MarkSpawned(TASK_ID, 0, 2)):
        after = made(other, before)
        assert (after.spawn_at, after.subtasks) == (before.spawn_at, before.subtasks)
    assert MarkSpawned(TASK_ID, 0, 1).apply(running(), NOW) is None


def test_sub_tasks_stored_for_an_ended_parent_are_cancelled() -> None:
    before = made(wait(PLANNED), running())
    for mark in (MarkSpawned(TASK_ID, 0, 1), CascadeAgain(TASK_ID, 0, 1)):
        assert (mark.apply(before, NOW) or before).cascade_at is None, "the parent waits for it"
        over = made(Cancel(TASK_ID, EVERYONE, "alice", None), before).evolve(cascade_at=None)
        assert made(mark, over).cascade_at == NOW
    whole = before.evolve(status=TaskStatus.COMPLETED, subtasks=replace(PLANNED, done=2))
    assert made(MarkSpawned(TASK_ID, 0, 1), whole).cascade_at is None, "all of it had ended"
    assert CascadeAgain(TASK_ID, 0, 1).apply(running(), NOW) is None


def test_sub_tasks_stored_after_their_parent_began_another_round_are_cancelled() -> None:
    second = made(wait(PLANNED), running(subtasks=replace(PLANNED, done=2)))
    assert (second.cascade_at, second.subtasks and second.subtasks.round) == (None, 2)
    for late in (MarkSpawned(TASK_ID, 0, 1), CascadeAgain(TASK_ID, 0, 1)):
        assert made(late, second).cascade_at == NOW
    assert CascadeAgain(TASK_ID, 0, 2).apply(second, NOW) is None


@pytest.mark.parametrize("driver", [SPAWN, CHECK, CASCADE])
def test_one_of_several_processes_that_read_one_time_moves_it(driver: Any) -> None:
    before = waiting(**{driver.field: NOW})
    taken = made(MoveDriver(TASK_ID, driver, NOW, MINUTE), before)
    assert taken == before.evolve(**{driver.field: NOW + MINUTE})
    assert MoveDriver(TASK_ID, driver, NOW, MINUTE).apply(taken, NOW) is None
    assert getattr(made(MoveDriver(TASK_ID, driver, NOW + MINUTE, None), taken), driver.field) is None


def test_a_parent_that_is_over_waits_again_for_its_newest_round() -> None:
    subtasks = Subtasks(2, None, done=2, failed=2, round=3, report_serial=5)
    over = in_status(TaskStatus.FAILED, subtasks=subtasks, cancel=wish_to_stop())
    after = made(Reopen(TASK_ID, EVERYONE, "operator"), over)
    assert (after.status, after.generation) == (TaskStatus.WAITING, over.generation)
    assert after.subtasks == replace(subtasks, done=0, failed=0, report_serial=6), "no earlier count ends it again"
    assert (after.finished_at, after.cancel) == (None, None)
    assert after.check_at is not None
    for refused in (waiting(subtasks=subtasks), in_status(TaskStatus.FAILED)):
        assert Reopen(TASK_ID, EVERYONE, "operator").apply(refused, NOW) is None
    assert Reopen(TASK_ID, Scope.of("bob"), "bob").apply(over, NOW) is None


@pytest.mark.parametrize(("resumes", "is_reopened"), [(False, False), (True, True)])
def test_only_a_method_takes_a_round_that_the_parent_went_on_without(resumes: bool, is_reopened: bool) -> None:
    left = Subtasks(2, None, done=2, failed=2, is_awaited=False, resumes=resumes)
    over = in_status(TaskStatus.FAILED, subtasks=left)
    assert (Reopen(TASK_ID, EVERYONE, "operator").apply(over, NOW) is not None) == is_reopened


def test_a_batch_that_is_reopened_for_one_sub_task_replays_no_other() -> None:
    batch = in_status(
        TaskStatus.CANCELLED,
        subtasks=Subtasks(2, None, done=2, failed=2),
        batch=Batch(items=2, retry_until=NOW - MINUTE),
        retry_at=NOW,
    )
    after = made(Reopen(TASK_ID, EVERYONE, "operator"), batch)
    assert (after.retry_at, after.batch) == (None, Batch(items=2))


@pytest.mark.parametrize(("mode", "is_reopened"), [("serial", False), ("ordered_results", True)])
def test_a_parent_is_not_reopened_beside_the_task_that_has_its_turn(mode: Any, is_reopened: bool) -> None:
    over = in_status(TaskStatus.FAILED, subtasks=Subtasks(2, None, done=2, failed=2), stream=StreamPlace("k", mode, 0))
    assert (Reopen(TASK_ID, EVERYONE, "operator").apply(over, NOW) is not None) == is_reopened


def test_a_batch_whose_upload_was_never_completed_is_not_reopened() -> None:
    open_round = Subtasks(None, None, done=1, failed=1)
    over = in_status(TaskStatus.CANCELLED, subtasks=open_round, batch=Batch(items=2), seal_by=NOW - MINUTE)
    assert Reopen(TASK_ID, EVERYONE, "operator").apply(over, NOW) is None
    assert made(Reopen(TASK_ID, EVERYONE, "operator"), over.evolve(subtasks=replace(open_round, planned=2))) is not None


def test_a_parent_that_ended_while_its_plan_was_being_stored_goes_on_with_it() -> None:
    over = in_status(TaskStatus.CANCELLED, subtasks=PLANNED)
    assert made(Reopen(TASK_ID, EVERYONE, "operator"), over).spawn_at == NOW + SPAWN_AFTER
    stored = in_status(TaskStatus.CANCELLED, subtasks=Subtasks(2, None))
    assert made(Reopen(TASK_ID, EVERYONE, "operator"), stored).spawn_at is None
    large = in_status(TaskStatus.CANCELLED, subtasks=Subtasks(2, None, plan_records=3))
    assert Reopen(TASK_ID, EVERYONE, "operator").apply(large, NOW) is None, "its plan is gone"


def test_a_task_that_is_cancelled_while_it_waits_has_no_result() -> None:
    assert made(Cancel(TASK_ID, EVERYONE, "alice", None), waiting(result="half of it")).result is None


def test_an_older_count_of_what_a_parent_left_replaces_no_newer_one() -> None:
    over = in_status(TaskStatus.FAILED, subtasks=replace(PLANNED, done=2, succeeded=1, failed=1))
    newest = CountAfterEnd(TASK_ID, 0, 1, Counts(1, 1, 1)).apply(over, NOW)
    assert newest is not None
    assert newest.subtasks is not None
    assert (newest.subtasks.done, newest.subtasks.cancelled) == (3, 1)
    assert CountAfterEnd(TASK_ID, 0, 1, Counts(1, 1, 0)).apply(newest, NOW) is None
    assert CountAfterEnd(TASK_ID, 0, 2, Counts(1, 1, 2)).apply(newest, NOW) is None, "of another round"
    assert CountAfterEnd(TASK_ID, 0, 1, Counts(1, 1, 1)).apply(waiting(subtasks=PLANNED), NOW) is None
