"""The ear that systemd lends its services."""

from __future__ import annotations

import socket
from pathlib import Path


class Ear:
    """A socket for `NOTIFY_SOCKET`, and the words that were told."""

    def __init__(self, folder: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(folder / "notify"))
        self._socket.setblocking(False)
        self.environment = {"NOTIFY_SOCKET": str(folder / "notify")}
        self._words: list[str] = []

    @property
    def words(self) -> list[str]:
        """What was told so far, in order."""
        while True:
            try:
                self._words.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return self._words

    def close(self) -> None:
        self._socket.close()
