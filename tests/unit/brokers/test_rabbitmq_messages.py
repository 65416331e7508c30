"""The wire format, without a server: exchange, key, headers, properties and flags of every kind of publication."""

from __future__ import annotations

import json
from datetime import timedelta

import pamqp.header
import pytest

from taskframework.brokers.base import ExternalMessage
from taskframework.brokers.rabbitmq.messages import (
    MAX_BODY_BYTES,
    MAX_HEADER_BYTES,
    event_publication,
    task_publication,
)
from taskframework.brokers.rabbitmq.topology import Names
from taskframework.errors import PublishRefusedError
from taskframework.model.message import TaskMessage
from taskframework.model.status import Priority

_NAMES = Names("tasks")
_HEADERS: dict[str, str | int] = {
    "task_id": "t1",
    "task_type": "reports",
    "user_id": "u1",
    "correlation_id": "c1",
    "submitted_at": "2026-11-20T10:00:00.000Z",
    "x-retry-count": 2,
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
}
_MESSAGE = TaskMessage("t1", "reports", 7, Priority.HIGH, _HEADERS)
_EVERYWHERE = _HEADERS | {"dispatch_id": "t1-7"}


def test_a_task_message() -> None:
    sent = task_publication(_NAMES, _MESSAGE, None)
    assert (sent.exchange, sent.routing_key, sent.mandatory) == ("tasks.exchange", "reports.high", True)
    assert json.loads(sent.body) == {
        "schema_version": 1,
        "task_id": "t1",
        "task_type": "reports",
        "dispatch_epoch": 7,
    }
    assert sent.properties.headers == _EVERYWHERE
    assert (sent.properties.content_type, sent.properties.delivery_mode) == ("application/json", 2)
    assert sent.properties.expiration is None
    assert sent.properties.priority is None


def test_a_message_held_by_the_delayed_message_plugin() -> None:
    sent = task_publication(_NAMES, _MESSAGE, timedelta(seconds=2.5))
    assert (sent.exchange, sent.routing_key, sent.mandatory) == ("tasks.delayed", "reports.high", False)
    assert sent.body == task_publication(_NAMES, _MESSAGE, None).body
    assert sent.properties.headers == _EVERYWHERE | {"x-delay": 2500}
    assert type(sent.properties.headers["x-delay"]) is int
    assert sent.properties.headers["x-retry-count"] == 2
    assert (sent.properties.content_type, sent.properties.delivery_mode) == ("application/json", 2)


@pytest.mark.parametrize(
    ("delay", "milliseconds"),
    [
        (timedelta(0), 0),
        (timedelta(microseconds=1), 1),
        (timedelta(milliseconds=1), 1),
        (timedelta(microseconds=1001), 2),
        (timedelta(minutes=10), 600_000),
        (timedelta(seconds=-5), 0),
        (timedelta(days=365), 2**32 - 1),
    ],
)
def test_a_delay_is_whole_milliseconds_and_never_early(delay: timedelta, milliseconds: int) -> None:
    headers = task_publication(_NAMES, _MESSAGE, delay).properties.headers
    assert headers is not None
    assert headers["x-delay"] == milliseconds


def test_an_event() -> None:
    sent = event_publication(_NAMES, ExternalMessage(b"{}", "application/cloudevents+json", {"a": "b"}))
    assert (sent.exchange, sent.routing_key, sent.mandatory) == ("tasks.events", "", False)
    assert (sent.body, sent.properties.content_type, sent.properties.delivery_mode) == (
        b"{}",
        "application/cloudevents+json",
        2,
    )
    assert sent.properties.headers == {"a": "b"}


def test_each_attempt_has_an_id_of_its_own_and_the_dispatch_keeps_its_name() -> None:
    first, second = (task_publication(_NAMES, _MESSAGE, None).properties for _ in range(2))
    assert first.message_id != second.message_id
    assert first.headers == second.headers


def test_a_message_without_headers_still_says_what_it_is() -> None:
    sent = task_publication(_NAMES, TaskMessage("t1", "reports", 1), None)
    assert sent.properties.headers == {
        "task_id": "t1",
        "task_type": "reports",
        "dispatch_id": "t1-1",
        "x-retry-count": 0,
    }


def test_the_properties_survive_the_wire() -> None:
    properties = task_publication(_NAMES, _MESSAGE, timedelta(seconds=200)).properties
    wire = pamqp.header.ContentHeader(body_size=0, properties=properties).marshal()
    read = pamqp.header.ContentHeader()
    read.unmarshal(wire)
    assert read.properties.headers == properties.headers
    assert read.properties.message_id == properties.message_id


def test_what_would_cost_the_connection_is_refused_before_it_is_written() -> None:
    with pytest.raises(PublishRefusedError, match="headers"):
        task_publication(_NAMES, TaskMessage("t1", "reports", 1, headers={"h": "x" * MAX_HEADER_BYTES}), None)
    with pytest.raises(PublishRefusedError, match="body"):
        event_publication(_NAMES, ExternalMessage(b"x" * (MAX_BODY_BYTES + 1), "text/plain", {}))
