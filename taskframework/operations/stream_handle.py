"""A handle on an ordered stream: how it is, and its results in order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from taskframework.model.stream_results import StreamResult
from taskframework.model.streams import StreamKey
from taskframework.operations.streams import StreamOperations, StreamStatus


@dataclass(frozen=True, slots=True)
class StreamHandle:
    """One stream of a user."""

    stream: StreamKey
    operations: StreamOperations

    async def status(self) -> StreamStatus:
        """How it is.

        Raises:
            TaskNotFoundError: if nothing was submitted with its key, or it is over for long.
        """
        return await self.operations.status(self.stream)

    async def results(self, *, first: int = 0) -> AsyncIterator[StreamResult]:
        """The result of each position in order, as soon as it and all before it are there, or passed over. It goes on
        for ever: leave the loop when you have what you want.

        Args:
            first: the position to begin with.

        Raises:
            TaskNotFoundError: if nothing was submitted with its key, or it is gone meanwhile.
        """
        async for part in self.operations.follow_results(self.stream, first=first):
            for result in part:
                yield result

    async def go_on(self) -> StreamStatus:
        """Let it go on without the task that halted it.

        Raises:
            TransitionRefusedError: if it is not halted.
        """
        return await self.operations.go_on(self.stream)
