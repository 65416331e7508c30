"""Publishes external events for other programs, as CloudEvents on the events exchange, and helps to receive them."""
