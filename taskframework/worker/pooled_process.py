"""One process of the pool, as the worker sees it; `process_child` is the other side."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import multiprocessing
import os
import pickle
import signal
import socket
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from typing import Any, Self

from taskframework.background import in_own_thread
from taskframework.errors import NonRetryableError, StoreError, TaskframeworkError
from taskframework.model.outcome import Failed
from taskframework.tasks.context import AttemptControl, TaskContext
from taskframework.tasks.executable import BackgroundTaskExecutable
from taskframework.tasks.stages import Call
from taskframework.worker import process_child
from taskframework.worker.process_child import PARENTS_SIGNALS
from taskframework.worker.questions import answer_question

#: Seconds that a child has to import the modules of an attempt. Only after this the attempt's own timeout begins.
_IMPORT_TIMEOUT_SECONDS = 300.0
#: Seconds that an idle child has to end by itself.
_EXIT_TIMEOUT_SECONDS = 1.0
#: In both directions a frame is a length and then as many bytes: a pickled pair of kind and content. In the child
#: `multiprocessing.Connection` reads and writes the frames; here the event loop reads and writes them.
_HEADER = struct.Struct("!i")
_GUARD = "A program that starts itself when it is imported needs `if __name__ == '__main__':`."
logger = logging.getLogger(__name__)
_spawning = multiprocessing.get_context("spawn")
#: Whenever multiprocessing starts a child, it reaps all ended children. Two threads must not reap the same child.
_process_table = threading.Lock()


class ProcessDiedError(TaskframeworkError):
    """The process of an attempt died."""

    retryable = True
    hint = "Look for os._exit, a crash in native code, or the system's out-of-memory killer."


class ExecutionFailedError(TaskframeworkError):
    """The task code failed. `outcome` describes the exception: it may exist only in a child process, and one such as
    SystemExit would end the worker if it were raised again.
    """

    def __init__(self, outcome: Failed) -> None:
        super().__init__(f"{outcome.error.type}: {outcome.error.message}")
        self.outcome = outcome
        self.retryable = outcome.retryable


class Child:
    """A child process and the connection to it."""

    def __init__(self, process: SpawnProcess, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._is_busy = False
        #: Whether it has imported the program.
        self._is_ready = False
        #: Whether the code of the newest attempt has read that it shall stop: then what it returns is no result.
        self.has_seen_stop = False
        self._ending: asyncio.Task[int | None] | None = None

    @classmethod
    async def start(cls) -> Self:
        process, connection = await in_own_thread(_spawn)
        return cls(process, *await asyncio.open_unix_connection(sock=connection))

    @property
    def is_free(self) -> bool:
        return not (self._is_busy or self._ending or self._reader.at_eof())

    async def run(self, request: bytes, control: AttemptControl, on_start: Callable[[], None]) -> Any:
        self._is_busy, self.has_seen_stop = True, False
        try:
            async with asyncio.timeout(_IMPORT_TIMEOUT_SECONDS) as importing:
                self._writer.write(request)
                await self._writer.drain()
                return await self._read_until_result(control, partial(_start_code, importing, on_start))
        except TimeoutError:
            await self.end()
            raise ProcessDiedError(
                f"The process of the attempt was still importing after {_IMPORT_TIMEOUT_SECONDS:g} s.",
                hint="Look at what its modules do while they are imported.",
            ) from None
        except (EOFError, OSError):
            self._is_busy = False  # it is ending: give it the time to say how
            code = await self.end()
            end = f"The process of the attempt {_describe_exit(code)}"
            if self._is_ready or code is None or code < 0:
                raise ProcessDiedError(f"{end}.") from None
            raise ProcessDiedError(f"{end} while it imported the program. {_GUARD}", hint="See its output.") from None

    async def _read_until_result(self, control: AttemptControl, begin: Callable[[], None]) -> Any:
        while True:
            (size,) = _HEADER.unpack(await self._reader.readexactly(_HEADER.size))
            kind, value = pickle.loads(await self._reader.readexactly(size))
            match kind:
                case "ready":
                    self._is_ready = True
                case "begun":
                    begin()
                case "progress":
                    control.report_progress_soon(value)
                case "ask":
                    number, question = value
                    # Not awaited, because further frames of the child must not wait for the store.
                    answer_question(control, question).add_done_callback(partial(self._send_answer, number))
                case "log":
                    _log(value)
                case "seen_stop":
                    self.has_seen_stop = True
                case "failed":
                    self._is_busy = False
                    raise ExecutionFailedError(value)
                case "returned":
                    self._is_busy = False
                    return _load_result(value)

    def cancel(self) -> None:
        """Make `is_cancel_requested` true in the child."""
        self._writer.write(_pack("cancel"))

    def _send_answer(self, number: int, answer: Future[Any]) -> None:
        error = answer.exception()
        if error is not None and not isinstance(error, (TaskframeworkError, TypeError, asyncio.CancelledError)):
            error = StoreError(str(error))  # other errors, such as those of a driver, may not survive pickling
        self._writer.write(_pack("answer", (number, None if error else answer.result(), error)))

    async def end(self) -> int | None:
        """End the child, at once if it is busy, and return its exit code when it has ended."""
        if self._ending is None:
            self._writer.close()
            timeout = 0.0 if self._is_busy else _EXIT_TIMEOUT_SECONDS
            self._ending = asyncio.create_task(in_own_thread(partial(_reap, self._process, timeout)))
        return await asyncio.shield(self._ending)

    def kill(self) -> None:
        _kill(self._process)


def _start_code(importing: asyncio.Timeout, on_start: Callable[[], None]) -> None:
    importing.reschedule(None)
    on_start()


def _pack(kind: str, content: Any = None) -> bytes:
    payload = pickle.dumps((kind, content), pickle.HIGHEST_PROTOCOL)
    return _HEADER.pack(len(payload)) + payload


def pack_request(executable: BackgroundTaskExecutable[Any, Any], call: Call, context: TaskContext[Any]) -> bytes:
    names = {field.name for field in dataclasses.fields(context)} - {"logger", "control"}
    # Without the notes of which methods were called: the child begins its own.
    fields = {name: getattr(context, name) for name in names if not name.startswith("_")}
    try:
        content = (
            executable,
            call,
            fields,
            context.control.steps.earlier,
            context.logger.name,
            context.logger.getEffectiveLevel(),
        )
        return _pack("run", pickle.dumps(content, pickle.HIGHEST_PROTOCOL))
    except Exception as error:  # pickling runs foreign code
        raise NonRetryableError(
            f"Task type {context.task_type!r} cannot run in a process of its own: {error}. Executables and parameters "
            "are pickled: define their classes at the top level of a module and keep connections and locks out of them."
        ) from error


def _load_result(payload: bytes) -> Any:
    try:
        return pickle.loads(payload)
    except Exception as error:  # unpickling runs foreign code
        raise NonRetryableError(f"The result cannot be brought back from its process: {error}") from error


def _log(payload: bytes) -> None:
    """Log a record of the child here, in the context of the attempt, which adds the ids of the task."""
    try:
        record: logging.LogRecord = pickle.loads(payload)
    except Exception as error:  # an object in `extra` that exists in the child only
        logger.warning("a log line of a child process cannot be shown: %s", error)
        return
    target = logging.getLogger(record.name)
    if target.isEnabledFor(record.levelno):
        target.handle(record)


def retrieve_exception(attempt: asyncio.Future[Any]) -> None:
    """Fetch the error of a future that nobody may await any more, so that asyncio does not complain about it."""
    if not attempt.cancelled():
        attempt.exception()


def _spawn() -> tuple[SpawnProcess, socket.socket]:
    parent_socket, child_socket = socket.socketpair()
    process = _spawning.Process(target=process_child.main, args=(child_socket,), name="taskframework-task")
    with child_socket, _process_table:
        resource_tracker.ensure_running()  # start it before: its start would unblock the signals
        # Block the signals: a Ctrl-C while the child still imports would end the child with a traceback.
        blocked_before = signal.pthread_sigmask(signal.SIG_BLOCK, PARENTS_SIGNALS)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked_before)
    return process, parent_socket


def _reap(process: SpawnProcess, timeout: float) -> int | None:
    ended = timeout > 0 and wait([process.sentinel], timeout)
    with _process_table:
        if not ended:
            _kill(process)
        process.join()
        code = process.exitcode
        process.close()
    return code


def _kill(process: SpawnProcess) -> None:
    """Kill the child's process group: the child, and the programs that the task code started and left behind."""
    if (number := process.pid) is not None:
        try:
            os.killpg(number, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):  # the child has no group yet, or is dead
            process.kill()


def _describe_exit(code: int | None) -> str:
    if code is None:
        return "died"
    if code >= 0:
        return f"ended with exit code {code}"
    names = {int(number): number.name for number in signal.Signals}  # real-time signals have no names
    return f"was killed by {names.get(-code, f'signal {-code}')}"
