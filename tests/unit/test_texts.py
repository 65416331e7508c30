"""What carries parameters, progress or results shows nothing of them as text: texts of objects end up in logs."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest

from taskframework import SubmitRequest, TaskContext
from taskframework.errors import InvalidParametersError
from taskframework.model.attempts import Complete, RecordStep, ReportProgress
from taskframework.model.events import AttemptFinished, TaskStartedEvent
from taskframework.model.outcome import Succeeded
from taskframework.model.task_fields import StepOutcome
from taskframework.model.transitions import Fence
from taskframework.tasks.context import AttemptControl
from taskframework.tasks.registry import TaskRegistry
from taskframework.testing.factories import new_task
from taskframework.worker.attempt import RunningAttempt
from tests.support.kitchen_sink import CountWords

SECRET = {"password": "hunter2-planted"}
FENCE = Fence("01K", 1, "claim")
TASK = new_task(parameters=SECRET, progress=SECRET, result=SECRET, steps=(StepOutcome("pay", SECRET),))


@pytest.mark.parametrize(
    "carrier",
    [
        TASK,
        TaskStartedEvent(TASK),
        RunningAttempt(TASK, FENCE, 0.0),
        AttemptFinished(TASK, FENCE, "worker", Succeeded(SECRET)),
        Complete(FENCE, "worker", SECRET),
        ReportProgress(FENCE, SECRET),
        RecordStep(FENCE, "pay", SECRET),
        SubmitRequest(task_type="pay", parameters=SECRET),
        TaskContext(
            "01K", "pay", "ada", SECRET, 1, 5, 1, "key", "order", None, logging.root, cast(AttemptControl, None)
        ),
    ],
    ids=lambda carrier: type(carrier).__name__,
)
def test_the_text_of_what_carries_a_secret_does_not_show_it(carrier: Any) -> None:
    assert "hunter2" not in f"{carrier} {carrier!r}"


def test_refused_parameters_are_not_in_the_causes_of_their_refusal() -> None:
    registry = TaskRegistry()
    with pytest.raises(InvalidParametersError) as refusal:
        registry.register(CountWords).validate_parameters({"text": SECRET})
    assert refusal.value.__cause__ is None
    assert refusal.value.__suppress_context__
