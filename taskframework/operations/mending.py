"""Repairs a kept message: it becomes a task, once."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from pydantic_core import from_json

from taskframework.errors import (
    IdempotencyConflictError,
    InvalidRequestError,
    SubmissionError,
    TaskNotFoundError,
    TransitionRefusedError,
)
from taskframework.model.message_repairs import MESSAGE_REPAIR, MessageRepair, repair_key
from taskframework.model.query import DeadMessage
from taskframework.model.records import Record
from taskframework.model.scope import EVERYONE
from taskframework.model.status import DEAD
from taskframework.model.task import Task
from taskframework.model.values import Json, fingerprint
from taskframework.stores.base import TaskStore
from taskframework.stores.reading import read_record
from taskframework.submission.requests import SubmitRequest
from taskframework.submission.service import Submission, TaskSubmissionService
from taskframework.submission.types import TaskTypes

_MENDED_KEPT = timedelta(days=365)


class AlreadyRepairedError(IdempotencyConflictError):
    """The message became another task before."""

    hint = "See that task. If it failed, replay it with other parameters."

    def __init__(self, message_id: str, task_id: str) -> None:
        super().__init__(repair_key(message_id), task_id)
        self.message = (
            f"Dead letter {message_id} was repaired before, and became task {task_id} with different contents."
        )


class NothingToRepairError(TransitionRefusedError):
    """The dead letter is a task, and no message."""

    def __init__(self, task: Task) -> None:
        message = f"Dead letter {task.task_id} is a task; only a message without a task can be repaired."
        hint = (
            f"To give it other parameters and replay it: `taskframework dlq edit {task.task_id} JSON`, "
            "or over HTTP POST /api/v1/admin/dead-letters/replay with `ids` and `parameters`."
        )
        super().__init__(task.task_id, "repaired", task.status, message=message, hint=hint)


def read_corrected(text: str, task_type: str | None) -> tuple[str, Json]:
    """Return the task type and the parameters in the corrected text of a message.

    Args:
        text: `{"task_type": …, "parameters": …}`; or only the parameters, if the type is given.
        task_type: the type of the task, if the text does not contain it.

    Raises:
        InvalidRequestError: if the text does not describe a task.
    """
    try:
        content = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidRequestError("body_text", f"is not JSON ({error})", "Correct the JSON.") from error
    if task_type is not None:
        return task_type, content
    if not isinstance(content, dict) or not isinstance(content.get("task_type"), str):
        hint = 'Write {"task_type": "...", "parameters": ...}, or give task_type separately.'
        raise InvalidRequestError("body_text", "names no task_type", hint)
    return content["task_type"], content.get("parameters")


class MessageMending:
    """Makes tasks from kept messages. The task has the message's id as its correlation id."""

    def __init__(self, store: TaskStore, types: TaskTypes, submission: TaskSubmissionService) -> None:
        self._store = store
        self._types = types
        self._submission = submission

    async def mend(
        self, message_id: str, task_type: str, parameters: Json, *, user_id: str, by: str, dry_run: bool = False
    ) -> Submission | None:
        """Submit the task for a message, and delete the message. A second call returns the same task.

        Args:
            message_id: the dead letter.
            task_type: the type of the task.
            parameters: the parameters of the task.
            user_id: the owner of the task.
            by: the operator.
            dry_run: only check everything.

        Returns:
            The task; None in a dry run.

        Raises:
            TaskNotFoundError: if no such message is kept, and none was repaired.
            NothingToRepairError: if it is a task.
            SubmissionError: if the type or the parameters are wrong, or an earlier repair used others.
        """
        record = await read_record(self._store, MESSAGE_REPAIR.id_of(message_id))
        message = await self._store.get_dead_message(message_id)
        if message is None and record is None:
            task = await self._store.get(message_id, EVERYONE)
            if task is not None and task.status in DEAD:
                raise NothingToRepairError(task)
            raise TaskNotFoundError(message_id, what="dead letter")
        kind = await self._types.require(task_type)
        request_hash = fingerprint(kind.task_type, kind.accept(parameters)[1])
        repaired = await self._find_repaired(message_id, record, request_hash)
        if message is None:
            if repaired is None:
                raise TaskNotFoundError(message_id, what="dead letter")
            return repaired
        if dry_run:
            return None
        if repaired is not None:  # the message could not be deleted then, and the key of the task may be over
            await self._store.delete_dead_message(message_id)
            return repaired
        record = record or await self._write_record(message, user_id, by)
        return await self._submit_task(record, message, task_type, parameters, request_hash)

    async def _find_repaired(self, message_id: str, record: Record | None, request_hash: str) -> Submission | None:
        """Return the task that a message became before, if it is still stored."""
        if record is None:
            return None
        mended = MESSAGE_REPAIR.content(record)
        task = None if mended.task_id is None else await self._store.get(mended.task_id, EVERYONE)
        if task is None:
            return None
        if mended.request_hash not in (None, request_hash):
            raise AlreadyRepairedError(message_id, task.task_id)
        return Submission(task, is_new=False)

    async def _write_record(self, message: DeadMessage, user_id: str, by: str) -> Record:
        """Write the record of the repair. If two people repair a message at once, both get the record of the first."""
        now = self._store.now()
        new = MESSAGE_REPAIR.new(message.id, content=MessageRepair(user_id, by, now), expires_at=now + _MENDED_KEPT)
        [written] = await self._store.write_records([new])
        record = written or await read_record(self._store, new.id)
        return new if record is None else record

    async def _submit_task(
        self, record: Record, message: DeadMessage, task_type: str, parameters: Json, request_hash: str
    ) -> Submission:
        mended = MESSAGE_REPAIR.content(record)
        request = SubmitRequest(
            task_type=task_type,
            parameters=parameters,
            user_id=mended.user_id,
            idempotency_key=repair_key(message.id),
            correlation_id=message.id,
        )
        try:
            submission = await self._submission.submit(request)
        except IdempotencyConflictError as conflict:
            raise AlreadyRepairedError(message.id, conflict.task_id) from conflict
        except SubmissionError:
            await self._store.delete_records([record])
            raise
        repaired = replace(mended, task_id=submission.task.task_id, request_hash=request_hash)
        await self._store.write_records([MESSAGE_REPAIR.changed(record, repaired, expires_at=record.expires_at)])
        await self._store.delete_dead_message(message.id)
        return submission
