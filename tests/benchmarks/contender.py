"""What a contender has to be able to do. Its file subclasses one of these and ends with `program.run(...)`.

This file and `results.py`, `program.py`, `probing.py` run in every environment: they need the standard library, PyMongo
and uvloop, nothing else.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import ClassVar

from tests.benchmarks.results import Results

IN_FLIGHT = 100
THREADS = 4


@dataclass(frozen=True, slots=True)
class Places:
    """Where this trial's virtual host and databases are; the runner tells it by the environment."""

    amqp_url: str
    mongo_url: str
    redis_url: str

    @classmethod
    def from_environment(cls) -> Places:
        """Where the runner says; without it, for `describe`, places where nobody connects to."""
        defaults = {"AMQP": "amqp://127.0.0.1/", "MONGO": "mongodb://127.0.0.1/bench", "REDIS": "redis://127.0.0.1/0"}
        return cls(*(os.environ.get(f"BENCH_{name}_URL", url) for name, url in defaults.items()))


def outcome(number: int) -> dict[str, int]:
    """What every contender's task returns: its parameter and when its body ran."""
    return {"i": number, "started": time.time_ns()}


class Contender(ABC):
    """A task system whose client is asynchronous."""

    #: Distributions whose versions are printed.
    packages: ClassVar[Sequence[str]]
    #: How it is configured, and why if it differs from its defaults.
    settings: ClassVar[Mapping[str, str]]
    #: What it does not promise, next to this project.
    weaker: ClassVar[Sequence[str]] = ()
    #: Part of `--tasks` it gets: a rate does not depend on it, the time we wait for a slow one does.
    share: ClassVar[float] = 1.0
    #: Name of its way to submit many tasks at once; None if it has none, then its best way of single calls counts.
    bulk: ClassVar[str | None] = None
    #: Whether it works on Redis instead of RabbitMQ and MongoDB.
    on_redis: ClassVar[bool] = False

    @abstractmethod
    def worker_commands(self, processes: int) -> Sequence[Sequence[str]]:
        """The commands that start this many worker processes."""

    @abstractmethod
    def results(self) -> Results:
        """Where its results are found."""

    async def open(self) -> None:  # noqa: B027 - nothing to do is an answer
        """Connect and declare what submitting needs."""

    async def close(self) -> None:  # noqa: B027
        """Disconnect."""

    @abstractmethod
    async def submit(self, number: int) -> str:
        """Submit the no-op with `{"i": number}` and return the task's id when the broker (or store) has it."""

    async def submit_many(self, numbers: Sequence[int]) -> None:
        """Submit these by the way that `bulk` names."""
        raise NotImplementedError

    async def flush(self) -> None:  # noqa: B027
        """Return when everything submitted is published and confirmed."""

    async def submit_single(self, numbers: Sequence[int]) -> Mapping[str, float]:
        """Submit one by one, as fast as it goes; return seconds a task by way."""
        iterator = iter(numbers)

        async def caller() -> None:
            for number in iterator:
                await self.submit(number)

        start = time.perf_counter()
        await asyncio.gather(*(caller() for _ in range(IN_FLIGHT)))
        await self.flush()
        return {f"{IN_FLIGHT} calls in flight": (time.perf_counter() - start) / len(numbers)}


class BlockingContender(Contender):
    """A task system whose client blocks. One thread and several are both tried; the better counts."""

    @abstractmethod
    def send(self, number: int) -> str:
        """As `submit`, called in any thread."""

    async def submit(self, number: int) -> str:
        return await asyncio.to_thread(self.send, number)

    async def submit_single(self, numbers: Sequence[int]) -> Mapping[str, float]:
        half = len(numbers) // 2
        return {
            "1 thread": await asyncio.to_thread(self._send_all, numbers[:half], 1),
            f"{THREADS} threads": await asyncio.to_thread(self._send_all, numbers[half:], THREADS),
        }

    def _send_all(self, numbers: Sequence[int], threads: int) -> float:
        parts = [numbers[at::threads] for at in range(threads)]

        def send_part(part: Sequence[int]) -> None:
            for number in part:
                self.send(number)

        with ThreadPoolExecutor(threads) as pool:
            start = time.perf_counter()
            list(pool.map(send_part, parts))
            return (time.perf_counter() - start) / len(numbers)


def module_command(*arguments: str) -> list[str]:
    """A command that runs a module of the program's own environment."""
    return [sys.executable, "-m", *arguments]
