"""What `doctor` shows of RabbitMQ: facts, and problems with their remedy. Works without an open broker."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from uuid import uuid4

from aio_pika import Message
from aio_pika.exceptions import AMQPException

from taskframework.brokers.base import BrokerReport
from taskframework.brokers.rabbitmq.connection import BrokerConnection, Connector
from taskframework.brokers.rabbitmq.delay_plugin import DelayPlugin
from taskframework.brokers.rabbitmq.depth import DepthGauge
from taskframework.brokers.rabbitmq.topology import Names, delayed_exchange
from taskframework.brokers.rabbitmq.topology_mover import Difference, TopologyMover
from taskframework.errors import TaskframeworkError
from taskframework.model.status import LANES
from taskframework.settings.servers import BrokerSettings

_ALARM = (
    "It takes no messages: memory or disk alarm. Give it more memory or disk; `rabbitmqctl status` names the alarm. "
    "Nothing is lost: tasks are stored, and sent when the alarm is over."
)
#: Seconds after which a message without a confirm means an alarm, if the broker has told of one.
_ALARM_SECONDS = 2.0


async def inspect_broker(settings: BrokerSettings, task_types: Sequence[str]) -> BrokerReport:
    """Look at the broker and at the queues of these task types."""
    names, connector = Names(settings.prefix), Connector(settings)
    facts = {"address": connector.where, "virtual host": connector.vhost}
    problems: list[str] = []
    try:
        async with connector.temporary_connection("inspection") as connection:
            facts["server"] = connection.server
            if await _is_blocked(connection):
                problems.append(_ALARM)
        queues = [names.dead_letter_queue, *(names.queue(name, lane) for name in task_types for lane in LANES)]
        facts |= await _depths(DepthGauge(connector), queues)
        problems += _problems(await TopologyMover(settings, task_types).plan())
        facts["delays are held by"] = "the store"
        if await DelayPlugin(settings.delay, delayed_exchange(names), connector).probe():
            facts["delays are held by"] = "the delayed-message plugin"
    except TaskframeworkError as error:
        problems.append(str(error))
    return BrokerReport(facts, tuple(problems))


async def _is_blocked(connection: BrokerConnection) -> bool:
    """Return whether the broker has an alarm. It tells a connection only after this connection has sent a message."""
    with contextlib.suppress(TimeoutError, AMQPException):  # a user may lack the right to send this message
        async with asyncio.timeout(_ALARM_SECONDS):
            channel = await connection.channel(confirms=True)
            message = Message(b"", expiration=0)
            await channel.default_exchange.publish(message, f"taskframework-{uuid4()}", mandatory=False)
    return connection.is_blocked


async def _depths(depths: DepthGauge, queues: Iterable[str]) -> dict[str, str]:
    """How many messages wait in the queues that exist."""
    try:
        found = {queue: await depths.messages_ready(queue) for queue in queues}
    finally:
        await depths.close()
    return {f"queue {queue}": f"{depth} ready" for queue, depth in found.items() if depth is not None}


def _problems(differences: Sequence[Difference]) -> Iterator[str]:
    """One problem for all parts that differ in the same way: a changed setting concerns every queue."""
    names = defaultdict[str, list[str]](list)
    for difference in differences:
        names[difference.what].append(f"{difference.kind} {difference.name}")
    if missing := names.pop("missing", None):
        yield f"Missing on the broker: {', '.join(missing)}. Start a worker, or run `taskframework topology apply`."
    for what, different in names.items():
        yield f"Not as in the settings ({what}): {', '.join(different)}. To move: `taskframework topology migrate`."
