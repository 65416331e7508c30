"""The questions that task code in a child process asks its worker, and how the worker answers them."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from taskframework.model.task_fields import StepOutcome
from taskframework.tasks.context import AttemptControl
from taskframework.tasks.subtasks import WantedSubtasks


@dataclass(frozen=True, slots=True)
class ReadOutcomes:
    """Read the outcomes of the next sub-tasks, after this slot."""

    slot: int


#: A step to record, sub-tasks to plan, or a page of outcomes.
Question = StepOutcome | WantedSubtasks | ReadOutcomes


def answer_question(control: AttemptControl, question: Question) -> Future[Any]:
    """Call, for code in a child process, the method that code in this process would call itself."""
    match question:
        case StepOutcome():
            return control.steps.recorder.record(question)
        case WantedSubtasks():
            return control.family.plan(question)
        case ReadOutcomes(slot):
            return control.family.outcomes(slot)
