"""What runs in a child process of the pool: one attempt after the other, until the parent hangs up or dies."""

from __future__ import annotations

import asyncio
import fcntl
import inspect
import logging
import logging.handlers
import multiprocessing
import os
import pickle
import signal
import socket
import struct
import sys
import threading
from multiprocessing.connection import wait
from typing import Any

from pydantic import BaseModel

from taskframework.errors import NonRetryableError
from taskframework.model.outcome import Failed, classify, describe
from taskframework.model.values import MAX_PROGRESS_BYTES, MAX_RESULT_BYTES, check_storable
from taskframework.tasks.context import TaskContext

#: Every frame, both ways, is its length and as many bytes. The parent sends requests and, without content, a cancel.
HEADER = struct.Struct("!I")
CANCEL = HEADER.pack(0)
#: A result that is larger as a pickle is certainly too large as JSON; it must not fill the parent's memory first.
_MAX_RESULT_PICKLE = 16 * MAX_RESULT_BYTES
#: For the parent only: it tells us. A handler instead of SIG_IGN, because programs we start would inherit that.
PARENTS_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def main(connection: socket.socket) -> None:
    """Serve the parent at the other end of `connection`."""
    _leave_signals_to_parent()
    _end_with_parent()
    channel = _Channel(connection)
    logging.getLogger().handlers = [_LogsToParent(channel)]
    while (request := channel.receive()) is not None:
        if request:  # else a cancel that came after the end of its attempt
            _run_attempt(channel, request)


def packed(content: Any) -> bytes:
    """A frame with a pickle."""
    payload = pickle.dumps(content, pickle.HIGHEST_PROTOCOL)
    return HEADER.pack(len(payload)) + payload


class _Channel:
    """The connection to the parent; any thread of the task code may use it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def send(self, kind: str, value: Any) -> None:
        frame = packed((kind, value))
        with self._lock:
            try:
                self._connection.sendall(frame)
            except OSError:
                os._exit(1)  # the parent is gone, and with it everybody who could want a result

    def receive(self) -> bytes | None:
        """The next frame; None at the end of the connection."""
        header = self._read(HEADER.size)
        return None if header is None else self._read(*HEADER.unpack(header))

    def has_cancel(self) -> bool:
        """Whether a cancel has come; nothing else comes while an attempt runs."""
        with self._lock:
            if not wait([self._connection], 0):
                return False
            if self.receive() is None:
                os._exit(1)
            return True

    def _read(self, count: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < count:
            part = self._connection.recv(count - len(parts))
            if not part:
                return None
            parts += part
        return bytes(parts)


class _Control:
    """`AttemptControl` of an attempt in a child process."""

    def __init__(self, channel: _Channel) -> None:
        self._channel = channel
        self._is_cancelled = False
        self.is_over = False

    @property
    def cancel_requested(self) -> bool:
        if not self._is_cancelled and not self.is_over:
            self._is_cancelled = self._channel.has_cancel()
        return self._is_cancelled

    async def report_progress(self, value: object) -> None:
        self.report_progress_soon(value)

    def report_progress_soon(self, value: object) -> None:
        plain = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
        check_storable(plain, "progress", MAX_PROGRESS_BYTES)
        if not self.is_over:  # a thread that the code left behind must not report for the next attempt
            self._channel.send("progress", plain)


class _LogsToParent(logging.handlers.QueueHandler):
    """Log lines go up: the parent knows where they belong, and its lines carry the task's ids."""

    def __init__(self, channel: _Channel) -> None:
        super().__init__(None)  # type: ignore[arg-type]  # `enqueue` is the only user of the queue
        self._channel = channel

    def enqueue(self, record: logging.LogRecord) -> None:
        self._channel.send("log", pickle.dumps(record))


def _run_attempt(channel: _Channel, request: bytes) -> None:
    control = _Control(channel)
    retry_on: tuple[type[BaseException], ...] = ()
    try:
        executable, fields, logger_name, level = pickle.loads(request)
        retry_on = executable.options.retry_on
        logging.getLogger().setLevel(level)
        context: TaskContext[Any] = TaskContext(**fields, logger=logging.getLogger(logger_name), control=control)
        result = executable.execute(context)
        if inspect.iscoroutine(result):
            result = asyncio.run(result)
    except BaseException as error:  # sys.exit() in task code ends the attempt, not this process
        control.is_over = True
        channel.send("failed", classify(error, retry_on))
    else:
        control.is_over = True
        _send_result(channel, result)


def _send_result(channel: _Channel, result: Any) -> None:
    try:
        payload = pickle.dumps(result, pickle.HIGHEST_PROTOCOL)
        if len(payload) > _MAX_RESULT_PICKLE:
            raise ValueError(f"it has {len(payload):,} bytes")
    except Exception as problem:  # pickling runs foreign code
        error = NonRetryableError(f"The result cannot be brought back from its process: {problem}")
        channel.send("failed", Failed(describe(error, False, "bad_result"), False))
    else:
        channel.send("returned", payload)


def _leave_signals_to_parent() -> None:
    """Ctrl-C and a supervisor's SIGTERM mean the parent, which lets attempts finish."""
    os.setpgid(0, 0)  # and lets the parent kill what the task code starts along with us
    for number in PARENTS_SIGNALS:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PARENTS_SIGNALS)


def _end_with_parent() -> None:
    """Let the kernel end us when the parent dies.

    A thread that waits for that could not run beside C code that keeps the interpreter lock, and a process in an
    endless match of a regular expression would outlive everybody.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    pipe = parent.sentinel
    if sys.platform != "linux":  # elsewhere SIGIO is ignored by default
        signal.signal(signal.SIGIO, lambda *_: os._exit(1))
    fcntl.fcntl(pipe, fcntl.F_SETOWN, -os.getpid())  # the group: what the task code started goes too
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    if wait([pipe], 0):
        os._exit(1)
