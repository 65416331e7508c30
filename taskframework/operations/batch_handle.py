"""A handle on a batch: how far it is, its results, and what one may do about it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta

from taskframework.errors import ResultTimeoutError
from taskframework.model.batch_status import BatchResult, BatchStatus
from taskframework.model.scope import EVERYONE
from taskframework.operations.batches import BatchOperations

#: `by` of what is done through a handle, as the history names it.
_BY = "program"
_FIRST_LOOK, _SLOWEST_LOOK = 0.02, 0.5


@dataclass(frozen=True, slots=True)
class BatchHandle:
    """One submitted batch."""

    batch_id: str
    is_new: bool
    operations: BatchOperations

    async def status(self) -> BatchStatus:
        """How far it is, counted now.

        Raises:
            TaskNotFoundError: if it was removed.
        """
        return await self.operations.status(self.batch_id, EVERYONE)

    async def results(self, *, first: int = 0) -> AsyncIterator[BatchResult]:
        """The result of each item in their order, as soon as it and all before it are there, until the last one.

        Args:
            first: the item to begin with.

        Raises:
            TaskNotFoundError: if it was removed.
        """
        async for part in self.operations.follow_results(self.batch_id, EVERYONE, first=first):
            for result in part:
                yield result

    async def finished(self, timeout: timedelta | float | None = None) -> BatchStatus:
        """Wait until the batch is final.

        Args:
            timeout: longest time to wait, in seconds or as a timedelta; None waits for ever.

        Raises:
            ResultTimeoutError: if it is not final by then.
            TaskNotFoundError: if it was removed.
        """
        seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
        pause, batch = _FIRST_LOOK, await self.operations.get(self.batch_id, EVERYONE)
        try:
            async with asyncio.timeout(seconds):
                while not batch.status.is_final:
                    # Its tasks may run in any process, so the store is asked; less often the longer it takes.
                    await asyncio.sleep(pause)
                    pause = min(pause * 1.5, _SLOWEST_LOOK)
                    batch = await self.operations.get(self.batch_id, EVERYONE)
        except TimeoutError:
            raise ResultTimeoutError(self.batch_id, batch.status) from None
        return await self.status()

    async def cancel(self, reason: str | None = None) -> BatchStatus:
        """Cancel it, and in the background what is live of its tasks.

        Raises:
            TransitionRefusedError: if it is final.
        """
        return await self.operations.cancel(self.batch_id, EVERYONE, by=_BY, reason=reason)

    async def retry_failed(self) -> BatchStatus:
        """Replay what failed or was cancelled, in the background.

        Raises:
            BatchNotRetriedError: if it has COMPLETED, or its upload was never complete.
        """
        return await self.operations.retry_failed(self.batch_id, EVERYONE, by=_BY)
