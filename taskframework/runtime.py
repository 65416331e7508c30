"""`TaskFramework`: opens everything in order, runs it, closes it in reverse."""

from __future__ import annotations

import contextlib
import importlib
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from types import ModuleType
from typing import Any

from taskframework import wiring
from taskframework.clock import Clock, SystemClock
from taskframework.errors import ConfigurationError, TaskframeworkError
from taskframework.events.http import HttpEvents
from taskframework.events.subscriber import EventSubscriber
from taskframework.model.scope import EVERYONE
from taskframework.model.task import Task
from taskframework.recovery.sweeper import forget_dispatches
from taskframework.settings import LoadedSettings, Settings, load_settings
from taskframework.submission.handle import TaskHandle
from taskframework.submission.service import Submission, SubmitRequest
from taskframework.tasks.executable import BackgroundTaskExecutable
from taskframework.tasks.registry import Registration, TaskRegistry
from taskframework.wiring import Desk, Plant
from taskframework.worker.containment import contained_tasks

logger = logging.getLogger(__name__)

_ONLY_THE_STORE = "This process opened the store alone, to submit; ask the one that executes."


class NotRunningError(TaskframeworkError):
    """The framework is not running."""

    hint = "Use it inside `async with framework.running():`."


class TaskFramework:
    """A configured framework with its registered task types.

    ::

        framework = TaskFramework()
        framework.register(CountWords)

        async with framework.running(worker=True):
            handle = await framework.submit(CountWords, CountWordsParameters(text="one two"))
            print(await handle.result(timeout=10))
    """

    def __init__(self, settings: Settings | LoadedSettings | None = None, *, clock: Clock | None = None) -> None:
        """Configure a framework.

        Args:
            settings: what `load_settings` or `Settings(...)` gives; without it, `application.yml` and the environment
                are read.
            clock: time, for tests.

        Raises:
            ConfigurationError: if the settings cannot be used.
        """
        chosen = settings if settings is not None else load_settings()
        self.settings = chosen.settings if isinstance(chosen, LoadedSettings) else chosen
        if not isinstance(self.settings, Settings):
            raise ConfigurationError(
                f"A TaskFramework was given a {type(settings).__name__} for its settings.",
                hint="Give Settings(...), Settings.model_validate({...}), what load_settings() gives, or nothing.",
            )
        self.registry = TaskRegistry()
        self._clock = clock or SystemClock()
        self._desk: Desk | None = None
        self._plant: Plant | None = None

    def register(
        self, executable: BackgroundTaskExecutable[Any, Any] | type[BackgroundTaskExecutable[Any, Any]]
    ) -> Registration:
        """Register an executable: an instance, or a class that needs no arguments.

        Raises:
            RegistrationError: with what is wrong about it.
        """
        return self.registry.register(executable)

    def register_module(self, module: str | ModuleType) -> Sequence[Registration]:
        """Register every concrete executable defined in a module, imported by name if need be."""
        return self.registry.register_module(importlib.import_module(module) if isinstance(module, str) else module)

    @contextlib.asynccontextmanager
    async def running(self, *, worker: bool = True, api: bool = False) -> AsyncIterator[TaskFramework]:
        """Run in this process: dispatch and repair, and on demand execute and serve HTTP.

        On SQLite or the embedded broker one process executes. Another one that neither executes nor serves HTTP opens
        the store and nothing else: what it submits, the executing process takes within a second.

        Args:
            worker: execute the registered task types; without, submit to the processes that do. With
                `worker.http_port` set, health and metrics are served there.
            api: serve the HTTP interface at `api.host` and `api.port`.

        Raises:
            StoreError: if the store cannot be opened.
            TopologyMismatchError: if a queue or exchange exists with other arguments.
            ConfigurationError: if another process executes on the same SQLite file.
        """
        if not (worker or api or wiring.is_shared(self.settings)):
            async with self.desk_only():
                yield self
            return
        server = None
        if api or self.settings.worker.http_port is not None:
            # The only reference upwards, by name and on demand: the HTTP interface is built on this class. It takes a
            # while, and so is done before there is anything that it would hold up.
            server = importlib.import_module("taskframework.api.server")
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(wiring.execution_lock(self.settings))
            stack.enter_context(contained_tasks())
            await self._open(stack, worker=worker)
            if server is not None:
                await stack.enter_async_context(server.serving(self) if api else server.serving_health(self))
            self.plant.loop_watch.start()  # now: what opening takes is nobody's fault
            stack.callback(self.plant.loop_watch.stop)
            try:
                yield self
            finally:
                self.plant.health.stopping = True

    @contextlib.asynccontextmanager
    async def desk_only(self) -> AsyncIterator[TaskFramework]:
        """Open only the store: submit, look, cancel and replay. Tasks are run by other processes."""
        async with contextlib.AsyncExitStack() as stack:
            await self._open_desk(stack, dispatches=False)
            yield self

    @property
    def is_running(self) -> bool:
        """Whether it is inside `running`, and not on its way out."""
        return self._plant is not None and not self._plant.health.stopping

    @property
    def desk(self) -> Desk:
        """The parts around the store.

        Raises:
            NotRunningError: outside of `running` and `desk_only`.
        """
        if self._desk is None:
            raise NotRunningError
        return self._desk

    @property
    def plant(self) -> Plant:
        """All parts of a running process.

        Raises:
            NotRunningError: outside of `running`, and in a process that only opened the store.
        """
        if self._plant is None:
            raise NotRunningError(None if self._desk is None else _ONLY_THE_STORE)
        return self._plant

    async def submit(
        self,
        task_type: str | type[BackgroundTaskExecutable[Any, Any]] | BackgroundTaskExecutable[Any, Any],
        parameters: Any = None,
        *,
        user_id: str | None = None,
        priority: str | None = None,
        not_before: datetime | None = None,
        deadline: datetime | None = None,
        max_attempts: int | None = None,
        idempotency_key: str | None = None,
        correlation_id: str | None = None,
    ) -> TaskHandle:
        """Submit a task; it is stored durably when this returns.

        Args:
            task_type: a type that is registered here, by its name, its class or an instance of that; or the name of one
                that a worker has declared in the store.
            parameters: what its model accepts, as JSON or as an instance.
            user_id: who owns the task.
            priority: high, normal or low.
            not_before: earliest time of the first attempt, with a time zone.
            deadline: time after which the task ends FAILED if it is not done.
            max_attempts: attempts in all.
            idempotency_key: a second submission with the same key returns the first task.
            correlation_id: carried through messages, logs and events.

        Raises:
            SubmissionError: if the request is wrong; nothing was stored.
            StoreUnavailableError: if it could not be stored.
        """
        given = {
            "user_id": user_id,
            "priority": priority,
            "not_before": not_before,
            "deadline": deadline,
            "max_attempts": max_attempts,
            "idempotency_key": idempotency_key,
            "correlation_id": correlation_id,
        }
        request = SubmitRequest(
            task_type=task_type,
            parameters=parameters,
            **{name: value for name, value in given.items() if value is not None},  # type: ignore[arg-type]  # typed above
        )
        return self._handle(await self.desk.submission.submit(request))

    async def submit_many(self, requests: Sequence[SubmitRequest]) -> list[TaskHandle | Exception]:
        """Submit many tasks at once; each has its own outcome, in the order given."""
        outcomes = await self.desk.submission.submit_many(requests)
        return [self._handle(outcome) if isinstance(outcome, Submission) else outcome for outcome in outcomes]

    def handle(self, task_id: str) -> TaskHandle:
        """A handle on a task that was submitted earlier."""
        return TaskHandle(task_id, False, self.desk.store)

    async def get(self, task_id: str) -> Task:
        """Read a task.

        Raises:
            TaskNotFoundError: if there is none.
        """
        return await self.desk.tasks.get(task_id, EVERYONE)

    def _handle(self, submission: Submission) -> TaskHandle:
        return TaskHandle(submission.task.task_id, submission.is_new, self.desk.store)

    async def _open_desk(self, stack: contextlib.AsyncExitStack, *, dispatches: bool) -> Desk:
        if self._desk is not None:
            raise ConfigurationError("This framework is running already.", hint="Make a second TaskFramework.")
        store = wiring.build_store(self.settings, self._clock)
        await store.open()
        stack.push_async_callback(store.close)
        desk = wiring.build_desk(self.settings, self.registry, self._clock, store, dispatches=dispatches)
        self._desk = desk
        stack.callback(self._forget)
        return desk

    async def _open(self, stack: contextlib.AsyncExitStack, *, worker: bool) -> None:
        """Open store, broker and repairs, then begin to consume; an exit runs it all in reverse."""
        broker = wiring.build_broker(self.settings, self._clock)
        desk = await self._open_desk(stack, dispatches=worker or broker.outlives_process)
        if not broker.outlives_process:
            await forget_dispatches(desk.store)
        await broker.open()
        stack.push_async_callback(broker.close)
        plant = wiring.build_plant(desk, broker, executes=worker)
        self._plant = plant
        await plant.topology.repair()
        stack.push_async_callback(plant.bridge.drain)
        stack.push_async_callback(plant.producer.close)
        stack.push_async_callback(desk.bus.drain)
        stack.push_async_callback(plant.breaker.stop)  # after everybody who may open it
        await wiring.take_over(desk)
        for repair in plant.repairs:
            repair.start()
            stack.push_async_callback(repair.stop)
        if self.settings.broker.dead_letter_collector:
            plant.collector.start()
            stack.push_async_callback(plant.collector.stop)
        if plant.worker is not None:
            await desk.types.declare()
            plant.worker.start(self.registry.task_types)
            stack.push_async_callback(plant.worker.stop)

    def _forget(self) -> None:
        self._desk = self._plant = None


def event_subscriber(
    url: str, *, queue: str | None = None, prefix: str = "tasks", settings: Mapping[str, Any] | None = None
) -> EventSubscriber:
    """A subscriber for a program that is not part of the installation; all it needs is a URL.

    Args:
        url: of RabbitMQ, `amqp://user:password@host:5672/vhost`; or of an `api` or `dev`, `http://localhost:8000`,
            which is the way to hear the embedded broker. Over HTTP nothing is kept: what happens while the connection
            is away is not heard.
        queue: RabbitMQ only: name of a durable queue; without it only what happens while listening is heard.
        prefix: RabbitMQ only: the installation's `broker.prefix`.
        settings: RabbitMQ only: further settings of the `broker` section.

    Raises:
        ConfigurationError: if the URL is neither, or a queue is wanted over HTTP.
    """
    if url.startswith(("http://", "https://")):
        if queue is not None:
            raise ConfigurationError(
                f"Over HTTP no queue {queue!r} keeps events while nobody listens.",
                key="queue",
                hint="Leave queue out, or give the amqp:// URL of RabbitMQ, which has durable queues.",
            )
        return EventSubscriber(HttpEvents(url), owns_broker=True)
    broker = {"url": url, "prefix": prefix, **(settings or {})}
    return wiring.build_subscriber(Settings.model_validate({"broker": broker}), SystemClock(), queue)
