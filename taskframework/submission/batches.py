"""Submits batches. A small batch whose items are all known is one write, with the items as its plan. Any other batch is
stored part by part while its items come, and sealed at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from taskframework.bus import EventBus
from taskframework.errors import InvalidRequestError, StoreError, SubmissionError
from taskframework.model.batches import BY_UPLOAD, parts_of, subtask_group
from taskframework.model.events import BatchSubmittedEvent
from taskframework.model.interventions import Cancel
from taskframework.model.plans import ITEM_BYTES, MAX_PLAN_PART_BYTES
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.model.subtasks import ALLOW_FAILURES, MAX_SUBTASKS
from taskframework.model.task import FAMILY_VERSION, Task
from taskframework.model.task_fields import Batch, Subtasks
from taskframework.model.values import fingerprint
from taskframework.model.waiting import WAIT_CHECK_INTERVAL
from taskframework.model.wording import pluralize
from taskframework.moves import TaskMoves
from taskframework.stores.replies import Inserted
from taskframework.submission.acceptance import accept_batch_options
from taskframework.submission.new_tasks import NewTasks
from taskframework.submission.parts import STORE_BATCH_SIZE
from taskframework.submission.refusals import BatchItemError, BatchTooLargeError
from taskframework.submission.requests import BatchRequest
from taskframework.submission.types import Submittable
from taskframework.submission.uploads import Item, SubtaskContent, Upload, check_policy, contents_of

#: The policy of a batch that names no policy: most batches can accept a few failed items.
_DEFAULT_POLICY = ALLOW_FAILURES
_CANCEL_REASON = "the upload was interrupted, and it cannot be continued without an idempotency key"


@dataclass(frozen=True, slots=True)
class BatchSubmission:
    """An accepted batch, and whether this request completed it or an earlier one with the same key did."""

    batch: Task
    is_new: bool


class BatchSubmissionService:
    """Accepts and stores batches."""

    def __init__(self, bus: EventBus, new_tasks: NewTasks, moves: TaskMoves, upload_timeout: timedelta) -> None:
        """Prepare to accept batches.

        Args:
            bus: gets the events of batches and of their tasks after they are stored.
            new_tasks: finds task types, and makes the fields of new batches.
            moves: makes the moves of batches.
            upload_timeout: how long an upload may pause.
        """
        self._bus = bus
        self._new_tasks = new_tasks
        self._moves = moves
        self._upload_timeout = upload_timeout

    async def submit(self, request: BatchRequest, items: Sequence[Any]) -> BatchSubmission:
        """Store a batch of which all items are given. If one item is wrong, nothing is stored.

        Raises:
            SubmissionError: if the request or an item is wrong, or the key stands for another batch.
            StoreUnavailableError: if the batch could not be stored; submit again, with an idempotency key to be safe.
        """
        kind = await self._new_tasks.find(request.task_type)
        batch = self._new_batch(request, kind)
        accepted = list(_accept_items(kind, items, 0))
        planned = self._with_plan(batch, accepted, _contents_of_whole(batch, accepted))
        inserted = await self._insert(batch if planned is None else planned)
        if planned is not None and inserted.is_new:
            return BatchSubmission(inserted.task, is_new=True)
        async with self._uploading(inserted) as upload:
            for index in range(0, len(accepted), STORE_BATCH_SIZE):
                await upload.add(accepted[index : index + STORE_BATCH_SIZE])
            is_new = await upload.end()
        return BatchSubmission(upload.batch, is_new)

    async def upload(self, request: BatchRequest, parts: AsyncIterable[Sequence[Any]]) -> BatchSubmission:
        """Store a batch while its items come; its first tasks may run meanwhile.

        If the upload fails, a batch with an idempotency key stays open: the same upload, from its first item on,
        continues it. A batch without a key is cancelled.

        Args:
            request: the type, owner and options of the batch.
            parts: lists of items, of any length.

        Raises:
            SubmissionError: as `submit`; `BatchItemError` names the item.
            StoreUnavailableError: as `submit`.
            Exception: the error that `parts` raised.
        """
        kind = await self._new_tasks.find(request.task_type)
        batch = self._new_batch(request, kind)
        async with contextlib.AsyncExitStack() as stack:
            upload: Upload | None = None
            async for part in parts:
                for index in range(0, len(part), STORE_BATCH_SIZE):
                    before = upload.items if upload else 0
                    accepted = list(_accept_items(kind, part[index : index + STORE_BATCH_SIZE], before))
                    if upload is None:  # only now, so that a request whose first items are wrong leaves no batch
                        upload = await stack.enter_async_context(self._uploading(await self._insert(batch)))
                    await upload.add(accepted)
            if upload is None:
                raise _no_items_error()
            is_new = await upload.end()
        return BatchSubmission(upload.batch, is_new)

    async def _insert(self, batch: Task) -> Inserted:
        [inserted] = await self._new_tasks.inserts.insert([batch])
        if isinstance(inserted, Exception):
            raise inserted
        if inserted.is_new:
            await self._bus.publish(BatchSubmittedEvent(inserted.task))
        return inserted

    @contextlib.asynccontextmanager
    async def _uploading(self, inserted: Inserted) -> AsyncIterator[Upload]:
        upload = Upload(
            self._new_tasks.store,
            self._bus,
            self._moves,
            inserted.task,
            is_new=inserted.is_new,
            dispatch_after=self._new_tasks.dispatch_after,
            timeout=self._upload_timeout,
        )
        try:
            yield upload
        except (Exception, asyncio.CancelledError):
            if inserted.task.idempotency_key is None:
                with contextlib.suppress(StoreError):  # if this fails, the batch is cancelled after its `seal_by`
                    await self._moves.make(Cancel(inserted.task.task_id, EVERYONE, BY_UPLOAD, _CANCEL_REASON))
            raise

    def _new_batch(self, request: BatchRequest, kind: Submittable) -> Task:
        """Make an open batch without items."""
        options = accept_batch_options(request.options)
        policy, chunk_size = options.pop("policy", _DEFAULT_POLICY), options.pop("chunk_size", 1)
        if chunk_size > kind.max_chunk_size:
            raise InvalidRequestError(
                "chunk_size",
                f"the task type {kind.task_type!r} accepts at most {pluralize(kind.max_chunk_size, 'item')} per chunk",
                "Use smaller chunks, or raise max_chunk_size in its TaskOptions.",
            )
        fields = self._new_tasks.fields(kind, request.user_id, options)
        waiting = {
            "schema_version": FAMILY_VERSION,
            # Under the same key, another hash means another batch. Times and priority make no difference.
            "parameters_hash": fingerprint("batch", kind.task_type, policy, str(chunk_size)),
            "next_dispatch_at": None,
            "start_by": None,  # each task of the batch has its own
            "status": TaskStatus.WAITING,
            "batch": Batch(chunk_size, not_before=fields["not_before"]),
            "subtasks": Subtasks(None, None, policy=policy, resumes=kind.finishes_batches),
            "check_at": fields["created_at"] + WAIT_CHECK_INTERVAL,
            "seal_by": fields["created_at"] + self._upload_timeout,
        }
        return Task.new(fields, **waiting)

    def _with_plan(self, batch: Task, items: Sequence[Item], contents: Sequence[SubtaskContent]) -> Task | None:
        """Return the batch with its items as the plan, sealed from the beginning; None if the items are too large."""
        if sum(len(item.canonical) + ITEM_BYTES for item in items) > MAX_PLAN_PART_BYTES:
            return None
        planned = [[content.parameters, content.parameters_hash] for content in contents]
        plan = [{**subtask_group(batch), "items": planned}]
        own, subtasks = parts_of(batch)
        return batch.evolve(
            batch=replace(own, items=len(items)),
            subtasks=replace(subtasks, planned=len(contents), plan=plan),
            spawn_at=batch.created_at + self._new_tasks.dispatch_after,
            seal_by=None,
        )


def _contents_of_whole(batch: Task, items: Sequence[Item]) -> Sequence[SubtaskContent]:
    """The contents of the sub-tasks of a batch of which all items are known: if they are refused, nothing is stored."""
    if not items:
        raise _no_items_error()
    if len(items) > MAX_SUBTASKS:
        raise BatchTooLargeError(MAX_SUBTASKS)
    contents = contents_of(batch, items)
    check_policy(batch, len(contents))
    return contents


def _no_items_error() -> InvalidRequestError:
    return InvalidRequestError("items", "there are no items", "Send at least one item.")


def _accept_items(kind: Submittable, items: Sequence[Any], before: int) -> Iterator[Item]:
    """Yield the items as they are stored; `before` is how many items came before them."""
    for index, item in enumerate(items, before):
        try:
            yield Item(*kind.accept(item))
        except SubmissionError as error:
            raise BatchItemError(index, error) from None
