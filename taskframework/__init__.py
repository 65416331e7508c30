"""taskframework: background tasks on RabbitMQ and MongoDB that keep their promises when things die."""
