"""The program of a child process of the pool: runs one attempt after the other, until the parent hangs up or dies."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import fcntl
import inspect
import itertools
import logging
import logging.handlers
import multiprocessing
import os
import pickle
import queue
import signal
import socket
import sys
import threading
from concurrent.futures import Future
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any

from taskframework.errors import NonRetryableError
from taskframework.model.outcome import Errors, classify, failure
from taskframework.model.task_fields import StepOutcome
from taskframework.model.values import MAX_PROGRESS_BYTES, MAX_RESULT_BYTES
from taskframework.tasks.by_class import accept_by_class
from taskframework.tasks.context import TaskContext
from taskframework.tasks.executable import BackgroundTaskExecutable
from taskframework.tasks.kinds import type_name
from taskframework.tasks.stages import Call
from taskframework.tasks.steps import Steps
from taskframework.tasks.subtasks import Family, SubtaskOutcome, WantedSubtasks, adding_number_to_errors
from taskframework.tasks.values import to_storable_json
from taskframework.telemetry import log_structlog_by_logging, log_threads
from taskframework.worker.attempt_outcome import refuse_forgotten_calls
from taskframework.worker.forks import ForkedProcessesEnd
from taskframework.worker.questions import Question, ReadOutcomes

#: A result with a larger pickle is certainly too large as JSON. Refusing it here keeps it out of the parent's memory.
_MAX_RESULT_PICKLE_BYTES = 16 * MAX_RESULT_BYTES
#: Signals that only the parent handles; it then informs the child. Here they get a handler that does nothing, and not
#: SIG_IGN, because programs that task code starts would inherit SIG_IGN.
PARENTS_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_FORMATTER = logging.Formatter()


def main(connection: socket.socket) -> None:
    """Serve the parent at the other end of `connection`."""
    _leave_signals_to_parent()
    _die_with_parent()
    channel = _Channel(connection)
    channel.send("ready", None)
    logging.getLogger().handlers = [_ParentLogHandler(channel)]
    log_structlog_by_logging()
    logging.captureWarnings(True)
    log_threads()
    while (request := channel.requests.get()) is not None:
        _run_attempt(channel, request)


class _Channel:
    """The connection to the parent; any thread of the task code may use it.

    A separate thread listens, because one part of the code may wait for an answer while another looks for a cancel.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = Connection(connection.detach())
        self._sending = threading.Lock()
        self._numbers = itertools.count()
        self._pending_answers: dict[int, Future[Any]] = {}
        #: The attempts to run; None after the last one.
        self.requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        #: Whether the newest attempt was asked to stop.
        self.is_cancelled = False
        threading.Thread(target=self._listen, name="taskframework-channel", daemon=True).start()

    def send(self, kind: str, content: Any) -> None:
        payload = pickle.dumps((kind, content), pickle.HIGHEST_PROTOCOL)
        with self._sending:
            try:
                self._connection.send_bytes(payload)
            except OSError:
                os._exit(1)  # the parent is gone, so nobody needs a result any more

    def ask(self, question: Question) -> Future[Any]:
        """Ask the parent to do something that needs the store."""
        answer: Future[Any] = Future()
        number = next(self._numbers)
        self._pending_answers[number] = answer
        self.send("ask", (number, question))
        return answer

    def _listen(self) -> None:
        while (payload := self._receive()) is not None:
            match pickle.loads(payload):
                case "run", request:
                    self.is_cancelled = False
                    self.requests.put(request)
                case "cancel", _:
                    self.is_cancelled = True
                case "answer", (number, result, error):
                    pending = self._pending_answers.pop(number)
                    if error is None:
                        pending.set_result(result)
                    else:
                        pending.set_exception(error)
        if self._pending_answers:
            os._exit(1)  # the parent is gone, and nothing else could answer
        self.requests.put(None)

    def _receive(self) -> bytes | None:
        """The next frame; None at the end of the connection."""
        try:
            return self._connection.recv_bytes()
        except (EOFError, ConnectionError):  # the parent hung up, maybe before it had read everything
            return None


class _Control:
    """`AttemptControl` of an attempt in a child process, with the `Recorder` of its steps and its `Family`."""

    def __init__(self, channel: _Channel) -> None:
        self._channel = channel
        self._sending = threading.Lock()
        self._is_cancelled = False
        self._is_over = False
        self._is_lost = False
        self.steps = Steps((), self)

    @property
    def cancel_requested(self) -> bool:
        with self._sending:
            if self._channel.is_cancelled and not (self._is_over or self._is_cancelled):
                self._is_cancelled = True
                self._channel.send("seen_stop", None)
        return self._is_cancelled

    @property
    def is_open(self) -> bool:
        return not (self._is_over or self._is_lost)

    def record(self, outcome: StepOutcome) -> Future[StepOutcome | None]:
        if (answer := self._ask(outcome)) is not None:
            answer.add_done_callback(self._note_lost_lease)
            return answer
        unrecorded: Future[StepOutcome | None] = Future()
        unrecorded.set_result(None)
        return unrecorded

    @property
    def family(self) -> Family:
        return self

    def plan(self, wanted: WantedSubtasks) -> Future[list[str]]:
        # Send only a name and plain JSON: the parent may not have the class of the author's object.
        stored = []
        for number, parameters in wanted.numbered():
            with adding_number_to_errors(number):
                stored.append(accept_by_class(wanted.task_type, parameters))
        name = type_name(wanted.task_type)
        return self._ask(replace(wanted, task_type=name, parameters=tuple(stored))) or _failed_answer()

    def outcomes(self, after_slot: int) -> Future[list[SubtaskOutcome]]:
        return self._ask(ReadOutcomes(after_slot)) or _failed_answer()

    async def report_progress(self, value: object) -> None:
        self.report_progress_soon(value)

    def report_progress_soon(self, value: object) -> None:
        stored = to_storable_json(value, "progress", MAX_PROGRESS_BYTES)
        with self._sending:
            if not self._is_over:
                self._channel.send("progress", stored)

    def end(self) -> None:
        """Stop reporting: a thread that the code left behind must not report for the next attempt."""
        with self._sending:
            self._is_over = True

    def _ask(self, question: Question) -> Future[Any] | None:
        with self._sending:
            return None if self._is_over else self._channel.ask(question)

    def _note_lost_lease(self, answer: Future[StepOutcome | None]) -> None:
        self._is_lost = self._is_lost or (answer.exception() is None and answer.result() is None)


def _failed_answer() -> Future[Any]:
    answer: Future[Any] = Future()
    answer.set_exception(asyncio.CancelledError("The attempt has ended."))
    return answer


class _ParentLogHandler(logging.handlers.QueueHandler):
    """Sends log records to the parent, whose log configuration and task ids apply to them."""

    def __init__(self, channel: _Channel) -> None:
        super().__init__(None)  # type: ignore[arg-type]  # `enqueue` is the only user of the queue
        self._channel = channel

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Return a record that can be pickled. Its text and its traceback stay separate: the parent joins them."""
        sent = copy.copy(record)
        sent.msg, sent.args, sent.exc_info = record.getMessage(), (), None
        if record.exc_info:
            sent.exc_text = _FORMATTER.formatException(record.exc_info)
        return sent

    def enqueue(self, record: logging.LogRecord) -> None:
        self._channel.send("log", pickle.dumps(record))


def _call(call: Call, executable: BackgroundTaskExecutable[Any, Any], context: TaskContext[Any]) -> Any:
    with ForkedProcessesEnd():
        result = call.make(executable, context)
        return asyncio.run(result) if inspect.iscoroutine(result) else result


def _run_attempt(channel: _Channel, request: bytes) -> None:
    control = _Control(channel)
    retry_on: Errors = ()
    try:
        executable, call, fields, steps, logger_name, level = pickle.loads(request)
        control.steps = Steps(steps, control)
        retry_on = executable.options.retry_on
        logging.getLogger().setLevel(level)
        context: TaskContext[Any] = TaskContext(**fields, logger=logging.getLogger(logger_name), control=control)
        channel.send("begun", None)  # unpickling the request has imported the author's modules
        # In a context of its own: what the code binds to its log lines must not reach the next attempt.
        result = contextvars.copy_context().run(_call, call, executable, context)
        refuse_forgotten_calls(context, result)
    except BaseException as error:  # sys.exit() in task code ends the attempt, not this process
        control.end()
        channel.send("failed", classify(error, retry_on))
    else:
        control.end()
        _send_result(channel, result)


def _send_result(channel: _Channel, result: Any) -> None:
    try:
        payload = pickle.dumps(result, pickle.HIGHEST_PROTOCOL)
        if len(payload) > _MAX_RESULT_PICKLE_BYTES:
            raise ValueError(f"it has {len(payload):,} bytes")
    except Exception as problem:  # pickling runs foreign code
        error = NonRetryableError(f"The result cannot be brought back from its process: {problem}")
        channel.send("failed", failure(error, "bad_result"))
    else:
        channel.send("returned", payload)


def _leave_signals_to_parent() -> None:
    """Ignore Ctrl-C and a supervisor's SIGTERM: they are meant for the parent, which lets attempts finish."""
    os.setpgid(0, 0)  # so the parent can also kill this child together with the programs that task code starts
    for number in PARENTS_SIGNALS:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PARENTS_SIGNALS)


def _die_with_parent() -> None:
    """Let the kernel end this process when the parent dies.

    A thread that waits for the parent's death could not run beside C code that keeps the interpreter lock. Then a
    process in an endless match of a regular expression would never end.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    pipe = parent.sentinel
    if sys.platform != "linux":  # elsewhere SIGIO is ignored by default
        signal.signal(signal.SIGIO, lambda *_: os._exit(1))
    fcntl.fcntl(pipe, fcntl.F_SETOWN, -os.getpid())  # the group, to end the programs that task code started too
    fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
    if wait([pipe], 0):
        os._exit(1)
