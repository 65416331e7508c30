"""The plan of an attempt: the sub-tasks that it has submitted and that are stored when it is settled."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, Protocol

import orjson

from taskframework.errors import InvalidRequestError
from taskframework.model.plans import ITEM_BYTES, MAX_INLINE_PLAN_BYTES, MAX_PLAN_PART_BYTES, part_of
from taskframework.model.records import Record
from taskframework.model.subtasks import (
    MAX_DEPTH,
    MAX_EMPTY_ROUNDS,
    MAX_SUBTASKS,
    Policy,
    depth_below,
    empty_rounds,
    next_round,
    subtask_id,
)
from taskframework.model.task import Task
from taskframework.model.task_fields import Subtasks
from taskframework.model.values import Json, fingerprint
from taskframework.model.wording import pluralize
from taskframework.tasks.subtasks import WantedSubtasks, adding_number_to_errors
from taskframework.tasks.values import copy_json


class SubtaskKind(Protocol):
    """The type and options of some sub-tasks."""

    @property
    def header(self) -> Mapping[str, Json]:
        """The fields of the group of these sub-tasks in the plan, except the items."""
        ...

    def accept(self, parameters: Any) -> tuple[Json, bytes]:
        """Return the parameters as they are stored, and as canonical JSON; raise an error if they do not fit."""
        ...


class AttemptPlan:
    """The plan of one attempt. Task code adds sub-tasks; a plan too large for the task's document goes into records."""

    def __init__(self, task: Task, now: Callable[[], datetime], write: Callable[[Record], Awaitable[object]]) -> None:
        """Begin the next round of a running task.

        Args:
            task: the task as it was claimed.
            now: returns the store's time.
            write: stores a part of a plan that becomes too large.
        """
        self._task = task
        self._now = now
        self._write = write
        self._round = next_round(task)
        self._policy: str | None = None
        self._planned = 0
        #: The slot of the first sub-task in `_groups`; the sub-tasks before it are written to records.
        self._first_slot = 0
        self._groups: list[dict[str, Any]] = []
        self._bytes = 0
        self._written_parts = 0

    async def add(self, kind: SubtaskKind, wanted: WantedSubtasks) -> list[str]:
        """Plan some sub-tasks, all or none.

        Returns:
            The ids of the sub-tasks.

        Raises:
            SubmissionError: if parameters do not fit, or the plan may not have more sub-tasks.
        """
        self._check_limits(wanted)
        policy = common_policy(self._policy, wanted.policy)
        items = list(_accepted(kind, wanted))
        self._policy = policy
        first = self._planned
        for parameters, canonical in items:
            await self._append(kind.header, parameters, canonical)
        task, slots = self._task, range(first, self._planned)
        return [subtask_id(task.task_id, task.generation, self._round, slot) for slot in slots]

    async def end(self, policy: str, *, resumes: bool) -> Subtasks:
        """Return the round as the settlement begins it.

        Args:
            policy: the policy of the task type; used if no call named a policy.
            resumes: whether the task type has a method with which it continues when the round is over.

        Raises:
            InvalidRequestError: if the policy needs more sub-tasks than were planned, or if too many rounds without
                sub-tasks followed each other.
        """
        policy = self._policy or policy
        require_enough(policy, self._planned)
        empty = empty_rounds(self._task, self._planned)
        if empty > MAX_EMPTY_ROUNDS:
            raise InvalidRequestError(
                "sub-tasks",
                f"there were {MAX_EMPTY_ROUNDS} empty rounds in a row, and this would be another one",
                "In on_subtasks_finished, submit sub-tasks or return the result.",
            )
        if self._written_parts or self._bytes > MAX_INLINE_PLAN_BYTES:
            await self._write_part()
        plan = None if self._written_parts else self._groups
        return Subtasks(
            self._planned, plan, policy=policy, resumes=resumes, plan_records=self._written_parts, empty_rounds=empty
        )

    def _check_limits(self, wanted: WantedSubtasks) -> None:
        if self._planned + len(wanted.parameters) > MAX_SUBTASKS:
            raise InvalidRequestError(
                "sub-tasks",
                f"a round has {MAX_SUBTASKS:,} of them at most",
                "Submit several rounds, or sub-tasks that have sub-tasks themselves.",
            )
        if depth_below(self._task) > MAX_DEPTH:
            raise InvalidRequestError(
                "sub-tasks",
                f"there are {MAX_DEPTH} tasks above this one, the limit",
                "Do the rest in this task, or in further rounds of a task above it.",
            )

    async def _append(self, header: Mapping[str, Json], parameters: Json, canonical: bytes) -> None:
        item = [copy_json(parameters), fingerprint(str(header["task_type"]), canonical)]
        size = len(canonical) + ITEM_BYTES
        if self._groups and self._bytes + size > MAX_PLAN_PART_BYTES:
            await self._write_part()
        if not self._groups or {**header, "items": None} != {**self._groups[-1], "items": None}:
            self._groups.append({**header, "items": []})
            self._bytes += len(orjson.dumps(self._groups[-1]))
        self._groups[-1]["items"].append(item)
        self._bytes += size
        self._planned += 1

    async def _write_part(self) -> None:
        await self._write(part_of(self._task, self._written_parts, self._first_slot, self._groups, self._now()))
        self._written_parts += 1
        self._first_slot, self._groups, self._bytes = self._planned, [], 0


def common_policy(earlier: str | None, given: str | None) -> str | None:
    """Return the policy of a round from that of earlier calls and that of another call; None if no call gave one.

    Raises:
        InvalidRequestError: if the other call's is no policy, or differs.
    """
    if given is None:
        return earlier
    if not Policy.is_one(given):
        raise InvalidRequestError("policy", f"{given!r:.50} is none", f"Use {Policy.ACCEPTED}.")
    if earlier not in (None, given):
        raise InvalidRequestError(
            "policy",
            f"an earlier call gave {earlier} for this round, and this one gives {given}",
            "Give the same policy in each call, or give it once.",
        )
    return given


def require_enough(policy: str, planned: int) -> None:
    """Refuse a policy that so many sub-tasks can never meet.

    Raises:
        InvalidRequestError: if it needs more of them.
    """
    if Policy(policy).needed(planned) > planned:
        raise InvalidRequestError(
            "policy",
            f"{policy} cannot be met with {pluralize(planned, 'sub-task')}",
            "Submit more of them, or use another policy.",
        )


def _accepted(kind: SubtaskKind, wanted: WantedSubtasks) -> Iterator[tuple[Json, bytes]]:
    """Yield the parameters of each sub-task as they are stored, and as canonical JSON."""
    for number, parameters in wanted.numbered():
        with adding_number_to_errors(number):
            yield kind.accept(parameters)
