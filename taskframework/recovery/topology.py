"""The topology repair: declares exchanges and queues at start, after an outage, and when one was deleted."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from taskframework.brokers.base import Broker
from taskframework.errors import BrokerError, TopologyMismatchError

logger = logging.getLogger(__name__)


class TopologyRepair:
    """Knows whether the exchanges and queues of this process are declared."""

    def __init__(self, broker: Broker, task_types: Sequence[str]) -> None:
        self._broker = broker
        self._task_types = task_types
        self.is_declared = False
        self.problem: str | None = "not declared yet"

    async def repair(self) -> None:
        """Declare the topology if a part may be missing.

        Raises:
            TopologyMismatchError: if a part exists with other arguments; a person has to decide.
        """
        if self.is_declared:
            return
        try:
            await self._broker.declare(self._task_types)
        except TopologyMismatchError as error:
            self.problem = error.message
            raise
        except BrokerError as error:
            self.problem = error.message
            logger.debug("topology: %s", error.message)
        else:
            self.is_declared, self.problem = True, None

    def request_check(self) -> None:
        """Declare again at the next repair: a publication was refused, so a queue or exchange may have been deleted."""
        self.is_declared = False
