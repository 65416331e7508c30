"""What a MongoDB driver sends."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo import monitoring


class DriverCommands(monitoring.CommandListener):
    """The commands that were sent, in their order."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        self.sent.append(dict(event.command))

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None: ...

    def failed(self, event: monitoring.CommandFailedEvent) -> None: ...


def recorded_commands(monkeypatch: pytest.MonkeyPatch) -> DriverCommands:
    """What every client sends that is made from here on."""
    commands = DriverCommands()
    monkeypatch.setattr(monitoring, "_LISTENERS", monitoring._LISTENERS._replace(command_listeners=[commands]))
    return commands
