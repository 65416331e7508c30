"""A handle on a batch: its progress, its results, and the operations on it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Generic

from taskframework.model.batch_status import BatchResult, BatchStatus
from taskframework.model.scope import EVERYONE
from taskframework.model.status import SUCCEEDED
from taskframework.operations.batches import BatchOperations
from taskframework.operations.handle import PROGRAM, R, until_final
from taskframework.tasks.kinds import TaskKind, read_result
from taskframework.tasks.values import check_first


@dataclass(frozen=True, slots=True)
class BatchHandle(Generic[R]):
    """One submitted batch, whose items give an R each.

    Attributes:
        is_new: whether this submission completed the batch, and not an earlier one with the same idempotency key.
        kind: the class by which the batch was submitted, which reads the results; None if only its name is known.
    """

    batch_id: str
    is_new: bool
    operations: BatchOperations
    kind: type[TaskKind[Any, R]] | None = None

    async def status(self) -> BatchStatus:
        """Return the progress of the batch, counted now.

        Raises:
            TaskNotFoundError: if the batch was removed.
        """
        return await self.operations.status(self.batch_id, EVERYONE)

    async def results(self, *, first: int = 0) -> AsyncGenerator[BatchResult[R | None], None]:
        """Yield the result of each item in order, as soon as this result and all results before it exist.

        Args:
            first: the item to begin with.

        Raises:
            InvalidRequestError: if `first` is no number of an item.
            TaskNotFoundError: if the batch was removed.
            ResultUnreadableError: if a result does not fit the class.
        """
        check_first(first)
        async for part in self.operations.follow_results(self.batch_id, EVERYONE, first=first):
            for result in part:
                yield self._read(result)

    async def finished(self, timeout: timedelta | float | None = None) -> BatchStatus:
        """Wait until the batch is final.

        Args:
            timeout: longest time to wait, in seconds or as a timedelta; None waits for ever.

        Raises:
            ResultTimeoutError: if the batch is not final by then.
            StoreUnavailableError: if the store does not answer and there is no time limit, or the limit is over.
            TaskNotFoundError: if the batch was removed.
        """
        await until_final(self.batch_id, lambda: self.operations.get(self.batch_id, EVERYONE), timeout)
        return await self.status()

    async def cancel(self, reason: str | None = None) -> BatchStatus:
        """Cancel the batch, and in the background its live tasks.

        Raises:
            TransitionRefusedError: if the batch is final.
        """
        return await self.operations.cancel(self.batch_id, EVERYONE, by=PROGRAM, reason=reason)

    async def retry_failed(self) -> BatchStatus:
        """Replay all failed and cancelled tasks of the batch, in the background.

        Raises:
            BatchNotRetriedError: if its policy is met, it was never uploaded completely, or its tasks are being
                cancelled.
        """
        return await self.operations.retry_failed(self.batch_id, EVERYONE, by=PROGRAM)

    def _read(self, found: BatchResult) -> BatchResult[R | None]:
        if self.kind is None or found.status not in SUCCEEDED:
            return found
        return replace(found, result=read_result(self.kind, found.result))
