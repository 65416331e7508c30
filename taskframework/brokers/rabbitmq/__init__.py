"""The RabbitMQ adapter; `RabbitBroker` puts its parts together."""

from taskframework.brokers.rabbitmq.broker import RabbitBroker

__all__ = ["RabbitBroker"]
