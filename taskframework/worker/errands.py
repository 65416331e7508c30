"""Errands: actions that task code asks of its worker from any thread. They are done before the attempt is settled."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from taskframework.background import Background


class Errands:
    """Coroutines that task code starts on the event loop of the worker, for as long as its attempt lasts."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        #: The worker's context: errands do not count as task code.
        self.context = contextvars.copy_context()
        self._running = Background()
        self._has_been_used = False
        self._is_closed = False
        self._lock = threading.Lock()

    @property
    def is_closed(self) -> bool:
        """Whether the attempt is over: no errand begins any more."""
        return self._is_closed

    def submit(self, errand: Callable[[], Coroutine[Any, Any, object]]) -> bool:
        """Begin the errand soon; from any thread, without waiting.

        Returns:
            Whether the errand begins. If not, do not wait for it: the event loop may not even run any more.
        """
        return self.call_soon(self._start, errand)

    def call_soon(self, function: Callable[..., object], *arguments: Any) -> bool:
        """Call a function on the event loop soon; returns the same as `submit`."""
        with self._lock:
            if self._is_closed:
                return False
            self._has_been_used = True
            self._loop.call_soon_threadsafe(function, *arguments)
            return True

    async def close(self) -> None:
        """Let the errands begin that were asked for just before the code ended, and no later ones."""
        with self._lock:
            self._is_closed = True
        if self._has_been_used:
            await asyncio.sleep(0)

    async def finished(self) -> None:
        """Wait until all errands that began are done."""
        await self._running.finished()

    def _start(self, errand: Callable[[], Coroutine[Any, Any, object]]) -> None:
        self._running.start(errand(), self.context)
