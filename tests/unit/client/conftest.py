"""Both clients over an interface that a test writes itself, with a clock that only their pauses move."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import httpx
import pytest

from taskframework.client.transport import AsyncTransport, BlockingTransport
from taskframework.model.view import public_view
from taskframework.testing.factories import new_task
from tests.support.clients import KINDS, client_of

Answer = httpx.Response | Exception
#: Makes a client of one of the two kinds that gets these answers, one after the other, or those of a function.
Connect = Callable[..., "Stage"]


class Stage:
    """A client, what it asked, and how long it paused."""

    def __init__(
        self, kind: str, answer: Callable[[httpx.Request], httpx.Response], *, url: str = "http://api", **options: Any
    ) -> None:
        self.asked: list[httpx.Request] = []
        self.pauses: list[float] = []
        #: Seconds that answers took.
        self.passed = 0.0

        def heard(request: httpx.Request) -> httpx.Response:
            self.asked.append(request)
            return answer(request)

        transport = httpx.MockTransport(heard)
        client = httpx.AsyncClient if kind == "asyncio" else httpx.Client
        self.client = client_of(kind, url, http=client(transport=transport), **options)


@pytest.fixture(params=KINDS)
def connect(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Connect:
    stages: list[Stage] = []

    async def sleep(_: object, seconds: float) -> None:
        stages[-1].pauses.append(seconds)
        await asyncio.sleep(0) if request.param == "asyncio" else None

    for transport in (AsyncTransport, BlockingTransport):
        monkeypatch.setattr(transport, "sleep", sleep)
        monkeypatch.setattr(transport, "now", lambda _: stages[-1].passed + sum(stages[-1].pauses))

    def connected(*answers: Answer | Callable[[httpx.Request], httpx.Response], **options: Any) -> Stage:
        stages.append(Stage(request.param, _in_turn(answers), **options))
        return stages[-1]

    return connected


def _in_turn(answers: tuple[Any, ...]) -> Callable[[httpx.Request], httpx.Response]:
    left: Iterator[Any] = iter(answers)

    def answer(request: httpx.Request) -> httpx.Response:
        told = next(left)
        if isinstance(told, Exception):
            raise told
        if callable(told):
            response: httpx.Response = told(request)
            return response
        # Anew for each client: an answer that was sent once belongs to the client it was sent to.
        return httpx.Response(told.status_code, headers=told.headers, content=told.content)

    return answer


def task_view(**changes: Any) -> dict[str, Any]:
    """A task as the interface shows it."""
    return {**public_view(new_task()), **changes}


def task(code: int = 200, /, **changes: Any) -> httpx.Response:
    return httpx.Response(code, json=task_view(**changes))


class Pieces(httpx.SyncByteStream, httpx.AsyncByteStream):
    """What is sent of an answer, and how it breaks."""

    def __init__(self, pieces: Sequence[bytes], error: Exception | None) -> None:
        self._pieces = pieces
        self._error = error

    def __iter__(self) -> Iterator[bytes]:
        yield from self._pieces
        if self._error is not None:
            raise self._error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self:
            yield piece


def stream(*pieces: bytes, error: Exception | None = None) -> Callable[[httpx.Request], httpx.Response]:
    """Server-sent events, and how they end."""
    headers = {"Content-Type": "text/event-stream"}
    return lambda _: httpx.Response(200, headers=headers, stream=Pieces(pieces, error))


def problem(status: int, code: str, **more: Any) -> httpx.Response:
    document = {"type": f"/docs#{code}", "title": "", "status": status, "detail": "No.", "code": code, "hint": "Go."}
    return httpx.Response(status, json={**document, **more.pop("members", {})}, **more)
