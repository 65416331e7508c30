"""A broker for tests of dispatch."""

from __future__ import annotations

from datetime import timedelta

from taskframework.model.message import TaskMessage


class Published:
    """A broker that takes every message."""

    is_connected = True
    holds_delays = False

    def __init__(self) -> None:
        self.messages: list[TaskMessage] = []

    async def publish(self, message: TaskMessage, *, delay: timedelta | None = None) -> None:
        self.messages.append(message)
