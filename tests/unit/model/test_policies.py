"""Policies: what the counts of a round decide, and what the parent becomes by it."""

from __future__ import annotations

import itertools

import pytest

from taskframework.model.scope import EVERYONE
from taskframework.model.status import FINAL, TaskStatus
from taskframework.model.subtasks import Counts, Policy, Verdict, at_least, subtask_id
from taskframework.model.task import Task
from taskframework.model.task_fields import Signal, SignalWait, Subtasks
from taskframework.model.waiting import WAIT_CHECK_INTERVAL, CountSubtasks, Reopen
from tests.unit.model.scenes import MINUTE, NOW, TASK_ID, in_status

MET, WITH_ERRORS, NOT_MET = Verdict.MET, Verdict.MET_WITH_ERRORS, Verdict.NOT_MET
PLANNED = 4
ALL_COUNTS = [Counts(*counts) for counts in itertools.product(range(PLANNED + 1), repeat=3) if sum(counts) <= PLANNED]


@pytest.mark.parametrize(
    ("policy", "counts", "verdict"),
    [
        ("all_must_succeed", Counts(3), None),
        ("all_must_succeed", Counts(4), MET),
        ("all_must_succeed", Counts(0, failed=1), NOT_MET),
        ("all_must_succeed", Counts(0, cancelled=1), NOT_MET),
        ("allow_failures", Counts(0, failed=3), None),
        ("allow_failures", Counts(4), MET),
        ("allow_failures", Counts(3, failed=1), WITH_ERRORS),
        ("allow_failures", Counts(0, cancelled=4), WITH_ERRORS),
        ("first_success", Counts(0, failed=3), None),
        ("first_success", Counts(1), MET),
        ("first_success", Counts(1, failed=3), MET),
        ("first_success", Counts(0, failed=3, cancelled=1), NOT_MET),
        ("at_least(2)", Counts(1, failed=2), None),
        ("at_least(2)", Counts(2), MET),
        ("at_least(2)", Counts(1, failed=2, cancelled=1), NOT_MET),
        ("at_least(5)", Counts(), NOT_MET),
    ],
)
def test_a_policy_decides_by_the_counts(policy: str, counts: Counts, verdict: Verdict | None) -> None:
    assert Policy.parse(policy).verdict(PLANNED, counts) is verdict


@pytest.mark.parametrize("text", ["all_must_succeed", "allow_failures", "first_success", "at_least(1)", "at_least(4)"])
def test_a_decision_of_a_policy_is_not_changed_by_later_ends(text: str) -> None:
    policy = Policy.parse(text)
    for counts in ALL_COUNTS:
        verdict = policy.verdict(PLANNED, counts)
        if counts.done == PLANNED:
            assert verdict is not None, counts
            continue
        nexts = [
            Counts(counts.succeeded + 1, counts.failed, counts.cancelled),
            Counts(counts.succeeded, counts.failed + 1, counts.cancelled),
            Counts(counts.succeeded, counts.failed, counts.cancelled + 1),
        ]
        for later in nexts if verdict is not None else ():
            assert policy.verdict(PLANNED, later) is verdict, (counts, later)


@pytest.mark.parametrize(
    "text", ["", "some", "at_least(0)", "at_least(01)", "at_least(1000000)", "at_least(x)", None, 3]
)
def test_a_text_that_is_no_policy_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="must be "):
        Policy.parse(text)


def test_at_least_names_its_policy() -> None:
    assert at_least(7) == "at_least(7)"
    with pytest.raises(ValueError, match="a whole number from 1 to 999,999, not 0"):
        at_least(0)


def test_every_final_status_counts_as_an_end_and_no_other() -> None:
    assert Counts.of(dict.fromkeys(TaskStatus, 1)) == Counts(succeeded=2, failed=2, cancelled=1)
    for status in TaskStatus:
        assert Counts.of({status: 3}).done == (3 if status in FINAL else 0)


def parent(**changes: object) -> Task:
    planned = {"planned": PLANNED, "plan": None, "report_serial": 7, **changes}
    return in_status(TaskStatus.WAITING, subtasks=Subtasks(**planned), result="what it waited with")  # type: ignore[arg-type]


def counted(task: Task, counts: Counts) -> Task:
    after = CountSubtasks.of(task, counts).apply(task, NOW)
    assert after is not None
    return after


def test_a_reopened_round_fails_when_no_sub_task_of_it_is_live() -> None:
    failed = counted(parent(policy="all_must_succeed"), Counts(failed=1))
    assert failed.status is TaskStatus.FAILED, "the first time at once"
    reopened = Reopen(TASK_ID, EVERYONE, "operator").apply(failed, NOW)
    assert reopened is not None
    assert counted(reopened, Counts(PLANNED - 2, 1)).status is TaskStatus.WAITING
    assert counted(reopened, Counts(PLANNED - 1, 1)).status is TaskStatus.FAILED


def test_a_count_that_decides_nothing_is_progress() -> None:
    before = parent()
    after = counted(before, Counts(2))
    assert after.status is TaskStatus.WAITING
    assert after.subtasks is not None
    assert (after.subtasks.done, after.subtasks.succeeded, after.subtasks.report_serial) == (2, 2, 8)
    assert after.check_at == NOW + WAIT_CHECK_INTERVAL
    assert (after.progress_revision, after.revision) == (before.progress_revision + 1, before.revision + 1)
    assert after.sequence == before.sequence


def test_the_earlier_of_two_counts_is_refused_after_the_later_one() -> None:
    before = parent()
    early, late = CountSubtasks.of(before, Counts(1)), CountSubtasks.of(before, Counts(3))
    after = late.apply(before, NOW)
    assert after is not None
    assert early.apply(after, NOW) is None


@pytest.mark.parametrize("changes", [{"round": 2}, {"report_serial": 8}])
def test_a_count_of_another_round_or_of_an_older_serial_is_refused(changes: dict[str, int]) -> None:
    assert CountSubtasks.of(parent(), Counts(4)).apply(parent(**changes), NOW) is None


@pytest.mark.parametrize("changes", [{"generation": 1}, {"status": TaskStatus.QUEUED}, {"subtasks": None}])
def test_a_count_is_refused_by_a_task_that_does_not_wait_for_it(changes: dict[str, object]) -> None:
    assert CountSubtasks.of(parent(), Counts(4)).apply(parent().evolve(**changes), NOW) is None


@pytest.mark.parametrize(
    ("policy", "counts", "status"),
    [
        ("all_must_succeed", Counts(4), TaskStatus.COMPLETED),
        ("allow_failures", Counts(3, 1), TaskStatus.COMPLETED_WITH_ERRORS),
        ("first_success", Counts(0, 3, 1), TaskStatus.FAILED),
    ],
)
def test_a_parent_that_nothing_resumes_ends_with_its_sub_tasks(policy: str, counts: Counts, status: TaskStatus) -> None:
    after = counted(parent(policy=policy), counts)
    assert (after.status, after.finished_at, after.cascade_at) == (status, NOW, None)
    is_failed = status is TaskStatus.FAILED
    assert after.result == (None if is_failed else "what it waited with")
    assert (after.error.code if after.error else None) == ("subtasks_failed" if is_failed else None)
    assert after.history[-1].data == {
        "succeeded": counts.succeeded,
        "failed": counts.failed,
        "cancelled": counts.cancelled,
    }


def test_a_parent_that_is_resumed_has_its_whole_budget_and_leaves_what_is_still_alive() -> None:
    before = parent(policy="at_least(2)", resumes=True).evolve(attempts=3, crashes=2, releases=1)
    after = counted(before, Counts(2))
    assert (after.status, after.stage) == (TaskStatus.QUEUED, "resume")
    assert (after.attempts, after.crashes, after.releases) == (0, 0, 0)
    assert after.dispatch_epoch == before.dispatch_epoch + 1
    assert after.cascade_at == NOW
    assert counted(parent(resumes=True), Counts(4)).cascade_at is None, "nothing is left behind"


def test_a_policy_that_is_not_met_fails_the_parent_whatever_resumes_it() -> None:
    after = counted(parent(resumes=True), Counts(0, failed=1))
    assert (after.status, after.cascade_at) == (TaskStatus.FAILED, NOW)


def test_an_open_batch_is_counted_and_decides_nothing() -> None:
    after = counted(parent(planned=None), Counts(4))
    assert after.status is TaskStatus.WAITING


def test_a_count_looks_again_when_the_signal_is_late() -> None:
    wait = SignalWait("approved", NOW + MINUTE)
    assert counted(parent().evolve(waits_for=wait), Counts(1)).check_at == NOW + MINUTE
    told = parent().evolve(waits_for=wait, signals=(Signal("key", "approved", NOW),))
    assert counted(told, Counts(1)).check_at == NOW


def test_no_two_sub_tasks_have_one_id() -> None:
    places = list(itertools.product(("parent-1", "parent-2"), range(2), range(1, 3), range(2)))
    assert len({subtask_id(*place) for place in places}) == len(places)
