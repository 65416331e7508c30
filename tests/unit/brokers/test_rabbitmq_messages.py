"""The wire format, without a server: exchange, key, headers, properties and flags of every kind of publication."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from aiormq import spec

from taskframework.brokers.base import ExternalMessage
from taskframework.brokers.rabbitmq.messages import (
    MAX_BODY_BYTES,
    MAX_HEADER_BYTES,
    Publication,
    event_publication,
    task_publication,
)
from taskframework.brokers.rabbitmq.topology import Names
from taskframework.errors import PublishRefusedError
from taskframework.model.message import TaskMessage
from taskframework.model.status import Priority
from tests.support.amqp import read_properties_as_driver

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


def _properties(sent: Publication) -> spec.Basic.Properties:
    """What the broker and everybody behind it reads."""
    return read_properties_as_driver(sent.properties)


def test_a_task_message_has_the_right_wire_format() -> None:
    sent = task_publication(_NAMES, _MESSAGE, None)
    assert (sent.exchange, sent.routing_key, sent.mandatory) == ("tasks.exchange", "reports.high", True)
    assert json.loads(sent.body) == {
        "schema_version": 1,
        "task_id": "t1",
        "task_type": "reports",
        "dispatch_epoch": 7,
    }
    properties = _properties(sent)
    assert properties.headers == _EVERYWHERE
    assert (properties.content_type, properties.delivery_mode) == ("application/json", 2)
    assert (properties.correlation_id, properties.message_id) == ("c1", sent.message_id)
    assert properties.expiration is None
    assert properties.priority is None


def test_a_message_held_by_the_delayed_message_plugin() -> None:
    sent = task_publication(_NAMES, _MESSAGE, timedelta(seconds=2.5))
    assert (sent.exchange, sent.routing_key, sent.mandatory) == ("tasks.delayed", "reports.high", False)
    assert sent.body == task_publication(_NAMES, _MESSAGE, None).body
    properties = _properties(sent)
    assert properties.headers == _EVERYWHERE | {"x-delay": 2500}
    assert type(properties.headers["x-delay"]) is int
    assert properties.headers["x-retry-count"] == 2
    assert (properties.content_type, properties.delivery_mode) == ("application/json", 2)


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
    headers = _properties(task_publication(_NAMES, _MESSAGE, delay)).headers
    assert headers is not None
    assert headers["x-delay"] == milliseconds


def test_an_event_has_the_right_wire_format() -> None:
    sent = event_publication(_NAMES, ExternalMessage(b"{}", "application/cloudevents+json", {"a": "b"}))
    assert (sent.exchange, sent.routing_key, sent.mandatory) == ("tasks.events", "", False)
    properties = _properties(sent)
    assert (sent.body, properties.content_type, properties.delivery_mode) == (b"{}", "application/cloudevents+json", 2)
    assert (properties.headers, properties.correlation_id) == ({"a": "b"}, None)
    assert (sent.failpoint, task_publication(_NAMES, _MESSAGE, None).failpoint) == ("relay.reply", "dispatch.reply")


def test_each_publication_has_its_own_message_id_and_the_same_headers() -> None:
    first, second = (task_publication(_NAMES, _MESSAGE, None) for _ in range(2))
    assert first.message_id != second.message_id
    assert _properties(first).message_id == first.message_id
    assert _properties(first).headers == _properties(second).headers


def test_a_message_without_headers_still_says_what_it_is() -> None:
    sent = task_publication(_NAMES, TaskMessage("t1", "reports", 1), None)
    assert _properties(sent).headers == {
        "task_id": "t1",
        "task_type": "reports",
        "dispatch_id": "t1-1",
        "x-retry-count": 0,
    }


@pytest.mark.parametrize(
    "headers",
    [
        {"text": "x" * 3000, "": "", "ä\u4e2d\U0001f600": "\u4e2d\U0001f600\x00"},
        {"n": 0, "m": -1, "i": 2**31 - 1, "l": 2**31, "j": -(2**31), "k": -(2**31) - 1, "h": 2**63 - 1, "o": -(2**63)},
        {"n" * 255: "v", "correlation_id": "ä" * 127},
    ],
    ids=["texts", "integers", "longest"],
)
def test_headers_arrive_as_they_are(headers: dict[str, str | int]) -> None:
    sent = task_publication(_NAMES, TaskMessage("t1", "reports", 1, headers=headers), None)
    properties = _properties(sent)
    assert properties.headers is not None
    assert {name: properties.headers[name] for name in headers} == headers
    assert (properties.correlation_id or None) == headers.get("correlation_id")
    assert properties.message_id == sent.message_id


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("n" * 256, "v"), ("ä" * 128, "v"), ("correlation_id", "x" * 256), ("correlation_id", "ä" * 128)),
        *(("n", value) for value in (2**63, -(2**63) - 1, None, 0.5, ["a"], b"a", "\ud800")),
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_a_header_that_cannot_be_written_is_refused(name: str, value: object) -> None:
    headers: dict[str, Any] = {name: value}
    with pytest.raises(PublishRefusedError, match="cannot be written"):
        task_publication(_NAMES, TaskMessage("t1", "reports", 1, headers=headers), None)
    with pytest.raises(PublishRefusedError, match="cannot be written"):
        event_publication(_NAMES, ExternalMessage(b"{}", "text/plain", headers))


def test_a_content_type_that_is_too_long_is_refused() -> None:
    with pytest.raises(PublishRefusedError, match="cannot be written"):
        event_publication(_NAMES, ExternalMessage(b"{}", "x" * 256, {}))


def test_a_message_that_is_too_large_is_refused_before_it_is_written() -> None:
    with pytest.raises(PublishRefusedError, match="headers"):
        task_publication(_NAMES, TaskMessage("t1", "reports", 1, headers={"h": "x" * MAX_HEADER_BYTES}), None)
    with pytest.raises(PublishRefusedError, match="body"):
        event_publication(_NAMES, ExternalMessage(b"x" * (MAX_BODY_BYTES + 1), "text/plain", {}))


def test_the_largest_allowed_message_is_written() -> None:
    empty = event_publication(_NAMES, ExternalMessage(b"", "text/plain", {"h": ""}))
    room = MAX_HEADER_BYTES - len(empty.properties)
    event_publication(_NAMES, ExternalMessage(b"x" * MAX_BODY_BYTES, "text/plain", {"h": "x" * room}))
    with pytest.raises(PublishRefusedError, match="headers"):
        event_publication(_NAMES, ExternalMessage(b"", "text/plain", {"h": "x" * (room + 1)}))
