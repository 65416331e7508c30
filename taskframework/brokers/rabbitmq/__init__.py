"""The RabbitMQ adapter: `RabbitBroker` puts the parts together, one file for each thing that can go wrong."""

from taskframework.brokers.rabbitmq.broker import RabbitBroker

__all__ = ["RabbitBroker"]
