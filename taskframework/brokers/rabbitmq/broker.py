"""`RabbitBroker`: the broker port on RabbitMQ, put together from its parts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import timedelta
from functools import partial

from taskframework.background import Background
from taskframework.brokers.base import (
    BrokerReport,
    ConsumeRequest,
    Consumption,
    ExternalMessage,
    OnDelivery,
    OnExternalMessage,
)
from taskframework.brokers.rabbitmq.connection import BrokerConnection, Connector
from taskframework.brokers.rabbitmq.consumer import Consumers, QueueConsumer, Source, Troubles
from taskframework.brokers.rabbitmq.delay_plugin import DelayPlugin
from taskframework.brokers.rabbitmq.depth import DepthGauge
from taskframework.brokers.rabbitmq.messages import event_publication, task_publication
from taskframework.brokers.rabbitmq.publisher import Publisher, is_about_topology
from taskframework.brokers.rabbitmq.report import inspect_broker
from taskframework.brokers.rabbitmq.subscriber import event_source
from taskframework.brokers.rabbitmq.supervision import Supervised
from taskframework.brokers.rabbitmq.topology import Names, delayed_exchange
from taskframework.brokers.rabbitmq.topology_keeper import TopologyKeeper
from taskframework.brokers.subscription import Subscription
from taskframework.errors import BrokerError, PublishRefusedError
from taskframework.model.message import TaskMessage
from taskframework.model.status import LANES, Priority
from taskframework.settings.servers import BrokerSettings

logger = logging.getLogger(__name__)

_DEAD_LETTER_PREFETCH = 100


class RabbitBroker:
    """RabbitMQ as a broker: supervised connections for publishing and for consuming, and short ones for the rest."""

    def __init__(self, settings: BrokerSettings) -> None:
        """Prepare without connecting.

        Raises:
            ConfigurationError: if the address cannot be read.
        """
        self.consumer_timeout = settings.consumer_timeout
        # Quorum queues accept this from RabbitMQ 4.3 on; older ones ignore unknown arguments of a consumer.
        self._consumer_arguments = {"x-consumer-timeout": round(settings.consumer_timeout.total_seconds() * 1000)}
        self._settings = settings
        self._names = Names(settings.prefix)
        self._connector = Connector(settings)
        self._plugin = DelayPlugin(settings.delay, delayed_exchange(self._names), self._connector)
        self._topology_keeper = TopologyKeeper(self._connector, self._names, settings.delivery_limit, self._plugin)
        self._publisher = Publisher(
            self._connector,
            self._topology_keeper.restore,
            timeout=settings.publish_timeout,
            max_unconfirmed=settings.max_unconfirmed,
        )
        self._background = Background()
        self._connection: Supervised[BrokerConnection] = Supervised(
            "consumer connection", lambda: self._connector.open("consumer"), self._close_connection
        )
        self._troubles = Troubles()
        self._depths = DepthGauge(self._connector)
        self._consumptions: list[Consumers | Subscription] = []

    async def open(self) -> None:
        self._publisher.open()

    async def close(self) -> None:
        for consumption in self._consumptions:  # in the caller's asyncio task, which `close` does not wait for
            await consumption.close()
        self._consumptions.clear()
        if (connection := await self._connection.stop()) is not None:
            await connection.close()
        await asyncio.gather(self._publisher.close(), self._topology_keeper.close(), self._depths.close())
        await self._background.finished()

    @property
    def is_connected(self) -> bool:
        return self._publisher.is_connected

    @property
    def is_blocked(self) -> bool:
        return self._publisher.is_blocked

    @property
    def holds_delays(self) -> bool:
        return self._plugin.is_used

    @property
    def outlives_process(self) -> bool:
        return True

    async def declare(self, task_types: Sequence[str]) -> None:
        await self._topology_keeper.declare(task_types)

    async def publish(self, message: TaskMessage, *, delay: timedelta | None = None) -> None:
        if delay is not None and not self._plugin.is_used:
            raise PublishRefusedError(
                "This RabbitMQ cannot hold delayed messages.", hint="The store must hold the delay."
            )
        try:
            await self._publisher.publish(task_publication(self._names, message, delay))
        except BrokerError as error:
            # Also for a type of other processes: with an exchange, the bindings of their queues are deleted too.
            if is_about_topology(error):
                self._background.start(self._topology_keeper.repair([message.task_type]))
            raise

    async def queue_depth(self, task_type: str, lane: Priority) -> int | None:
        return await self._depths.messages_ready(self._names.queue(task_type, lane))

    def consume(self, request: ConsumeRequest, on_delivery: OnDelivery) -> Consumption:
        self._topology_keeper.remember(request.task_types)
        sources = [self._task_source(name, lane, request.prefetch) for name in request.task_types for lane in LANES]
        return self._start_consumers(sources, on_delivery)

    def consume_dead_letters(self, on_delivery: OnDelivery) -> Consumption:
        name = self._names.dead_letter_queue
        source = Source(name, _DEAD_LETTER_PREFETCH, repair=lambda: self._topology_keeper.repair([]))
        return self._start_consumers([source], on_delivery)

    async def publish_event(self, message: ExternalMessage) -> None:
        try:
            await self._publisher.publish(event_publication(self._names, message))
        except BrokerError as error:
            if is_about_topology(error):
                self._background.start(self._topology_keeper.repair([]))
            raise

    def subscribe(self, on_message: OnExternalMessage, *, durable_name: str | None = None) -> Consumption:
        self._connection.start()
        source = event_source(self._names, durable_name)
        subscription = Subscription(
            on_message,
            lambda on_event: QueueConsumer(self._connection, source, on_event, self._background, self._troubles),
        )
        self._track(subscription)
        return subscription

    async def inspect(self, task_types: Sequence[str] = ()) -> BrokerReport:
        return await inspect_broker(self._settings, task_types)

    def _task_source(self, task_type: str, lane: Priority, prefetch: int) -> Source:
        name = self._names.queue(task_type, lane)
        repair = partial(self._topology_keeper.repair, [task_type])
        return Source(name, prefetch, None, repair, lane, self._consumer_arguments, self._shorten_consumer_timeout)

    def _shorten_consumer_timeout(self, timeout: timedelta) -> None:
        if timeout < self.consumer_timeout:
            self.consumer_timeout = timeout
            logger.warning(
                "RabbitMQ took a delivery back after %g s, its consumer_timeout. From now on, long tasks are "
                "acknowledged earlier; set broker.consumer_timeout to this value, so that it is right from the start.",
                timeout.total_seconds(),
            )

    def _start_consumers(self, sources: Sequence[Source], on_delivery: OnDelivery) -> Consumption:
        self._connection.start()
        consumers = Consumers(
            [
                QueueConsumer(self._connection, source, on_delivery, self._background, self._troubles)
                for source in sources
            ]
        )
        self._track(consumers)
        return consumers

    def _track(self, consumption: Consumers | Subscription) -> None:
        self._consumptions = [known for known in self._consumptions if not known.is_stopped] + [consumption]

    def _close_connection(self, connection: BrokerConnection) -> None:
        self._background.start(connection.close())
