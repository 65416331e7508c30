"""The wanted topology, as data: exchanges, queues, bindings and their arguments. This module does not connect."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from taskframework.model.status import LANES, Priority

QUORUM = "quorum"
DELAYED_TYPE = "x-delayed-message"
#: For queues whose messages must never be dropped: without a limit RabbitMQ 4 drops a message after 20 deliveries.
NO_DELIVERY_LIMIT = 2**31 - 1

Arguments = Mapping[str, str | int]


class Names:
    """The names of exchanges and queues, made from the prefix of the installation."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.tasks = f"{prefix}.exchange"
        self.delayed = f"{prefix}.delayed"
        self.dead_letter_exchange = f"{prefix}.dlx"
        self.dead_letter_queue = f"{prefix}.dlq"
        self.events = f"{prefix}.events"

    def queue(self, task_type: str, lane: Priority) -> str:
        return f"{self.prefix}.{routing_key(task_type, lane)}"

    def subscription(self, durable_name: str) -> str:
        return f"{self.events}.{durable_name}"


def routing_key(task_type: str, lane: Priority) -> str:
    """Return the key with which a task message is published."""
    return f"{task_type}.{lane}"


@dataclass(frozen=True, slots=True)
class Exchange:
    """A durable exchange."""

    name: str
    type: str
    arguments: Arguments = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Queue:
    """A durable queue; its type is always among the arguments, because the server's default differs."""

    name: str
    arguments: Arguments


@dataclass(frozen=True, slots=True)
class Binding:
    """Messages of exchange `source` with this key go to `target`, a queue or another exchange."""

    source: str
    target: str
    key: str
    to_exchange: bool = False


@dataclass(frozen=True, slots=True)
class Topology:
    """Exchanges, queues and bindings that belong together, in the order in which they can be declared."""

    exchanges: tuple[Exchange, ...] = ()
    queues: tuple[Queue, ...] = ()
    bindings: tuple[Binding, ...] = ()

    def lines(self) -> Iterator[str]:
        """Yield one line for each item, for people."""
        for exchange in self.exchanges:
            yield f"exchange {exchange.name} type={exchange.type}{_format_arguments(exchange.arguments)}"
        for queue in self.queues:
            yield f"queue {queue.name}{_format_arguments(queue.arguments)}"
        for binding in self.bindings:
            yield f"binding {binding.source} -> {binding.target} key={binding.key or '(any)'}"


def delayed_exchange(names: Names) -> Exchange:
    """Return the exchange of the delayed-message plugin; after the delay it routes like a direct exchange."""
    return Exchange(names.delayed, DELAYED_TYPE, {"x-delayed-type": "direct"})


def base_topology(names: Names) -> Topology:
    """Return the topology that every process needs, whatever its task types are."""
    return Topology(
        exchanges=(
            Exchange(names.tasks, "direct"),
            Exchange(names.dead_letter_exchange, "fanout"),
            Exchange(names.events, "fanout"),
        ),
        queues=(Queue(names.dead_letter_queue, {"x-queue-type": QUORUM, "x-delivery-limit": NO_DELIVERY_LIMIT}),),
        bindings=(Binding(names.dead_letter_exchange, names.dead_letter_queue, ""),),
    )


def task_topology(names: Names, task_type: str, *, delivery_limit: int, with_plugin: bool) -> Topology:
    """Return the queues of one task type.

    A message leaves the delayed exchange with the same key. A direct exchange passes only keys that have a binding. So
    each lane's key is also bound from the delayed exchange to the tasks exchange.
    """
    arguments: Arguments = {
        "x-queue-type": QUORUM,
        "x-dead-letter-exchange": names.dead_letter_exchange,
        "x-delivery-limit": delivery_limit,
    }
    keys = {lane: routing_key(task_type, lane) for lane in LANES}
    bindings = [Binding(names.tasks, names.queue(task_type, lane), key) for lane, key in keys.items()]
    bindings.append(Binding(names.tasks, names.queue(task_type, Priority.NORMAL), task_type))
    if with_plugin:
        bindings += [Binding(names.delayed, names.tasks, key, to_exchange=True) for key in keys.values()]
    return Topology(
        queues=tuple(Queue(names.queue(task_type, lane), arguments) for lane in LANES), bindings=tuple(bindings)
    )


def whole_topology(prefix: str, task_types: Iterable[str], *, delivery_limit: int, with_plugin: bool) -> Topology:
    """Return everything that an installation has on the broker."""
    names = Names(prefix)
    parts = [base_topology(names)]
    if with_plugin:
        parts.append(Topology(exchanges=(delayed_exchange(names),)))
    parts += [
        task_topology(names, task_type, delivery_limit=delivery_limit, with_plugin=with_plugin)
        for task_type in sorted(task_types)
    ]
    return Topology(
        exchanges=tuple(item for part in parts for item in part.exchanges),
        queues=tuple(item for part in parts for item in part.queues),
        bindings=tuple(item for part in parts for item in part.bindings),
    )


def _format_arguments(arguments: Arguments) -> str:
    return "".join(f" {name}={value}" for name, value in sorted(arguments.items()))
