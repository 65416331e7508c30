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
_WORDS_EACH_PATIENCE = 3


def tell_serving() -> None:
    """Say that the process serves. From now on also say that its event loop runs, as often as systemd wants it."""
    _tell("READY=1")
    if (seconds := _patience()) is not None:
        _tell_running(asyncio.get_running_loop(), seconds / _WORDS_EACH_PATIENCE)


def tell_stopping() -> None:
    """Say that the process stops."""
    _tell("STOPPING=1")


def _tell_running(loop: asyncio.AbstractEventLoop, every: float) -> None:
    _tell("WATCHDOG=1")
    loop.call_later(every, _tell_running, loop, every)


def _patience() -> float | None:
    """Seconds after which systemd takes a silent process for hung (`WatchdogSec`); None if it does not watch it."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    return int(microseconds) / 1e6 if microseconds.isdecimal() and int(microseconds) else None


def _tell(word: str) -> None:
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    # A message that cannot be sent must not end the process that it is about; systemd then notices the silence.
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as teller:
        teller.setblocking(False)
        teller.sendto(word.encode(), "\0" + address[1:] if address.startswith("@") else address)
