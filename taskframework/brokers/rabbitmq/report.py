"""What `doctor` shows of RabbitMQ: facts, and problems with their remedy. Works without an open broker."""

from __future__ import annotations

from collections.abc import Iterable

from taskframework.brokers.base import BrokerReport
from taskframework.brokers.rabbitmq.connection import Connector
from taskframework.brokers.rabbitmq.delay_plugin import DelayPlugin
from taskframework.brokers.rabbitmq.depth import DepthGauge
from taskframework.brokers.rabbitmq.topology import Names
from taskframework.errors import TaskframeworkError
from taskframework.model.status import LANES


async def inspect_broker(
    connector: Connector, plugin: DelayPlugin, names: Names, task_types: Iterable[str]
) -> BrokerReport:
    """Look at the broker and at the queues of these task types."""
    facts = {"address": connector.where, "virtual host": connector.vhost}
    problems: list[str] = []
    try:
        async with connector.temporary_connection("inspection") as connection:
            facts["server"] = connection.server
        queues = [names.dead_letter_queue, *(names.queue(name, lane) for name in task_types for lane in LANES)]
        problems += await _inspect_queues(DepthGauge(connector), queues, facts)
        facts["delays are held by"] = "the store"
        if await plugin.probe():
            facts["delays are held by"] = "the delayed-message plugin"
    except TaskframeworkError as error:
        problems.append(str(error))
    return BrokerReport(facts, tuple(problems))


async def _inspect_queues(depths: DepthGauge, queues: Iterable[str], facts: dict[str, str]) -> list[str]:
    missing: list[str] = []
    try:
        for queue in queues:
            depth = await depths.messages_ready(queue)
            if depth is None:
                missing.append(queue)
            facts[f"queue {queue}"] = "missing" if depth is None else f"{depth} ready"
    finally:
        await depths.close()
    if not missing:
        return []
    return [f"Queues are missing: {', '.join(missing)}. Start a worker, or run `taskframework topology apply`."]
