"""What task code in a process of its own asks its worker, and the worker's side of it."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from taskframework.model.task import StepOutcome
from taskframework.tasks.context import AttemptControl
from taskframework.tasks.subtasks import WantedSubtasks


@dataclass(frozen=True, slots=True)
class OutcomesAfter:
    """Please read what became of the next sub-tasks."""

    slot: int


#: A step to record, sub-tasks to plan, or a page of outcomes.
Question = StepOutcome | WantedSubtasks | OutcomesAfter


def asked(control: AttemptControl, question: Question) -> Future[Any]:
    """Do for the child what the attempt would do here."""
    match question:
        case StepOutcome():
            return control.steps.recorder.record(question)
        case WantedSubtasks():
            return control.family.plan(question)
        case OutcomesAfter(slot):
            return control.family.outcomes(slot)
