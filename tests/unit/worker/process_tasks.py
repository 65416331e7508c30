"""Executables for a process pool, and what they get. A module of their own: child processes import it."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel

from taskframework.errors import RetryableError
from taskframework.model.status import TaskStatus
from taskframework.model.task_fields import StepOutcome
from taskframework.tasks.context import TaskContext
from taskframework.tasks.executable import BackgroundTaskExecutable
from taskframework.tasks.options import TaskOptions
from taskframework.tasks.steps import Steps
from taskframework.tasks.subtasks import SubtaskOutcome, WantedSubtasks
from taskframework.testing.eventually import eventually
from tests.support.notebook import Notebook

logger = logging.getLogger("taskframework.task.test")


class Relatives:
    """`Family` that remembers what was planned; three sub-tasks have ended."""

    def __init__(self) -> None:
        self.planned: list[WantedSubtasks] = []
        self.error: Exception | None = None

    def plan(self, wanted: WantedSubtasks) -> Future[list[str]]:
        answer: Future[list[str]] = Future()
        if self.error is not None:
            answer.set_exception(self.error)
        else:
            first = sum(len(before.parameters) for before in self.planned)
            self.planned.append(wanted)
            answer.set_result([f"id {first + number}" for number in range(len(wanted.parameters))])
        return answer

    def outcomes(self, after_slot: int) -> Future[list[SubtaskOutcome]]:
        answer: Future[list[SubtaskOutcome]] = Future()
        slots = range(after_slot + 1, min(after_slot + 3, 3))
        answer.set_result(
            [SubtaskOutcome(slot, f"id {slot}", slot, TaskStatus.COMPLETED, slot, None) for slot in slots]
        )
        return answer


class Control:
    """`AttemptControl` that remembers."""

    def __init__(self, *earlier: StepOutcome) -> None:
        self.reported: list[Any] = []
        self.notebook = Notebook()
        self.steps = Steps(earlier, self.notebook)
        self.family = Relatives()

    @property
    def cancel_requested(self) -> bool:
        return False

    async def report_progress(self, value: object) -> None:
        self.report_progress_soon(value)

    def report_progress_soon(self, value: object) -> None:
        self.reported.append(value)

    async def find(self, key: str) -> int:
        """The value a task reported under this name."""
        found = await eventually(lambda: [value for value in self.reported if key in value], what=f"reports its {key}")
        return int(found[0][key])


def context_of(parameters: object, control: Control | None = None) -> TaskContext[Any]:
    return TaskContext(
        task_id="01K",
        task_type="some-type",
        user_id="ada",
        parameters=parameters,
        attempt=2,
        max_attempts=5,
        fencing_token=7,
        idempotency_key="key",
        correlation_id="c",
        parent_task_id=None,
        logger=logger,
        control=control or Control(),
    )


class _InProcess(BackgroundTaskExecutable[Any, Any]):
    options = TaskOptions(run_in="process")


bound: contextvars.ContextVar[str] = contextvars.ContextVar("bound", default="nothing")


class Binds(BackgroundTaskExecutable[Any, Any]):
    task_type = "binds"

    def execute(self, context: TaskContext[Any]) -> Any:
        before = bound.get()
        bound.set("what an attempt binds")
        return before


class Base(BaseModel):
    a: int


class Sub(Base):
    b: int


class TakesDays(BackgroundTaskExecutable[set[date], None]):
    task_type = "takes-days"

    def execute(self, context: TaskContext[set[date]]) -> None: ...


class TakesBase(BackgroundTaskExecutable[Base, None]):
    task_type = "takes-base"

    def execute(self, context: TaskContext[Base]) -> None: ...


class PlansObjects(BackgroundTaskExecutable[Any, Any]):
    task_type = "plans-objects"

    def execute(self, context: TaskContext[Any]) -> Any:
        days = {date(2026, 1, 2), date(2026, 1, 1)}
        return [
            *context.submit_subtasks_blocking(TakesDays, [days]),
            context.submit_subtask_blocking(TakesBase, (context.parameters and Sub(a=1, b=2)) or Base(a=1)),
        ]


class Echo(_InProcess):
    """Gives back its parameters and the process it ran in."""

    task_type = "echo"

    def execute(self, context: TaskContext[Any]) -> Any:
        return {"parameters": context.parameters, "pid": os.getpid(), "attempt": context.attempt}


class ImportSlowly(Echo):
    """Is read in the child only when `gate` exists, as if a module were imported that takes long."""

    def __init__(self, gate: Path) -> None:
        self.gate = gate

    @property
    def is_importing(self) -> Path:
        """Exists as soon as the child has begun to read."""
        return self.gate.with_name("importing")

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self.is_importing.touch()
        while not self.gate.exists():
            time.sleep(0.01)


class EchoLater(_InProcess):
    """`execute` may also return a coroutine."""

    task_type = "echo-later"

    def execute(self, context: TaskContext[Any]) -> Any:
        async def later() -> Any:
            await context.update_progress("in a coroutine")
            return context.parameters

        return later()


class QuotaExceededError(LookupError):
    """Like many exceptions, it does not survive pickling."""

    def __init__(self, used: int, *, limit: int) -> None:
        super().__init__(f"{used} of {limit} used")
        self.lock = threading.Lock()


class HonestError(QuotaExceededError):
    """Says itself that it may pass."""

    retryable = True


class Fail(_InProcess):
    """Raises what the parameters name."""

    task_type = "fail"
    options = TaskOptions(run_in="process", retry_on=(QuotaExceededError,))

    def execute(self, context: TaskContext[Any]) -> Any:
        match context.parameters:
            case "value":
                raise ValueError("not a number")
            case "later":
                raise RetryableError("busy", delay=7)
            case "quota":
                raise QuotaExceededError(11, limit=10)
            case "honest":
                raise HonestError(11, limit=10)
            case "exit":
                sys.exit("enough")
            case "progress":
                context.update_progress_soon({1, 2})
            case "result":
                return threading.Lock()
            case "large":
                return "x" * (17 * 1024 * 1024)
        return None


class Report(_InProcess):
    """Progress and log lines."""

    task_type = "report"

    def execute(self, context: TaskContext[Any]) -> Any:
        for number in range(context.parameters):
            context.update_progress_soon({"done": number})
        context.logger.info("halfway %s", os.getpid())
        context.logger.debug("below the level")


class Complain(_InProcess):
    """Logs an exception."""

    task_type = "complain"

    def execute(self, context: TaskContext[Any]) -> Any:
        try:
            raise ValueError("a bug")
        except ValueError:
            context.logger.exception("no %s", "luck", extra={"bank": "b7"})


class Hang(_InProcess):
    """Reports its process id and does not end by itself."""

    task_type = "hang"

    def execute(self, context: TaskContext[Any]) -> Any:
        context.update_progress_soon({"pid": os.getpid()})
        match context.parameters:
            case "until cancelled":
                while not context.is_cancel_requested:
                    time.sleep(0.001)
            case "loop":
                while True:
                    pass
            case "in C":  # never gives up the interpreter lock
                re.match("(a+)+$", "a" * 60 + "b")
            case "with a program":
                with subprocess.Popen(["sleep", "1000"]) as program:
                    context.update_progress_soon({"program": program.pid})


class Deaf(_InProcess):
    """Never looks whether it shall stop, and ends when the file exists that its parameters name."""

    task_type = "deaf"

    def execute(self, context: TaskContext[Any]) -> Any:
        context.update_progress_soon({"pid": os.getpid()})
        while not Path(context.parameters).exists():
            time.sleep(0.001)
        if context.parameters.endswith("fails"):
            raise ValueError("bad input")
        return "finished"


class ForgetsToWait(_InProcess):
    """Asks for a signal and goes on without it."""

    task_type = "forgets-to-wait"

    def execute(self, context: TaskContext[Any]) -> Any:
        context.wait_for(signal="approved")


class Steady(_InProcess):
    """Does one step, in the way the parameters name, and tells what it gave and how often the function was called."""

    task_type = "steady"

    def execute(self, context: TaskContext[Any]) -> Any:
        calls: list[int] = []

        def function() -> dict[str, int]:
            calls.append(1)
            return {"pid": os.getpid()}

        async def later() -> Any:
            async def function_later() -> dict[str, int]:
                return function()

            given = await asyncio.gather(context.once("$set", function_later), context.once("$set", function))
            return {"given": given, "calls": len(calls)}

        def function_heard() -> dict[str, int]:
            context.update_progress_soon("called")
            return function()

        def twice() -> Any:
            with ThreadPoolExecutor(2) as threads:
                given = [threads.submit(context.once_blocking, "$set", function_heard) for _ in range(2)]
            return {"given": [outcome.result() for outcome in given], "calls": len(calls)}

        match context.parameters:
            case "in a coroutine":
                return later()
            case "in threads":
                return twice()
            case "not a number":
                context.once_blocking("$set", lambda: float("nan"))
            case "survives everything":
                with contextlib.suppress(Exception):
                    context.once_blocking("$set", function)
            case "looks for a cancel meanwhile":
                threading.Thread(target=self._report_cancel, args=(context,)).start()
                context.once_blocking("$set", function)
        return "went on"

    @staticmethod
    def _report_cancel(context: TaskContext[Any]) -> None:
        while not context.is_cancel_requested:
            time.sleep(0.001)
        context.update_progress_soon("heard the cancel")


class LeavesAThreadBehind(_InProcess):
    """Ends while a thread of it still has a step to do."""

    task_type = "leaves-a-thread-behind"
    threads: ClassVar[list[threading.Thread]] = []
    told: ClassVar[list[str]] = []
    go_on = threading.Event()

    def execute(self, context: TaskContext[Any]) -> Any:
        if context.parameters == "begin":
            self.threads.append(threading.Thread(target=self._step, args=(context,), daemon=True))
            self.threads[0].start()
            return None
        self.go_on.set()
        self.threads[0].join()
        return self.told

    def _step(self, context: TaskContext[Any]) -> None:
        try:
            context.once_blocking("late", lambda: self.go_on.wait(20))
        except BaseException as error:
            self.told.append(type(error).__name__)


class Die(_InProcess):
    """Ends its process."""

    task_type = "die"

    def execute(self, context: TaskContext[Any]) -> Any:
        if context.parameters == "exit":
            os._exit(3)
        os.kill(os.getpid(), signal.SIGSEGV if context.parameters == "crash" else signal.SIGRTMIN + 3)


class Interrupted(_InProcess):
    """Gets the signals that a terminal and a supervisor send to all processes."""

    task_type = "interrupted"

    def execute(self, context: TaskContext[Any]) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        return {"group": os.getpgrp()}
