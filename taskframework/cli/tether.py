"""The link between a parent and one of its worker processes: a socket pair whose end of file means "stop".

The parent closes its end to ask for a stop, and the kernel closes it if the parent is killed. So a worker process
outlives its parent only for the time of a stop. The same pair carries, as lines of JSON, facts that only the process
knows: that it serves, why it could not start, and its answers to the paths of the health checks.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from taskframework.background import Background
from taskframework.errors import BrokerError, StoreUnavailableError, TaskframeworkError, TopologyMismatchError

#: Bytes of the longest line; the metrics of some thousand task types are smaller.
_MAX_LINE_BYTES = 64 * 1024 * 1024
#: Seconds that a process that stops still sends the rest of its answers; a parent that is frozen never reads them.
_REST_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a worker process to a path: status and body, as over HTTP."""

    status: int
    body: str


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a worker process could not start."""

    message: str
    hint: str
    #: Whether the reason was a server that was away; it may be back when the process is started again.
    may_pass: bool


class Tether:
    """The worker process's end of the socket pair."""

    def __init__(self, descriptor: int) -> None:
        """Take over the inherited socket; child processes of this process do not inherit it."""
        os.set_inheritable(descriptor, False)
        self._socket = socket.socket(fileno=descriptor)
        self._background = Background()
        self._writer: asyncio.StreamWriter | None = None
        self._on_stop: Callable[[], None] = lambda: None
        #: Answers the parent's questions; without this they are not answered.
        self.answer: Callable[[str], Awaitable[Answer]] | None = None

    @contextlib.contextmanager
    def reporting(self) -> Iterator[Tether]:
        """Send the error that ends this process to the parent, which then shows it.

        Raises:
            SystemExit: with 1, in place of the error.
            TaskframeworkError: the error, if the parent is gone.
        """
        try:
            yield self
        except TaskframeworkError as error:
            is_server_away = isinstance(error, StoreUnavailableError | BrokerError)
            may_pass = is_server_away and not isinstance(error, TopologyMismatchError)
            try:
                self._socket.setblocking(True)
                self._socket.sendall(_encode_line(message=error.message, hint=error.hint, may_pass=may_pass))
            except OSError:
                raise error from None
            raise SystemExit(1) from error

    async def listen(self, on_stop: Callable[[], None]) -> None:
        """Answer questions from now on, and call `on_stop` when the parent asks for a stop or is gone."""
        # A copy: the event loop closes the socket that it gets, but `reporting` may still have to send.
        reader, self._writer = await asyncio.open_unix_connection(sock=self._socket.dup())
        self._on_stop = on_stop
        self._background.start(self._read_questions(reader))

    def report_ready(self) -> None:
        """Tell the parent that this process serves."""
        self._send(ready=True)

    async def close(self) -> None:
        """Stop answering and listening."""
        self._on_stop = lambda: None
        if self._writer is None:
            return
        self._writer.close()
        giving_up = asyncio.get_running_loop().call_later(_REST_SECONDS, self._writer.transport.abort)
        await self._background.finished()
        giving_up.cancel()

    async def _read_questions(self, reader: asyncio.StreamReader) -> None:
        # A parent that is killed may leave the beginning of a question, which cannot be read.
        with contextlib.suppress(OSError, orjson.JSONDecodeError):
            async for line in reader:
                self._background.start(self._answer(**orjson.loads(line)))
        self._on_stop()

    async def _answer(self, number: int, path: str) -> None:
        if self.answer is not None:
            answer = await self.answer(path)
            self._send(number=number, status=answer.status, body=answer.body)

    def _send(self, **message: object) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(_encode_line(**message))


@dataclass(slots=True)
class WorkerLink:
    """The parent's end of the socket pair."""

    #: Called when the process says that it serves.
    on_ready: Callable[[], None]
    failure: Failure | None = None
    #: Whether the process was asked to stop. From then on it can be asked nothing more.
    is_stop_requested: bool = False
    _writer: asyncio.StreamWriter | None = None
    _pending_answers: dict[int, asyncio.Future[Answer]] = field(default_factory=dict)
    _question_count: int = 0

    async def listen(self, end: socket.socket) -> None:
        """Listen to the process until it closes its end or is gone."""
        reader, self._writer = await asyncio.open_unix_connection(sock=end, limit=_MAX_LINE_BYTES)
        if self.is_stop_requested:
            self.request_stop()
        try:
            async for line in reader:
                self._handle_message(orjson.loads(line))
        except (OSError, orjson.JSONDecodeError):
            pass  # the process was killed, maybe in the middle of an answer
        finally:
            self._writer.close()
            for pending in self._pending_answers.values():
                pending.cancel()

    async def ask(self, path: str, *, within: float) -> Answer | None:
        """Ask the process for a path; None if it does not answer within so many seconds, or has ended."""
        if self._writer is None or self._writer.is_closing() or self.is_stop_requested:
            return None
        self._question_count += 1
        number = self._question_count
        answer = self._pending_answers[number] = asyncio.get_running_loop().create_future()
        try:
            self._writer.write(_encode_line(number=number, path=path))
            await asyncio.wait([answer], timeout=within)
            return answer.result() if answer.done() and not answer.cancelled() else None
        finally:
            del self._pending_answers[number]

    def request_stop(self) -> None:
        """Ask the process to stop; a second call changes nothing."""
        self.is_stop_requested = True
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write_eof()

    def _handle_message(self, message: dict[str, Any]) -> None:
        if "ready" in message:
            self.on_ready()
        elif "may_pass" in message:
            self.failure = Failure(**message)
        elif (pending := self._pending_answers.get(message.pop("number"))) is not None and not pending.done():
            pending.set_result(Answer(**message))


def _encode_line(**message: object) -> bytes:
    return orjson.dumps(message, option=orjson.OPT_APPEND_NEWLINE)
