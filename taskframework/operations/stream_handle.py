"""A handle on an ordered stream: its state, and its results in order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from taskframework.model.stream_results import StreamResult
from taskframework.model.streams import StreamKey
from taskframework.operations.streams import StreamOperations, StreamStatus
from taskframework.tasks.values import check_first


@dataclass(frozen=True, slots=True)
class StreamHandle:
    """One stream of a user."""

    stream: StreamKey
    operations: StreamOperations

    async def status(self) -> StreamStatus:
        """Return the state of the stream.

        Raises:
            TaskNotFoundError: if no task was submitted with its key, or the stream ended long ago.
        """
        return await self.operations.status(self.stream)

    async def results(self, *, first: int = 0) -> AsyncIterator[StreamResult]:
        """Yield the result of each position in order, as soon as this result and all results before it exist or are
        skipped. This never ends: leave the loop when you have the results that you need.

        Args:
            first: the position to begin with.

        Raises:
            InvalidRequestError: if `first` is no position.
            TaskNotFoundError: if no task was submitted with its key, or the stream was removed meanwhile.
        """
        check_first(first)
        async for part in self.operations.follow_results(self.stream, first=first):
            for result in part:
                yield result

    async def go_on(self, *, position: int | None = None) -> StreamStatus:
        """Let the stream continue without the task that halted it.

        Args:
            position: only if the task at this position halted it. Without it, a second call may pass over the next task
                that failed.

        Raises:
            TransitionRefusedError: if the stream is not halted, or not at this position.
        """
        return await self.operations.go_on(self.stream, position=position)
