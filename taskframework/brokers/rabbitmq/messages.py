"""The wire format: which exchange, key, headers and properties a publication has. Nothing here connects."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import uuid_utils

from taskframework.brokers.base import ExternalMessage
from taskframework.brokers.rabbitmq.properties import own_properties
from taskframework.brokers.rabbitmq.topology import Names, routing_key
from taskframework.errors import PublishRefusedError
from taskframework.model.message import TaskMessage

#: Headers travel in one frame; a frame the broker finds too large costs the whole connection.
MAX_HEADER_BYTES = 4096
#: The largest message RabbitMQ 4 takes by default; a larger one costs the channel and all that is under way on it.
MAX_BODY_BYTES = 16 * 1024**2
#: Longest delay the plugin can count.
_MAX_DELAY_MS = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Publication:
    """One attempt to publish something."""

    exchange: str
    routing_key: str
    body: bytes
    message_id: str
    properties: bytes
    #: Whether the broker gives it back when no queue takes it.
    mandatory: bool
    #: The failpoint behind its confirm.
    point: str = "dispatch.reply"


def task_publication(names: Names, message: TaskMessage, delay: timedelta | None) -> Publication:
    """A task message, now or after a delay held by the delayed-message plugin.

    A delayed publication is never mandatory: the plugin has not routed it when the broker answers, so the broker would
    call each one unroutable.

    Raises:
        PublishRefusedError: if it is too large or cannot be written.
    """
    headers: dict[str, str | int] = {"x-retry-count": 0, **(message.headers or {})}
    # The name of this very dispatch, equal in all attempts to publish it; the message id is new in each.
    headers["dispatch_id"] = f"{message.task_id}-{message.dispatch_epoch}"
    headers["task_id"] = message.task_id
    headers["task_type"] = message.task_type
    key = routing_key(message.task_type, message.lane)
    body = message.to_body()
    if delay is None:
        return _publication(names.tasks, key, body, "application/json", headers, mandatory=True)
    # Rounded up, because a message that comes early is dropped at the claim and costs the sweeper's time.
    milliseconds = -(-delay // timedelta(milliseconds=1))
    headers["x-delay"] = min(max(milliseconds, 0), _MAX_DELAY_MS)
    return _publication(names.delayed, key, body, "application/json", headers, mandatory=False)


def event_publication(names: Names, event: ExternalMessage) -> Publication:
    """An external event; nobody listening is fine.

    Raises:
        PublishRefusedError: if it is too large or cannot be written.
    """
    headers = {**event.headers}
    return _publication(names.events, "", event.body, event.content_type, headers, mandatory=False, point="relay.reply")


def _publication(
    exchange: str,
    routing_key: str,
    body: bytes,
    content_type: str,
    headers: Mapping[str, str | int],
    *,
    mandatory: bool,
    point: str = "dispatch.reply",
) -> Publication:
    if len(body) > MAX_BODY_BYTES:
        raise PublishRefusedError(f"The body has {len(body):,} bytes; the limit is {MAX_BODY_BYTES:,}.")
    correlation_id = headers.get("correlation_id")
    # New in each attempt: messages that come back are told apart by it.
    message_id = uuid_utils.uuid4().hex
    try:
        properties = own_properties(
            content_type,
            headers,
            correlation_id=None if correlation_id is None else str(correlation_id),
            message_id=message_id,
        )
    except (TypeError, ValueError, OverflowError, struct.error) as error:
        raise PublishRefusedError(f"The message cannot be written: {error}.") from error
    if len(properties) > MAX_HEADER_BYTES:
        raise PublishRefusedError(f"The headers have {len(properties):,} bytes; the limit is {MAX_HEADER_BYTES:,}.")
    return Publication(exchange, routing_key, body, message_id, properties, mandatory, point)
