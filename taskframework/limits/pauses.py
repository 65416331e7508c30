"""Which task types are paused. Every process looks once a second."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from taskframework.model.pauses import PAUSE, Pause
from taskframework.stores.base import Records
from taskframework.stores.reading import read_all_contents

logger = logging.getLogger(__name__)


class Pauses:
    """The task types that were paused at the last look. While the store is away they do not change."""

    def __init__(self, records: Records) -> None:
        """Know of no pause before the first look."""
        self._records = records
        self.paused: Mapping[str, Pause] = {}
        #: Called after a look that found a change.
        self.on_change: list[Callable[[], None]] = []

    async def refresh(self) -> frozenset[str]:
        """Read the pauses again.

        Returns:
            The types whose pause has ended since the last look.

        Raises:
            StoreUnavailableError: if the store does not answer.
        """
        paused = {pause.task_type: pause for pause in await read_all_contents(self._records, PAUSE)}
        new_pauses, ended = paused.keys() - self.paused.keys(), frozenset(self.paused.keys() - paused.keys())
        self.paused = paused
        for task_type in new_pauses:
            logger.info("task type %s is paused by %s", task_type, paused[task_type].by)
        for task_type in ended:
            logger.info("task type %s is resumed", task_type)
        if new_pauses or ended:
            for callback in self.on_change:
                callback()
        return ended

    def is_paused(self, task_type: str) -> bool:
        return task_type in self.paused

    def ceiling(self, task_type: str) -> int | None:
        """Return, as `Ceiling`, 0 while the type is paused; otherwise None, which means no limit."""
        return 0 if task_type in self.paused else None
