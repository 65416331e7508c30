"""The relay: hands every task with events that are not known to be published to the bridge."""

from __future__ import annotations

from datetime import timedelta

from taskframework import failpoint
from taskframework.brokers.base import Broker
from taskframework.events.bridge import ExternalEventBridge
from taskframework.model.drivers import OUTBOX
from taskframework.model.marks import PostponeRelay
from taskframework.recovery.loop import make_reservations
from taskframework.stores.base import TaskStore

#: How long other relays leave a task alone that this relay is publishing.
_RESERVATION_TIME = timedelta(seconds=15)


class Relay:
    """Repairs publication. Several relays may run: this makes duplicates, which subscribers drop by sequence."""

    def __init__(self, store: TaskStore, broker: Broker, bridge: ExternalEventBridge, limit: int) -> None:
        self._store = store
        self._broker = broker
        self._bridge = bridge
        self._limit = limit

    async def relay(self) -> bool:
        """Publish the events of one group of tasks.

        Returns:
            Whether there may be more.
        """
        if not self._broker.is_connected:
            return False
        due = await self._store.due(OUTBOX, self._limit)
        if not due:
            return False
        tasks = await make_reservations(self._store, [PostponeRelay(task.task_id, _RESERVATION_TIME) for task in due])
        await failpoint.reached("relay.after_reserve")
        for task in tasks:
            self._bridge.enqueue(task)
        await self._bridge.wait_until_published(tasks)
        return len(due) == self._limit
