"""What the integration tests share as fixtures."""

from __future__ import annotations

from functools import partial

import pytest

from tests.integration.rabbitmq_helpers import MakeBroker, rabbit_broker


@pytest.fixture(params=["auto", "off"])
def make_broker(request: pytest.FixtureRequest, amqp_url: str) -> MakeBroker:
    """Makes brokers on this test's virtual host, once with the fast path and once without; settings by keyword."""
    return partial(rabbit_broker, amqp_url, fast_path=request.param)
