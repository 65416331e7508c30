"""Speech that comes in chunks becomes utterances, and each utterance becomes one task.

An utterance ends with a pause, when the speaker's program says so, or with the session; often two or three of these at
the same moment. A session is an actor, so they come one after the other, and the second one finds nothing to end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from pydantic import BaseModel

from taskframework import BackgroundTaskExecutable, TaskContext
from taskframework.actors import KeyedActor, Timers, job_key, submit_once
from taskframework.clock import Clock

#: Silence that ends an utterance.
PAUSE = timedelta(milliseconds=500)

#: `submit` of a TaskFramework or of a TaskClient.
Submit = Callable[..., Awaitable[Any]]


@dataclass(frozen=True)
class SessionId:
    """Whose session; a new one for each connection."""

    tenant_id: str
    session_id: str


@dataclass(frozen=True)
class Chunk:
    """A piece of speech; here, a word."""

    text: str


@dataclass(frozen=True)
class IsFinal:
    """The speaker's program has noticed the end of an utterance."""


class Session(KeyedActor[SessionId, Chunk | IsFinal]):
    """What is known of one session, and the only one who changes it."""

    def __init__(self, key: SessionId, timers: Timers, *, submit: Submit, clock: Clock | None = None) -> None:
        """Begin with the first utterance."""
        super().__init__(key, timers)
        self._submit = submit
        self._clock = clock
        self._index = 0
        self._chunks: list[str] = []
        #: An utterance that has ended and that nobody is known to have taken.
        self._ended: str | None = None

    async def receive(self, event: Chunk | IsFinal) -> None:
        match event:
            case Chunk(text):
                self._chunks.append(text)
                self.timers.set("pause", PAUSE)
            case IsFinal():
                await self._finalize()

    async def on_timer(self, name: str) -> None:
        await self._finalize()

    async def on_end(self) -> None:
        while self._ended is not None or self._chunks:
            await self._finalize()

    async def _finalize(self) -> None:
        """End the utterance and submit it. One that nobody took stays as it is, and comes before the next one."""
        if self._ended is None:
            if not self._chunks:
                return
            self._ended = " ".join(self._chunks)
            self._chunks.clear()
        self.timers.set("pause", PAUSE)  # if the submission fails, for another one
        utterance = {"session_id": self.key.session_id, "index": self._index, "text": self._ended}
        key = job_key(self.key.tenant_id, self.key.session_id, self._index, "transcribe")
        await submit_once(partial(self._submit, "transcribe", utterance, idempotency_key=key), clock=self._clock)
        self._index += 1
        self._ended = None
        self.timers.cancel("pause")


class Utterance(BaseModel):
    """What is to be transcribed."""

    session_id: str
    index: int
    text: str


class Transcribe(BackgroundTaskExecutable[Utterance, str]):
    """Stands for a model that hears well."""

    task_type = "transcribe"

    async def execute(self, context: TaskContext[Utterance]) -> str:
        return context.parameters.text.capitalize() + "."
