"""Another program that hears the events of the installation, and is away now and then."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from taskframework.wiring.subscriber import event_subscriber
from tests.chaos.history import Recorder

QUEUE = "listener"


class Listener:
    """A subscriber with a durable queue; writes down every lifecycle event before it is acknowledged."""

    def __init__(self, url: str, recorder: Recorder) -> None:
        self._url = url
        self._recorder = recorder
        self._heard: dict[str, set[int]] = defaultdict(set)
        self._listening: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen from now on. The first start makes the queue, so it comes before the first submission."""
        ready = asyncio.Event()
        self._listening = asyncio.create_task(self._listen(ready))
        async with asyncio.timeout(30):
            await ready.wait()
        self._recorder.record("subscriber.start", subscriber=QUEUE)

    async def stop(self) -> None:
        """Be away; the queue goes on collecting."""
        if self._listening is not None:
            self._recorder.record("subscriber.stop", subscriber=QUEUE)
            self._listening.cancel()
            await asyncio.wait([self._listening])
            self._listening = None

    def heard(self, task_id: str) -> int:
        """How many different events of a task were heard."""
        return len(self._heard[task_id])

    async def _listen(self, ready: asyncio.Event) -> None:
        # A new subscriber each time: what it remembers would hide duplicates, and a program that was away forgot it.
        async with event_subscriber(self._url, queue=QUEUE) as subscriber:
            await subscriber.listening(timeout=30)
            ready.set()
            async for event in subscriber:
                if event.progress_revision is None:
                    kind = event.type.removeprefix("task.")
                    self._recorder.record(
                        "event", subscriber=QUEUE, task=event.task_id, sequence=event.sequence, type=kind
                    )
                    self._heard[event.task_id].add(event.sequence)
