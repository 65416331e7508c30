"""A witness outside of every worker: it hears by UDP when task code begins and ends, and judges by its own clock."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from dataclasses import dataclass

#: A module for the workers of a test. Its task tells the witness, whose port is in the environment.
PROGRAM = """
import asyncio
import os
import socket
from datetime import timedelta

from pydantic import BaseModel

from taskframework import BackgroundTaskExecutable, RateLimit, TaskContext, TaskOptions

WITNESS = ("127.0.0.1", int(os.environ["WITNESS_PORT"]))
teller = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)


class Work(BaseModel):
    key: str = ""
    seconds: float = 0


async def seen(context: TaskContext[Work]) -> None:
    about = f"{context.parameters.key} {context.task_id}.{context.attempt}"
    teller.sendto(f"begins {about}".encode(), WITNESS)
    await asyncio.sleep(context.parameters.seconds)
    teller.sendto(f"ends {about}".encode(), WITNESS)


class Limited(BackgroundTaskExecutable[Work, None]):
    task_type = "limited"
    options = TaskOptions(rate_limit="openai")

    async def execute(self, context: TaskContext[Work]) -> None:
        await seen(context)


class Keyed(BackgroundTaskExecutable[Work, None]):
    task_type = "keyed"
    options = TaskOptions(rate_limit=RateLimit("openai", key="key"))

    async def execute(self, context: TaskContext[Work]) -> None:
        await seen(context)
"""


@dataclass(frozen=True, slots=True)
class Sighting:
    """What was heard, and when by the monotonic clock of this process."""

    at: float
    what: str
    key: str
    attempt: str


class Witness:
    """Hears what the workers tell, from `with` to its end."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * 1024**2)
        self._socket.bind(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.seen: list[Sighting] = []
        self._listening = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> Witness:
        self._listening.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as own:
            own.sendto(b"over", ("127.0.0.1", self.port))
        self._listening.join(5)
        self._socket.close()

    def beginnings(self, key: str = "") -> list[float]:
        """When attempts of a key began."""
        return [sighting.at for sighting in list(self.seen) if (sighting.what, sighting.key) == ("begins", key)]

    def _listen(self) -> None:
        while (told := self._socket.recv(1_000).decode()) != "over":
            at = time.monotonic()
            self.seen.append(Sighting(at, *told.split(" ")))


def most_above(times: list[float], rate: float, burst: int) -> float:
    """By how many the fullest window of time is above `burst + rate * seconds`; negative: none is."""
    worst, lowest = -float(burst), float("inf")
    for count, time_ in enumerate(sorted(times)):
        level = count - rate * time_
        lowest = min(lowest, level)
        worst = max(worst, level + 1 - lowest - burst)
    return worst
