"""What a task is told of its sub-tasks."""

from __future__ import annotations

from typing import cast

from taskframework.model.status import TaskStatus
from taskframework.model.task_fields import ParentLink, Subtasks
from taskframework.tasks.subtasks import Family, SubtaskOutcome, SubtaskSummary
from taskframework.testing.factories import new_task


def test_a_summary_has_the_number_of_its_round() -> None:
    family = cast(Family, None)
    assert SubtaskSummary.of(Subtasks(7, None, 7, 5, 1, 1, round=4), family) == SubtaskSummary(4, 7, 5, 1, 1, family)


def test_an_outcome_has_the_item_of_its_sub_task_although_that_failed() -> None:
    failed = new_task(parameters={"file": "a.txt"}, status=TaskStatus.FAILED, parent=ParentLink("parent", 1, 3, 1, 1))
    assert SubtaskOutcome.of(failed) == SubtaskOutcome(3, failed.task_id, {"file": "a.txt"}, failed.status, None, None)
