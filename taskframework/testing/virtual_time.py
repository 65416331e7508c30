"""A whole framework for tests, on the embedded broker and its own file, in which days pass in milliseconds."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, overload

from taskframework import failpoint
from taskframework.errors import ResultTimeoutError, StoreError, TaskFailedError
from taskframework.model.batch_status import BatchStatus
from taskframework.model.events import TaskEvent, TaskSubmittedEvent
from taskframework.model.message import rfc3339
from taskframework.model.scope import EVERYONE
from taskframework.model.status import SUCCEEDED
from taskframework.model.task import Task
from taskframework.model.view import error_view
from taskframework.model.wording import duration_text, pluralize
from taskframework.operations.batch_handle import BatchHandle
from taskframework.operations.handle import TaskHandle
from taskframework.runtime import TaskFramework
from taskframework.settings import Settings
from taskframework.stores.sqlite import SqliteStore
from taskframework.stores.sqlite.connection import Database
from taskframework.submission.schedules import parse_settings
from taskframework.tasks.executable import AnyExecutable
from taskframework.tasks.extensions import Lifespan, Middleware
from taskframework.tasks.kinds import AnyTaskType, read_result, type_name
from taskframework.testing.clock import START, FakeClock
from taskframework.testing.faults import Faults
from taskframework.testing.timeline import Timeline
from taskframework.testing.virtual_process import VirtualFramework, as_duration, id_of, settings_with, temporary_folder
from taskframework.wiring import process as _process  # noqa: F401 - imported now: on the loop it would hold that up
from taskframework.worker import containment as _containment  # noqa: F401 - as before
from taskframework.worker.worker import Worker

logger = logging.getLogger(__name__)

R = TypeVar("R")

#: Repairs, which look about once a second, find due tasks that have not begun. The first looks are made by waking the
#: repairs; for each further look so many seconds pass. A task that has not begun after all looks never will.
_MAX_WAKES, _MAX_LOOKS, _SECONDS_PER_LOOK = 3, 20, 1.25
#: How many reads of the store without a change until repairs have to look. Not seconds: a busy machine reads slowly.
_MAX_QUIET_READS = 20
#: Real seconds: between two reads, and until the test fails because it waits too long.
_POLL_SECONDS, _MAX_REAL_SECONDS = 0.0005, 30.0
_MAX_VIRTUAL_TIME = timedelta(days=3660)


class Harness:
    """A framework that runs in virtual time; see `harness`.

    Attributes:
        clock: its time; only `advance`, `result` and `finished` let it pass, also those of a handle.
        framework: the process that runs now; after a crash, another process on the same store.
        events: all events so far, in their order.
    """

    framework: TaskFramework

    def __init__(
        self, equip: Callable[[TaskFramework], None], settings: Settings, clock: FakeClock, file: Path
    ) -> None:
        """Prepare; use `harness` to get one that runs."""
        self.clock = clock
        self.events: list[TaskEvent] = []
        self._equip = equip
        self._settings = settings
        self._faults = Faults()
        #: The points at which a process will die, each with how often one has still to come there.
        self._passages_left: dict[str, int] = {}
        self._process = contextlib.AsyncExitStack()
        self._passing = asyncio.Lock()
        #: The harness's own access to the file, which no fault affects.
        self._store = SqliteStore(file, clock=clock)
        self._database = Database(file)

    @property
    def now(self) -> datetime:
        """The virtual time."""
        return self.clock.now()

    @overload
    async def finished(self, task: TaskHandle[Any] | str, within: timedelta | float = ...) -> Task: ...
    @overload
    async def finished(self, task: BatchHandle[Any], within: timedelta | float = ...) -> BatchStatus: ...
    async def finished(
        self, task: TaskHandle[Any] | BatchHandle[Any] | str, within: timedelta | float = _MAX_VIRTUAL_TIME
    ) -> Task | BatchStatus:
        """Let time pass until a task or a batch is final, however it ends.

        Args:
            task: a handle, or the id of the task.
            within: the most time that passes, as a timedelta or in seconds.

        Raises:
            AssertionError: if it is not final by then, or will not end by time alone.
        """
        found = await self._until_final(id_of(task), as_duration(within))
        return await self.framework.batch(task.batch_id).status() if isinstance(task, BatchHandle) else found

    async def result(self, task: TaskHandle[R], within: timedelta | float = _MAX_VIRTUAL_TIME) -> R:
        """Let time pass until a task is final, and give its result as `TaskHandle.result` does.

        Raises:
            TaskFailedError: if it ended without a result.
            AssertionError: as `finished`.
        """
        if isinstance(task, BatchHandle):
            raise TypeError(
                "A batch has a result for each item. Write: await running.finished(batch), then "
                "[item.result async for item in batch.results()]."
            )
        found = await self.finished(task, within)
        if found.status not in SUCCEEDED:
            raise TaskFailedError(found.task_id, found.status, error_view(found.error))
        result: R = read_result(task.kind, found.result)
        return result

    async def advance(self, duration: timedelta | float) -> None:
        """Let time pass, as a timedelta or in seconds. All work that becomes due meanwhile is done at its time."""
        await self._pass_time(self.now + as_duration(duration))

    async def crash(self) -> None:
        """Let the process die, as by `kill -9`, and start another process. Everything that was not stored is lost."""
        self._faults.is_dead = True
        await self._restart()

    def crash_at(self, point: str, *, passage: int = 1) -> None:
        """Let the process die once at a point; another process continues at the next wait of the harness. If it never
        comes to the point, the test fails at the end of the harness.

        Args:
            point: one of `taskframework.failpoint.POINTS`, such as `settle.before_write`.
            passage: 1 for the first time that the process comes to the point, 2 for the second, and so on.

        Raises:
            ValueError: if there is no such point, or no such passage.
        """
        if passage < 1:
            raise ValueError(f"passage {passage}: the first passage is 1")

        async def die() -> None:
            self._passages_left[point] -= 1
            if not self._passages_left[point]:
                del self._passages_left[point]
                failpoint.disarm(point)
                self._faults.is_dead = True
                self._faults.check()

        failpoint.arm(point, die)
        self._passages_left[point] = passage

    async def lose_leases(self) -> None:
        """Let the attempts that run now lose their leases, as in a process that was frozen: their code is stopped, and
        the tasks are tried again.

        Raises:
            AssertionError: if no attempt runs.
        """
        running = self._running_claims
        assert running, "no attempt runs"
        is_over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        failpoint.arm("heartbeat.before_write", lambda: is_over)
        try:
            while running & self._running_claims:
                self.clock.advance(1)
                await asyncio.sleep(_POLL_SECONDS)
        finally:
            failpoint.disarm("heartbeat.before_write")
            is_over.set_result(None)

    @contextlib.contextmanager
    def store_away(self) -> Iterator[None]:
        """In the block, let no call of the process reach its store: submissions fail, attempts wait."""
        self._faults.is_store_away = True
        try:
            yield
        finally:
            self._faults.is_store_away = False

    def submitted(self, task_type: AnyTaskType | None = None) -> list[Task]:
        """The submitted tasks of a type, or of all types: from the test, from a schedule or as sub-tasks."""
        name = None if task_type is None else type_name(task_type)
        tasks = [event.task for event in self.events if isinstance(event, TaskSubmittedEvent)]
        return [task for task in tasks if name in (None, task.task_type)]

    def assert_submitted(self, task_type: AnyTaskType, parameters: Any = ..., *, times: int | None = None) -> None:
        """Assert that tasks of a type were submitted.

        Args:
            task_type: the class, or the name of the type.
            parameters: count only tasks with these parameters, given as an instance or as JSON.
            times: the exact number of tasks; without it, one or more.

        Raises:
            AssertionError: with a list of all tasks that were submitted.
            UnknownTaskTypeError: if there is no such type, and no task of it.
        """
        if not (found := self.submitted(task_type)):
            self.framework.registry.require(type_name(task_type))
        if parameters is not ...:
            wanted = self.framework.registry.require(type_name(task_type)).accept(parameters)[0]
            found = [task for task in found if task.parameters == wanted]
        submissions = [(task.task_type, task.parameters) for task in self.submitted()]
        is_as_expected = bool(found) if times is None else len(found) == times
        what = f"{type_name(task_type)} was submitted {pluralize(len(found), 'time')}; there were {submissions}"
        assert is_as_expected, what

    async def story(self, task: TaskHandle[Any] | BatchHandle[Any] | str) -> list[str]:
        """The events of a task, the last 100 of them, such as `["submitted", "started", "completed"]`.

        Raises:
            AssertionError: if there is no such task.
        """
        found = await self._store.get(id_of(task), EVERYONE)
        assert found is not None, "there is no such task"
        return [entry.type for entry in found.history]

    async def _until_final(self, task_id: str, within: timedelta) -> Task:
        """Let time pass until a task or a batch is final, or fail and say why it is not."""
        found, next_due = await self._pass_time_for(task_id, within)
        if not found.status.is_final:
            because = "The test took its store away."
            if not self._faults.is_store_away:
                because = (await self.framework.services.explain.explain(task_id, EVERYONE)).cause.because
            after = "Time alone will not end it: let the test do what it waits for, then wait again."
            if next_due is not None:
                after = f"What is due next, at {rfc3339(next_due)}, is not within {duration_text(within)}."
            raise AssertionError(f"task {task_id} is {found.status} at {rfc3339(self.now)}. {because} {after}")
        return found

    async def _wait_for_handle(self, task_id: str, timeout: timedelta | float | None) -> Task:
        """Wait as the handle of a task or a batch does, but in virtual time."""
        if timeout is None:
            return await self._until_final(task_id, _MAX_VIRTUAL_TIME)
        found, _ = await self._pass_time_for(task_id, as_duration(timeout))
        if not found.status.is_final:
            raise ResultTimeoutError(task_id, found.status)
        return found

    async def _pass_time_for(self, task_id: str, within: timedelta) -> tuple[Task, datetime | None]:
        """Let time pass until a task is final; if it is not, return also when more would have been due."""

        async def is_over() -> bool:
            found = await self._store.get(task_id, EVERYONE)
            return found is not None and found.status.is_final

        next_due = await self._pass_time(self.now + within, is_over)
        found = await self._store.get(task_id, EVERYONE)
        assert found is not None, f"there is no task {task_id}"
        return found, next_due

    async def _pass_time(
        self, ends_at: datetime, is_over: Callable[[], Awaitable[bool]] | None = None
    ) -> datetime | None:
        """Let time pass, from each time at which something is due to the next one; return the next after the end."""
        async with self._passing:  # several handles may wait at once
            while True:
                timeline = await self._wait_until_idle()
                if is_over is not None and await is_over():
                    return None
                due = timeline.next_due()
                if due is None or due > ends_at:
                    if is_over is None and self.now < ends_at:
                        self.clock.advance(ends_at - self.now)
                        await self._wait_until_idle()
                    return due
                self.clock.advance(due - self.now)

    async def _wait_until_idle(self) -> Timeline:
        """Wait, in real time, until nothing is under way and nothing is due. Virtual time passes only for repairs."""
        started_at, looks, quiet_reads, last_state = time.monotonic(), 0, 0, None
        while True:
            if self._faults.is_dead:
                await self._restart()
            timeline = await Timeline.of(self._store, self._database, self.now)
            is_busy = bool(self._running_claims)
            # A task that runs without a claim here is about to begin, or was stopped and is about to be reaped.
            if not is_busy and not timeline.is_due and not timeline.is_running(self._worker.worker_id):
                return timeline
            quiet_reads += 1
            if timeline.state != last_state or is_busy:
                last_state, quiet_reads = timeline.state, 0
            elif quiet_reads > _MAX_QUIET_READS:
                if looks == _MAX_LOOKS:  # it waits for something that does not come, such as the end of a pause
                    return timeline
                if looks < _MAX_WAKES:
                    self.clock.wake(2 * _SECONDS_PER_LOOK)
                else:
                    self.clock.advance(_SECONDS_PER_LOOK)
                looks, quiet_reads = looks + 1, 0
            assert time.monotonic() - started_at < _MAX_REAL_SECONDS, (
                f"an attempt runs for more than {_MAX_REAL_SECONDS:g} real seconds"
            )
            await asyncio.sleep(_POLL_SECONDS)

    @property
    def _worker(self) -> Worker:
        worker = self.framework.process.worker
        assert worker is not None, "a harness executes"
        return worker

    @property
    def _running_claims(self) -> set[str]:
        return {attempt.fence.claim_id for attempt in self._worker.heartbeat.attempts}

    async def _restart(self) -> None:
        await self._stop()
        await self._start()

    async def _start(self) -> None:
        self._faults = Faults()
        framework = self.framework = VirtualFramework(
            self._settings, self.clock, self._faults, self.events, self._wait_for_handle
        )
        self._equip(framework)
        await self._process.enter_async_context(framework.running())

    async def _stop(self) -> None:
        process, self._process = self._process, contextlib.AsyncExitStack()
        try:
            await process.aclose()
        except StoreError as error:
            if not self._faults.is_dead:
                raise
            logger.debug("a process that died could not write any more: %s", error)

    @contextlib.asynccontextmanager
    async def _open(self) -> AsyncIterator[Harness]:
        async with contextlib.AsyncExitStack() as stack:
            await self._start()
            stack.push_async_callback(self._stop)
            for own in (self._store, self._database):
                await own.open()
                stack.push_async_callback(own.close)
            try:
                yield self
                missed = ", ".join(self._passages_left)
                assert not missed, f"crash_at: the process never came to {missed}"
            finally:
                failpoint.disarm()
                self._faults.is_store_away = False


@contextlib.asynccontextmanager
async def harness(
    *tasks: AnyExecutable,
    start: datetime = START,
    middleware: Sequence[Middleware] = (),
    lifespans: Sequence[Lifespan] = (),
    resources: Sequence[object] = (),
    **sections: dict[str, Any],
) -> AsyncIterator[Harness]:
    """Run a framework for a test: with a worker, repairs and schedules, in virtual time.

    ::

        async with harness(CountWords, retry={"initial_delay": "6h"}) as running:
            handle = await running.framework.submit(CountWords, CountWordsParameters(text="one two"))
            assert await running.result(handle) == CountWordsResult(words=2)

    Args:
        tasks: the task types to register.
        start: the time at which virtual time begins, with a time zone.
        middleware: around every attempt; the first one is outermost.
        lifespans: hooks of the worker; after a crash they are entered again.
        resources: more resources that code can ask for: objects, or doubles of a subclass.
        sections: sections of the settings, as in `application.yml`; the addresses of store and broker do not count.

    Raises:
        RegistrationError: if one of the tasks is not a task type.
        ConfigurationError: if the settings cannot be used, or a task wants a resource that nothing gives.
        UnknownTaskTypeError: if a schedule in the settings has a task type that is not among `tasks`.
        LifespanError: if a hook fails.
    """

    def equip(framework: TaskFramework) -> None:
        for task in tasks:
            framework.register(task)
        for item in middleware:
            framework.use(item)
        for hook in lifespans:
            framework.lifespan(hook)
        for given in resources:
            framework.lifespan(partial(contextlib.nullcontext, given))

    async with temporary_folder() as folder:
        file = folder / "tasks.db"
        async with Harness(equip, settings_with(sections, file), FakeClock(start), file)._open() as running:
            for schedule in parse_settings(running.framework.settings.schedules.named).values():
                running.framework.registry.require(schedule.task_type)
            yield running
