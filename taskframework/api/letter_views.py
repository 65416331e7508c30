"""What callers get of dead letters and of actions on many tasks, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from taskframework.api.problems import problem_of
from taskframework.api.views import HistoryEntryView, NextCursor, ProblemView, TaskErrorView
from taskframework.errors import TaskframeworkError, TaskNotFoundError
from taskframework.model.status import TaskStatus
from taskframework.operations.dead_letters import LetterOutcome

_ID = "0199a2c4-6f0e-7c53-b6ee-3d3a1f0b8a11"


class KeptErrorView(TaskErrorView):
    """The error of one attempt, and where in the program it was raised."""

    attempt: int
    at: datetime | None
    traceback: str | None


class DiscardedView(BaseModel):
    """Who discarded a dead letter, when and why."""

    by: str
    at: datetime
    reason: str | None


class DeadLetterView(BaseModel):
    """A task that ended FAILED or DEAD_LETTER, or a message that no worker could read."""

    model_config = ConfigDict(extra="allow")

    id: str = Field(examples=[_ID])
    kind: Literal["task", "message"]
    task_id: str | None
    task_type: str | None
    user_id: str | None
    status: TaskStatus | None
    reason: str
    error: TaskErrorView | None
    fingerprint: str = Field(description="Its group: equal for dead letters with the same cause")
    attempt: int | None
    generation: int | None = Field(description="How often the task was queued again")
    at: datetime
    parameters: Any = Field(default=None, description="Single tasks only")
    errors: list[KeptErrorView] | None = Field(default=None, description="Single tasks only: its last five")
    history: list[HistoryEntryView] | None = Field(default=None, description="Single tasks only")
    discarded: DiscardedView | None = Field(
        default=None, description="Single tasks only: who discarded it, if it was discarded"
    )
    queue: str | None = Field(default=None, description="Messages only: where it came from")
    body_size: int | None = Field(default=None, description="Messages only: its size in bytes")
    body_base64: str | None = Field(
        default=None, description="Messages only: its bytes; in a list at most the first 4096"
    )
    body_text: str | None = Field(default=None, description="Single messages only: its bytes as text")
    body_hex: str | None = Field(
        default=None, description="Single messages only: the first 4096 bytes as hexadecimal digits"
    )
    headers: dict[str, str] | None = Field(default=None, description="Single messages only")


class DeadLetterPage(BaseModel):
    """Dead letters from the newest to the oldest."""

    items: list[DeadLetterView]
    next_cursor: NextCursor


class ReplayOutcomeView(BaseModel):
    """The outcome for one id: 202 if it was queued again (in a dry run 200: it would be queued), otherwise `error`."""

    id: str
    status: int = Field(examples=[202])
    error: ProblemView | None
    warning: ProblemView | None = Field(
        default=None,
        description="In a dry run: why its next attempt would fail at once, if its parameters are not valid",
    )


class _Outcomes(BaseModel):
    items: list[ReplayOutcomeView] = Field(description="One outcome for each id; repeated ids have one")
    refused: list[ReplayOutcomeView] = Field(description="Those that were refused")
    invalid: list[ReplayOutcomeView] = Field(description="Those whose parameters are no longer valid")
    total: int | None = Field(
        default=None, description="With filter: how many match; a dry run checks at most the newest 500"
    )


class ReplayResult(_Outcomes):
    """The outcomes of replayed dead letters."""

    replayed: int


class DiscardResult(_Outcomes):
    """The outcomes of discarded dead letters."""

    discarded: int


class RepairPlanView(BaseModel):
    """The task that a repair would submit."""

    id: str = Field(description="The message")
    task_type: str
    parameters: Any
    dry_run: Literal[True]


class GroupErrorView(BaseModel):
    """The error of one dead letter of a group."""

    type: str | None
    message: str | None


class LetterGroupView(BaseModel):
    """Dead letters of one cause."""

    fingerprint: str = Field(examples=["9f2c1a0b7d3e4f56"])
    count: int
    first_at: datetime = Field(description="When the oldest one ended; one that was replayed and failed again is new")
    last_at: datetime = Field(description="When the newest one ended")
    task_types: list[str]
    error: GroupErrorView
    trend: list[int] = Field(description="How many ended in each of the last 24 hours, the current hour last")


class LetterGroupPage(BaseModel):
    """Groups of dead letters, the largest first. Of more than 100,000 dead letters the newest are counted."""

    items: list[LetterGroupView]
    next_cursor: NextCursor


class RefusedView(BaseModel):
    """A task or message with which the action was not done, and why."""

    id: str
    problem: str


class ReplayView(BaseModel):
    """An action on many tasks, and its progress."""

    replay_id: str = Field(examples=[_ID])
    action: Literal["replay", "discard", "retry", "cancel"]
    filter: dict[str, str]
    status: Literal["RUNNING", "DONE", "STOPPED"]
    total: int = Field(description="How many matched the filter at the start")
    is_total_bounded: bool = Field(description="There were more than were counted")
    done: int
    refused: int = Field(description="Not done because a rule forbids it, for example because the parent has ended")
    failed: int = Field(description="Not done because of an error")
    skipped: int = Field(description="When it is DONE: had changed, as by a replay, before the action reached them")
    remaining: int = Field(description="Still to be done; when it is STOPPED: not done because of that")
    in_hand: int = Field(description="Being done now")
    refusals: list[RefusedView] = Field(description="The last twenty that were not done, and why")
    rate: float | None = Field(description="At most this many per second")
    by: str
    at: datetime
    reason: str | None
    finished_at: datetime | None


class ReplayPage(BaseModel):
    """Actions on many tasks."""

    items: list[ReplayView]
    next_cursor: NextCursor


class CountView(BaseModel):
    """With how many tasks an action would be done."""

    total: int
    is_total_bounded: bool = Field(description="There are more than were counted")


def outcomes_view(
    ids: Sequence[str], outcomes: Sequence[LetterOutcome], success_status: int, root: str
) -> dict[str, Any]:
    """The outcome for each id, as plain JSON; `success_status` is the status of the ids that were handled."""
    known = {outcome.id: outcome for outcome in outcomes}
    items = [_outcome_view(letter_id, known.get(letter_id), success_status, root) for letter_id in dict.fromkeys(ids)]
    return {
        "items": items,
        "refused": [item for item in items if item["error"] is not None],
        "invalid": [item for item in items if item["warning"] is not None],
    }


def _outcome_view(letter_id: str, outcome: LetterOutcome | None, success_status: int, root: str) -> dict[str, Any]:
    problem = TaskNotFoundError(letter_id, what="dead letter") if outcome is None else outcome.problem
    view: dict[str, Any] = {"id": letter_id, "status": success_status, "error": None, "warning": None}
    if problem is not None:
        error = _problem_view(problem, root)
        return view | {"status": error["status"], "error": error}
    if outcome is not None and outcome.warning is not None:
        view["warning"] = _problem_view(outcome.warning, root)
    return view


def _problem_view(problem: TaskframeworkError, root: str) -> dict[str, Any]:
    return problem_of(problem).document(root)
