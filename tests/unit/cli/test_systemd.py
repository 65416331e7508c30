"""Words to systemd where nobody hears them, and where the address is an abstract one."""

from __future__ import annotations

import os
import secrets
import socket
from contextlib import closing
from pathlib import Path

import pytest

from taskframework.cli.systemd import notify_ready, notify_stopping
from tests.support.systemd import Ear


def test_an_abstract_address_begins_with_a_null_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"taskframework-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind(f"\0{name}")
        ear.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
        notify_stopping()
        assert ear.recv(100) == b"STOPPING=1"


@pytest.mark.parametrize("address", ["", "/nobody/listens/here"])
def test_notifying_does_nothing_without_systemd(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    notify_stopping()


@pytest.mark.parametrize("watched", [os.getpid(), os.getppid(), None], ids=["this", "its-parent", "none"])
async def test_only_the_watched_process_notifies_the_watchdog(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, watched: int | None
) -> None:
    with closing(Ear(tmp_path)) as ear:
        monkeypatch.setenv("NOTIFY_SOCKET", ear.environment["NOTIFY_SOCKET"])
        monkeypatch.setenv("WATCHDOG_USEC", "60000000" if watched else "0")
        monkeypatch.setenv("WATCHDOG_PID", str(watched or os.getpid()))
        notify_ready()
        assert ear.words == (["READY=1", "WATCHDOG=1"] if watched == os.getpid() else ["READY=1"])
