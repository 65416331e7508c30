"""The test suite for every broker.

Subclass `BrokerConformance` in a test module and say how to make a broker and how a foreign program publishes to it:

    class TestMyBroker(BrokerConformance):
        async def make_broker(self) -> Broker: ...
        async def publish_raw(self, broker: Broker, routing_key: str, body: bytes) -> None: ...

The cases wait only for things that must happen. That a message does not come shows in the depth of a queue, or in the
message that comes next. The cases need pytest-asyncio in its `auto` mode.
"""

from __future__ import annotations

from taskframework.testing.conformance.broker_consuming import ConsumingCases, DeadLetterCases
from taskframework.testing.conformance.broker_events import EventCases
from taskframework.testing.conformance.broker_publishing import DelayCases, PublishingCases


class BrokerConformance(PublishingCases, DelayCases, ConsumingCases, DeadLetterCases, EventCases):
    """The whole suite."""
