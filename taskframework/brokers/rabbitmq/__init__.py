"""The RabbitMQ adapter: `broker.RabbitBroker` puts the parts together, one file for each thing that can go wrong."""
