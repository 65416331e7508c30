"""A witness outside of every worker that counts what runs: an attempt keeps a connection open while its code runs.

The kernel closes the connection of a process that is killed, so that the count is right at any moment, whoever dies.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections import Counter
from dataclasses import dataclass

#: A module for the workers of a test. Its tasks run while they are connected.
PROGRAM = """
import asyncio
import os

from pydantic import BaseModel

from taskframework import BackgroundTaskExecutable, ConcurrencyLimit, TaskContext, TaskOptions

PORT = int(os.environ["HEADCOUNT_PORT"])


class Work(BaseModel):
    key: str = ""
    seconds: float = 0


async def seen(context: TaskContext[Work]) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", PORT)
    try:
        writer.write(f"{os.getpid()} {context.task_id}\\n".encode())
        await asyncio.sleep(context.parameters.seconds)
    finally:
        writer.close()
        await writer.wait_closed()


class Three(BackgroundTaskExecutable[Work, None]):
    task_type = "three"
    options = TaskOptions(concurrency_limit=3)

    async def execute(self, context: TaskContext[Work]) -> None:
        await seen(context)


class ThreeOfKey(BackgroundTaskExecutable[Work, None]):
    task_type = "three-of-key"
    options = TaskOptions(concurrency_limit=ConcurrencyLimit(3, key="key"))

    async def execute(self, context: TaskContext[Work]) -> None:
        await seen(context)
"""


@dataclass(frozen=True, slots=True)
class Count:
    """How many ran from a moment on, by the monotonic clock of this process, and how many tasks had begun by then."""

    at: float
    running: int
    begun: int


class Headcount:
    """Counts from `with` to its end."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._server.setblocking(False)
        self.port: int = self._server.getsockname()[1]
        self.counts: list[Count] = []
        #: The process of each open connection, once it has said so.
        self._open: dict[socket.socket, int] = {}
        self._tasks: set[str] = set()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._server, selectors.EVENT_READ)
        self._is_over = threading.Event()
        self._counting = threading.Thread(target=self._count, daemon=True)

    def __enter__(self) -> Headcount:
        self._counting.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._counting.join(5)
        for connection in [*self._open, self._server]:
            connection.close()
        self._selector.close()

    @property
    def busiest(self) -> int | None:
        """The process in which most run now; None if none does."""
        pids = Counter(pid for pid in list(self._open.values()) if pid)
        return max(pids, key=pids.__getitem__, default=None)

    def have_begun(self, number: int) -> bool:
        """Whether so many tasks have begun."""
        return len(self._tasks) >= number

    def most(self) -> int:
        """The most that ever ran at once."""
        return max(count.running for count in self.counts)

    def longest_below(self, number: int, tasks: int, excused: list[float]) -> float:
        """The longest time with less than so many running, from the first moment with as many until all have begun.

        Args:
            number: how many should run.
            tasks: how many there are in all.
            excused: moments after which the time is counted anew, since somebody was killed then.
        """
        longest, below_since, has_begun = 0.0, None, False
        moments = sorted([(count.at, count) for count in self.counts] + [(at, None) for at in excused], key=_moment)
        for at, count in moments:
            if below_since is not None and has_begun:
                longest = max(longest, at - below_since)
            if count is None:
                below_since = None if below_since is None else at
                continue
            if count.begun >= tasks:
                break
            has_begun = has_begun or count.running >= number
            below_since = None if count.running >= number else below_since or at
        return longest

    def _count(self) -> None:
        while not self._is_over.is_set():
            ready = [key.fileobj for key, _ in self._selector.select(0.1)]
            # Ends first: what ended before another one began is ready here no later than that.
            for connection in ready:
                if connection is not self._server and isinstance(connection, socket.socket):
                    self._hear(connection)
            if self._server in ready:
                self._accept()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except BlockingIOError:
                return
            self._open[connection] = 0
            self._selector.register(connection, selectors.EVENT_READ)
            self._note()

    def _hear(self, connection: socket.socket) -> None:
        try:
            told = connection.recv(1_000)
        except ConnectionError:  # it was killed
            told = b""
        if told:
            pid, task_id = told.decode().split()
            self._open[connection] = int(pid)
            self._tasks.add(task_id)
        else:
            self._selector.unregister(connection)
            del self._open[connection]
            connection.close()
        self._note()

    def _note(self) -> None:
        self.counts.append(Count(time.monotonic(), len(self._open), len(self._tasks)))


def _moment(entry: tuple[float, Count | None]) -> float:
    return entry[0]
