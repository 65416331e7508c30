"""The topology as data."""

from __future__ import annotations

from taskframework.brokers.rabbitmq.topology import Arguments, Binding, Exchange, Queue, whole_topology


def test_the_topology_has_every_exchange_queue_and_binding() -> None:
    topology = whole_topology("tasks", ["b", "a"], delivery_limit=20, with_plugin=False)
    assert topology.exchanges == (
        Exchange("tasks.exchange", "direct"),
        Exchange("tasks.dlx", "fanout"),
        Exchange("tasks.events", "fanout"),
    )
    work: Arguments = {"x-queue-type": "quorum", "x-dead-letter-exchange": "tasks.dlx", "x-delivery-limit": 20}
    assert topology.queues == (
        Queue("tasks.dlq", {"x-queue-type": "quorum", "x-delivery-limit": 2**31 - 1}),
        *(Queue(f"tasks.{name}.{lane}", work) for name in ("a", "b") for lane in ("high", "normal", "low")),
    )
    assert topology.bindings[0] == Binding("tasks.dlx", "tasks.dlq", "")
    assert topology.bindings[1:5] == (
        Binding("tasks.exchange", "tasks.a.high", "a.high"),
        Binding("tasks.exchange", "tasks.a.normal", "a.normal"),
        Binding("tasks.exchange", "tasks.a.low", "a.low"),
        Binding("tasks.exchange", "tasks.a.normal", "a"),
    )


def test_with_the_plugin_every_key_is_bound_from_the_delayed_exchange() -> None:
    topology = whole_topology("blue", ["a"], delivery_limit=5, with_plugin=True)
    assert Exchange("blue.delayed", "x-delayed-message", {"x-delayed-type": "direct"}) in topology.exchanges
    assert [binding for binding in topology.bindings if binding.to_exchange] == [
        Binding("blue.delayed", "blue.exchange", key, to_exchange=True) for key in ("a.high", "a.normal", "a.low")
    ]


def test_every_queue_says_its_type_and_its_delivery_limit() -> None:
    for queue in whole_topology("tasks", ["a"], delivery_limit=5, with_plugin=True).queues:
        assert queue.arguments["x-queue-type"] == "quorum"
        assert "x-delivery-limit" in queue.arguments


def test_a_topology_can_be_shown_as_text() -> None:
    lines = list(whole_topology("tasks", ["a"], delivery_limit=5, with_plugin=True).lines())
    assert "exchange tasks.delayed type=x-delayed-message x-delayed-type=direct" in lines
    assert "queue tasks.a.low x-dead-letter-exchange=tasks.dlx x-delivery-limit=5 x-queue-type=quorum" in lines
    assert "binding tasks.exchange -> tasks.a.normal key=a" in lines
    assert "binding tasks.dlx -> tasks.dlq key=(any)" in lines
