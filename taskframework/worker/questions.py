"""The requests of task code in a process of its own to its worker, and how the worker serves them."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from taskframework.model.task import StepOutcome
from taskframework.tasks.context import AttemptControl
from taskframework.tasks.subtasks import WantedSubtasks


@dataclass(frozen=True, slots=True)
class OutcomesAfter:
    """Read what became of the next sub-tasks, behind this slot."""

    slot: int


#: A step to record, sub-tasks to plan, or a page of outcomes.
Question = StepOutcome | WantedSubtasks | OutcomesAfter


def asked(control: AttemptControl, question: Question) -> Future[Any]:
    """Do for code in a child process what code in this process would call."""
    match question:
        case StepOutcome():
            return control.steps.recorder.record(question)
        case WantedSubtasks():
            return control.family.plan(question)
        case OutcomesAfter(slot):
            return control.family.outcomes(slot)
