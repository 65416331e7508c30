"""Subscribers: how another program, or a command, listens to the events of an installation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taskframework.clock import SystemClock
from taskframework.errors import ConfigurationError
from taskframework.events.http import HttpEvents
from taskframework.events.subscriber import EventSubscriber
from taskframework.settings import Settings, redacted
from taskframework.wiring.adapters import build_broker

_BROKER_SCHEMES = ("amqp://", "amqps://", "embedded://")


def event_subscriber(
    url: str,
    *,
    queue: str | None = None,
    prefix: str = "tasks",
    settings: Mapping[str, Any] | None = None,
    api_key: str | None = None,
) -> EventSubscriber:
    """A subscriber for a program that is not part of the installation; all it needs is a URL.

    Args:
        url: of RabbitMQ, `amqp://user:password@host:5672/vhost`; or of an `api` or `dev`, `http://localhost:8000`, the
            only way to get events of the embedded broker. Over HTTP nothing is kept: events that come while the
            connection is broken are lost.
        queue: RabbitMQ only: name of a durable queue; without it only events that come while listening are received.
        prefix: RabbitMQ only: the installation's `broker.prefix`.
        settings: RabbitMQ only: further settings of the `broker` section.
        api_key: HTTP only: the API key to send, if callers need one.

    Raises:
        ConfigurationError: if the URL is neither, or a queue is wanted over HTTP.
    """
    if url.startswith(("http://", "https://")):
        if queue is not None:
            raise ConfigurationError(
                f"Over HTTP no queue {queue!r} keeps events while no one listens.",
                key="queue",
                hint="Leave queue out, or give the amqp:// URL of RabbitMQ, which has durable queues.",
            )
        return EventSubscriber(HttpEvents(url, api_key=api_key), owns_broker=True)
    if not url.startswith(_BROKER_SCHEMES):
        raise ConfigurationError(
            f"{redacted(url)} is not an address to listen to.",
            key="url",
            hint='Give event_subscriber the address of an API, "http://localhost:8000", or of RabbitMQ, "amqp://...".',
        )
    broker = {"url": url, "prefix": prefix, **(settings or {})}
    return build_subscriber(Settings.model_validate({"broker": broker}), queue)


def build_subscriber(settings: Settings, queue: str | None = None) -> EventSubscriber:
    """A subscriber with a broker connection of its own.

    Raises:
        ConfigurationError: if the broker is embedded; nothing outside its process can listen to it.
    """
    if settings.broker.scheme == "embedded":
        raise ConfigurationError(
            "Another process cannot listen to the embedded broker.",
            key="broker.url",
            hint='Listen to its HTTP interface: event_subscriber("http://localhost:8000"); or use RabbitMQ.',
        )
    return EventSubscriber(build_broker(settings, SystemClock()), queue=queue, owns_broker=True)
