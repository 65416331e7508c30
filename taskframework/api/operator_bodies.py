"""The bodies that operators send: the chosen dead letters and tasks, and the action on them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from taskframework.api.body_fields import Body, Reopen, UserInBody
from taskframework.model.limits import MAX_LIMIT_LENGTH
from taskframework.model.query import MAX_LIMIT
from taskframework.model.status import TaskStatus
from taskframework.model.values import MAX_NAME_LENGTH, MAX_REASON
from taskframework.submission.options import AnyMoment

_DryRun = Annotated[bool, Field(strict=True, description="Only show what would happen")]
_Reason = Annotated[
    str | None, Field(max_length=MAX_REASON, description="The reason; kept in the history and the audit log")
]
_Rate = Annotated[
    float | None, Field(gt=0, le=1000, description="At most this many per second; null: as fast as possible")
]
_Exact = Annotated[str | None, Field(min_length=1, max_length=MAX_NAME_LENGTH)]
_FinishedAfter = Annotated[AnyMoment | None, Field(description="Ended at this time or later; a message: received then")]
_FinishedBefore = Annotated[AnyMoment | None, Field(description="Ended before this time; a message: received before")]
_Search = Annotated[
    str | None, Field(min_length=1, max_length=MAX_NAME_LENGTH, description="Text that the error contains")
]


class _Filter(Body):
    @model_validator(mode="after")
    def _require_condition(self) -> Self:
        if not any(value is not None for value in dict(self).values()):
            raise ValueError("needs a condition: an empty filter would select everything")
        return self


class ChooseLetters(_Filter):
    """Selects dead letters. All conditions must hold, and there must be at least one condition."""

    kind: Literal["task", "message"] | None = None
    task_type: _Exact = None
    user_id: _Exact = None
    fingerprint: _Exact = None
    text: _Search = None
    finished_after: _FinishedAfter = None
    finished_before: _FinishedBefore = None


class ChooseTasks(_Filter):
    """Selects tasks. All conditions must hold, and there must be at least one condition."""

    status: TaskStatus | None = None
    task_type: _Exact = None
    user_id: _Exact = None
    parent_task_id: _Exact = None
    stream: _Exact = None
    waits_for_limit: Annotated[str | None, Field(min_length=1, max_length=MAX_LIMIT_LENGTH)] = None
    fingerprint: _Exact = None
    text: _Search = None
    created_after: Annotated[AnyMoment | None, Field(description="Submitted at this time or later")] = None
    created_before: Annotated[AnyMoment | None, Field(description="Submitted earlier")] = None
    finished_after: _FinishedAfter = None
    finished_before: _FinishedBefore = None


class ChosenLetters(Body):
    """Dead letters by their ids, or all that a filter finds."""

    ids: list[str] | None = Field(
        default=None, min_length=1, max_length=MAX_LIMIT, description="Ids of the dead-letter list"
    )
    filter: ChooseLetters | None = None
    dry_run: _DryRun = False
    rate: _Rate = None

    @model_validator(mode="after")
    def _require_ids_or_filter(self) -> Self:
        if (self.ids is None) == (self.filter is None):
            raise ValueError("needs either ids or filter, not both")
        if self.ids is not None and self.rate is not None:
            raise ValueError("rate works only with filter")
        return self


class ReplayDeadLetters(ChosenLetters):
    """Dead letters to queue again, by their ids or all that a filter finds."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"ids": ["0199a2c4-6f0e-7c53-b6ee-3d3a1f0b8a11"], "dry_run": True}]}
    )

    reopen: Reopen = False
    reason: _Reason = None
    parameters: Any = Field(
        default=None, description="With ids: new parameters for the tasks; if omitted, they keep their own"
    )

    @property
    def is_edited(self) -> bool:
        """Whether other parameters are given. They may be null, because a task type may accept null."""
        return "parameters" in self.model_fields_set

    @model_validator(mode="after")
    def _require_ids_with_parameters(self) -> Self:
        if self.is_edited and self.ids is None:
            raise ValueError("parameters work only with ids")
        return self


class DiscardDeadLetters(ChosenLetters):
    """Dead letters to discard, by their ids or all that a filter finds."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"filter": {"fingerprint": "9f2c1a0b7d3e4f56"}, "reason": "the orders were cancelled"}]
        }
    )

    reason: str | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_REASON,
        description="The reason; kept in the history and the audit log. Required, except for a dry run",
    )

    @model_validator(mode="after")
    def _require_reason(self) -> Self:
        if self.reason is None and not self.dry_run:
            raise ValueError("needs a reason")
        return self


class RepairMessage(Body):
    """The task that an unreadable message was meant to be: its type and parameters, or the corrected text."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"task_type": "count-words", "parameters": {"text": "one two"}}]}
    )

    task_type: str | None = Field(default=None, max_length=MAX_NAME_LENGTH, description="A registered task type")
    parameters: Any = Field(default=None, description="Parameters, as the task type accepts them")
    body_text: str | None = Field(
        default=None,
        description="Instead of parameters: JSON text of the parameters or, if task_type is not given, of "
        "`{task_type, parameters}`",
    )
    user_id: UserInBody = None
    dry_run: _DryRun = False
    reason: _Reason = None

    @model_validator(mode="after")
    def _require_parameters_or_text(self) -> Self:
        if self.body_text is None and self.task_type is None:
            raise ValueError("needs task_type and parameters, or body_text")
        if self.body_text is not None and "parameters" in self.model_fields_set:
            raise ValueError("needs either parameters or body_text, not both")
        return self


class RetryTasks(Body):
    """Failed tasks to queue again: those that are FAILED or DEAD_LETTER, if no status is named."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"filter": {"task_type": "count-words"}, "rate": 10}]})

    filter: ChooseTasks
    rate: _Rate = None
    dry_run: _DryRun = False
    reopen: Reopen = False
    reason: _Reason = None


class CancelTasks(Body):
    """Live tasks to cancel."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"filter": {"task_type": "count-words"}, "reason": "a bad release"}]}
    )

    filter: ChooseTasks
    rate: _Rate = None
    dry_run: _DryRun = False
    reason: _Reason = None
