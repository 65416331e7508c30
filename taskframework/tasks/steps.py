"""Steps that are done once: the code behind `TaskContext.once` and `once_blocking`, for any event loop and thread."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import orjson

from taskframework.background import current_loop
from taskframework.errors import ValueNotStorableError
from taskframework.model.task_fields import StepOutcome
from taskframework.model.values import MAX_STEP_BYTES, MAX_STEP_NAME_LENGTH, MAX_STEPS, MAX_STEPS_BYTES, Json
from taskframework.tasks.values import to_storable_json


class Recorder(Protocol):
    """Writes the outcome of a step into the task."""

    @property
    def is_open(self) -> bool:
        """Whether a step may still begin: not when the lease is lost or the attempt is over."""
        ...

    def record(self, outcome: StepOutcome) -> Future[StepOutcome | None]:
        """Begin to write an outcome; from any thread, without waiting.

        Returns:
            A future with the recorded outcome of the step. None: the lease was lost, and the outcome is not stored.
        """
        ...


@dataclass(slots=True)
class _Run:
    """A step under way in this attempt."""

    step: str
    #: The asyncio task or thread that runs the function, until that has ended.
    caller: object
    ended: Future[None] = field(default_factory=Future)
    #: Why the step has no outcome.
    problem: BaseException | None = None


class Steps:
    """The steps of one attempt: done in an earlier attempt, done in this attempt, or running now."""

    def __init__(self, earlier: Sequence[StepOutcome], recorder: Recorder) -> None:
        """Start an attempt; `earlier` is what the attempts before it recorded."""
        self.earlier = tuple(earlier)
        self.recorder = recorder
        # As JSON text: each caller gets its own copy, equal to what a later attempt gets.
        self._outcomes = {entry.step: orjson.dumps(entry.outcome) for entry in earlier}
        self._bytes = sum(_size(step, encoded) for step, encoded in self._outcomes.items())
        self._active_runs: dict[str, _Run] = {}
        self._lock = threading.Lock()

    async def once(self, step: str, function: Callable[[], Awaitable[Any] | Any], *, item: int | None = None) -> Json:
        """`TaskContext.once`; `item` is the item of a chunk to which the step belongs."""
        _check_function(step, function)
        step = _name_of(step, item)
        while not isinstance(entered := self._enter(step, asyncio.current_task()), bytes):
            run, must_run = entered
            if must_run:
                with self._ending_on_failure(run):
                    outcome = function()
                    self._record(run, await outcome if inspect.isawaitable(outcome) else outcome)
            # Shielded: a caller that is cancelled must not interrupt the write.
            await asyncio.shield(asyncio.wrap_future(run.ended))
            if must_run and run.problem is not None:
                raise run.problem
        return orjson.loads(entered)

    def once_blocking(
        self, step: str, function: Callable[[], Awaitable[Any] | Any], *, item: int | None = None
    ) -> Json:
        """`TaskContext.once_blocking`; `item` as in `once`."""
        refuse_on_event_loop("once_blocking", "await context.once(...)")
        _check_function(step, function)
        step = _name_of(step, item)
        while not isinstance(entered := self._enter(step, threading.get_ident()), bytes):
            run, must_run = entered
            if must_run:
                with self._ending_on_failure(run):
                    outcome = function()
                    self._record(run, asyncio.run(_awaited(outcome)) if inspect.isawaitable(outcome) else outcome)
            run.ended.result()
            if must_run and run.problem is not None:
                raise run.problem
        return orjson.loads(entered)

    def _enter(self, step: str, caller: object) -> bytes | tuple[_Run, bool]:
        """The outcome if it is recorded; otherwise the run to wait for, and whether the caller has to do it."""
        with self._lock:
            if (encoded := self._outcomes.get(step)) is not None:
                return encoded
            if (run := self._active_runs.get(step)) is not None:
                if run.caller == caller:
                    raise RuntimeError(f"The function of step {step!r} waits for the same step.")
                return run, False
            if not self.recorder.is_open:
                raise asyncio.CancelledError(f"The attempt lost its lease or has ended; step {step!r} is not started.")
            if len(self._outcomes) + len(self._active_runs) >= MAX_STEPS:
                raise ValueNotStorableError(f"step {step!r}", f"the task has {MAX_STEPS:,} steps, the limit")
            run = self._active_runs[step] = _Run(step, caller)
            return run, True

    @contextmanager
    def _ending_on_failure(self, run: _Run) -> Iterator[None]:
        """End the run if its function fails; then a caller that waits for it does the step itself."""
        try:
            yield
        except BaseException:
            self._end(run)
            raise

    def _record(self, run: _Run, outcome: object) -> None:
        encoded = orjson.dumps(to_storable_json(outcome, f"outcome of step {run.step!r}", MAX_STEP_BYTES))
        size = _size(run.step, encoded)
        with self._lock:
            if self._bytes + size > MAX_STEPS_BYTES:
                reason = f"the steps of the task have more than {MAX_STEPS_BYTES:,} bytes then, the limit"
                raise ValueNotStorableError(f"outcome of step {run.step!r}", reason)
            self._bytes += size
            run.caller = None
        recording = self.recorder.record(StepOutcome(run.step, orjson.loads(encoded)))
        recording.add_done_callback(partial(self._on_recorded, run, size))

    def _on_recorded(self, run: _Run, size: int, recording: Future[StepOutcome | None]) -> None:
        run.problem = recording.exception()
        recorded = None if run.problem else recording.result()
        with self._lock:
            if recorded is not None:
                self._outcomes[run.step] = orjson.dumps(recorded.outcome)
            else:
                self._bytes -= size
        if recorded is None and run.problem is None:
            # Not an `Exception`: code that catches exceptions must not continue as if the step were recorded.
            run.problem = asyncio.CancelledError(f"The lease was lost before step {run.step!r} was recorded.")
        self._end(run)

    def _end(self, run: _Run) -> None:
        with self._lock:
            del self._active_runs[run.step]
        run.ended.set_result(None)


def _size(step: str, encoded: bytes) -> int:
    return len(step.encode()) + len(encoded)


def _check_function(step: str, function: object) -> None:
    if callable(function):
        return
    if inspect.iscoroutine(function):
        function.close()  # otherwise Python warns of it, and names a line of the framework
    raise TypeError(
        f"step {step!r} is given a {type(function).__name__}, not a function: write once({step!r}, function) without "
        f"calling the function, or once({step!r}, lambda: function(...))"
    )


def _name_of(step: str, item: int | None) -> str:
    """The name of a step within the task. It names the item, because two items of a chunk may use the same name."""
    _check_name(step)
    return step if item is None else f"{item}/{step}"


def _check_name(step: str) -> None:
    if not isinstance(step, str):
        raise ValueNotStorableError("name of a step", f"it is of type {type(step).__name__}, not a text")
    if not 1 <= len(step) <= MAX_STEP_NAME_LENGTH or not step.isprintable():
        reason = f"{step[:MAX_STEP_NAME_LENGTH]!r} is not 1 to {MAX_STEP_NAME_LENGTH} printable characters"
        raise ValueNotStorableError("name of a step", reason)


def refuse_on_event_loop(blocking: str, instead: str) -> None:
    """Refuse a call that would make an event loop wait.

    Raises:
        RuntimeError: if the call comes from an event loop.
    """
    if current_loop() is not None:
        raise RuntimeError(f"{blocking} would block the event loop; use `{instead}` here.")


async def _awaited(outcome: Awaitable[Any]) -> Any:
    return await outcome
