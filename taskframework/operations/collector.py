"""The dead-letter collector: moves the messages of the dead-letter queue into the store, so that none is lost."""

from __future__ import annotations

import asyncio
import logging

from taskframework import failpoint
from taskframework.background import Background, end
from taskframework.brokers.base import Broker, Consumption, Delivery
from taskframework.errors import MessageUnreadableError, TaskUnreadableError
from taskframework.model.marks import MakeDue
from taskframework.model.message import TaskMessage, read_message
from taskframework.model.query import DeadMessage
from taskframework.model.scope import EVERYONE
from taskframework.model.task import new_task_id
from taskframework.stores.base import TaskStore
from taskframework.worker.store_breaker import until_available

logger = logging.getLogger(__name__)

#: The most bytes of a message that are kept. A MongoDB document, and by default a RabbitMQ 4 message, may have 16 MiB.
MAX_KEPT_BYTES = 15 * 1024 * 1024


class DeadLetterCollector:
    """Drops messages of known tasks, whose documents contain everything; keeps all other messages whole."""

    def __init__(self, store: TaskStore, broker: Broker) -> None:
        self._store = store
        self._broker = broker
        self._consumption: Consumption | None = None
        self._collecting = Background()
        #: The queue and the reason of each message that was kept and is not logged yet.
        self._kept: list[tuple[str, str]] = []

    def start(self) -> None:
        self._consumption = self._broker.consume_dead_letters(self._on_delivery)

    async def stop(self) -> None:
        if self._consumption is not None:
            await self._consumption.stop()
        await end(*self._collecting.tasks)

    def _on_delivery(self, delivery: Delivery) -> None:
        self._collecting.start(self._collect(delivery))

    async def _collect(self, delivery: Delivery) -> None:
        try:
            letter_id = new_task_id()  # one id for all tries: if only the reply was lost, the message is stored already
            await until_available(lambda: self._keep_if_unknown(delivery, letter_id))
        except Exception:
            logger.exception("a dead letter could not be stored; it stays in the broker")
            return
        await failpoint.reached("collect.after_keep")
        await delivery.ack()

    async def _is_known(self, message: TaskMessage) -> bool:
        """Return whether the task exists. If it still waits, this was its message, so the task becomes due."""
        try:
            task = await self._store.get(message.task_id, EVERYONE)
        except TaskUnreadableError:  # a newer release wrote it
            return True
        if task is not None:
            await self._store.mark(MakeDue(message.task_id, message.dispatch_epoch))
        return task is not None

    async def _keep_if_unknown(self, delivery: Delivery, letter_id: str) -> None:
        message: TaskMessage | None = None
        try:
            message = read_message(delivery.body)
        except MessageUnreadableError as error:
            reason = error.message
        else:
            if await self._is_known(message):
                return
            reason = (
                "There is no task with this id: it was never stored, or was removed after its retention time. Or two"
                " installations with different stores have the same broker.prefix, and take each other's messages."
            )
        if len(delivery.body) > MAX_KEPT_BYTES:
            reason += f" It has {len(delivery.body):,} bytes; the first {MAX_KEPT_BYTES:,} are kept."
        queue = delivery.headers.get("x-first-death-queue", delivery.queue)
        await self._store.keep_dead_message(
            DeadMessage(
                id=letter_id,
                body=delivery.body[:MAX_KEPT_BYTES],
                headers=dict(delivery.headers),
                queue=queue,
                reason=reason,
                at=self._store.now(),
                task_id=message.task_id if message else None,
                task_type=message.task_type if message else None,
            )
        )
        self._log_soon(queue, reason)

    def _log_soon(self, queue: str, reason: str) -> None:
        """Log one line for all messages that are kept at the same moment."""
        self._kept.append((queue, reason))
        if len(self._kept) == 1:
            asyncio.get_running_loop().call_soon(self._log_kept)

    def _log_kept(self) -> None:
        kept, self._kept = self._kept, []
        logger.warning("dead letters kept: %d, the first from %s: %s", len(kept), *kept[0])
