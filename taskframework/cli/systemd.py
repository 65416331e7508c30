"""Messages to systemd for a service with `Type=notify`: that it serves, that its event loop runs, that it stops.

The protocol is one datagram for each message, to the socket that `NOTIFY_SOCKET` names (sd_notify(3)). Without that
variable nothing is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket

#: How many signs of life are sent within the time after which systemd takes the process for hung.
_SIGNALS_PER_WATCHDOG_PERIOD = 3


def notify_ready() -> None:
    """Say that the process serves. From now on also say that its event loop runs, as often as systemd wants it."""
    _notify("READY=1")
    if (seconds := _watchdog_seconds()) is not None:
        _keep_feeding_watchdog(asyncio.get_running_loop(), seconds / _SIGNALS_PER_WATCHDOG_PERIOD)


def notify_stopping() -> None:
    """Say that the process stops."""
    _notify("STOPPING=1")


def _keep_feeding_watchdog(loop: asyncio.AbstractEventLoop, interval: float) -> None:
    _notify("WATCHDOG=1")
    loop.call_later(interval, _keep_feeding_watchdog, loop, interval)


def _watchdog_seconds() -> float | None:
    """Seconds after which systemd takes a silent process for hung (`WatchdogSec`); None if it does not watch it."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    return int(microseconds) / 1e6 if microseconds.isdecimal() and int(microseconds) else None


def _notify(message: str) -> None:
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    # A message that cannot be sent must not end the process that it is about; systemd then notices the silence.
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify_socket:
        notify_socket.setblocking(False)
        notify_socket.sendto(message.encode(), "\0" + address[1:] if address.startswith("@") else address)
