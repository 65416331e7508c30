"""Retention: removes what is over for longer than it is kept."""

from __future__ import annotations

from datetime import timedelta

from taskframework.stores.base import TaskStore


class Retention:
    """Deletes finished tasks and dead letters after their time."""

    def __init__(
        self, store: TaskStore, *, finished: timedelta | None, dead_letters: timedelta | None, batch: int
    ) -> None:
        """Prepare to delete; None keeps that kind for ever."""
        self._store = store
        self._finished = finished
        self._dead_letters = dead_letters
        self._batch = batch

    async def purge(self) -> bool:
        """Delete one batch.

        Returns:
            Whether there may be more.
        """
        removed = await self._store.purge(finished=self._finished, dead_letters=self._dead_letters, limit=self._batch)
        return removed == self._batch
