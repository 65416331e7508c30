"""`TaskFramework`: opens all parts in order, runs them, and closes them in reverse order."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, Unpack, overload

from taskframework.background import refuse_other_loop
from taskframework.clock import Clock, SystemClock
from taskframework.errors import ConfigurationError, NotRunningError, StoreOnlyError
from taskframework.limits.task_limits import check_limits
from taskframework.model.scope import ANONYMOUS, EVERYONE
from taskframework.model.streams import StreamKey
from taskframework.model.task import Task
from taskframework.operations.batch_handle import BatchHandle
from taskframework.operations.handle import TaskHandle
from taskframework.operations.stream_handle import StreamHandle
from taskframework.settings import LoadedSettings, Settings, load_settings
from taskframework.submission.acceptance import accept_id
from taskframework.submission.options import BatchOptions, SubmissionOptions
from taskframework.submission.parts import in_parts
from taskframework.submission.requests import BatchRequest, SubmitRequest, check_several
from taskframework.submission.types import NamingStore
from taskframework.tasks.executable import AnyExecutable
from taskframework.tasks.extensions import Extensible
from taskframework.tasks.kinds import AnyKind, AnyTaskType, KindOf, P, R, kind_of
from taskframework.tasks.registry import Registration, TaskRegistry
from taskframework.tasks.values import check_iterable
from taskframework.wiring.adapters import build_broker, build_store, execution_lock, is_shared
from taskframework.wiring.extras import require_extra, require_extras
from taskframework.wiring.store_services import StoreServices, build_store_services

if TYPE_CHECKING:  # not needed by a process that only opens the store
    from taskframework.events.subscriber import EventSubscriber
    from taskframework.stores.base import TaskStore
    from taskframework.wiring.process_services import ProcessServices


class TaskFramework(Extensible):
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
            settings: the value of `load_settings` or `Settings(...)`; without it, `application.yml` and the environment
                are read.
            clock: another clock, for tests.

        Raises:
            ConfigurationError: if the settings cannot be used, or need packages that are not installed.
        """
        super().__init__()
        chosen = settings if settings is not None else load_settings()
        self.settings = chosen.settings if isinstance(chosen, LoadedSettings) else chosen
        if not isinstance(self.settings, Settings):
            raise ConfigurationError(
                f"A TaskFramework was given a {type(settings).__name__} as its settings.",
                hint="Give Settings(...), Settings.model_validate({...}), what load_settings() gives, or nothing.",
            )
        require_extras(self.settings)
        self.registry = TaskRegistry(partial(check_limits, buckets=self.settings.rate_limiter.buckets))
        self._clock = clock or SystemClock()
        self._services: StoreServices | None = None
        self._process: ProcessServices | None = None
        #: Make the handles. The harness for tests makes others.
        self._make_handle: Callable[..., TaskHandle[Any]] = TaskHandle
        self._make_batch: Callable[..., BatchHandle[Any]] = BatchHandle

    def register(self, executable: AnyExecutable) -> Registration:
        """Register an executable: an instance, or a class that needs no arguments.

        Raises:
            RegistrationError: if the executable is wrong; also while a worker runs, which knows only earlier types.
        """
        return self.registry.register(executable)

    def register_module(self, module: str | ModuleType) -> Sequence[Registration]:
        """Register every concrete executable that a module defines; a module that is given by its name is imported."""
        return self.registry.register_module(importlib.import_module(module) if isinstance(module, str) else module)

    @contextlib.asynccontextmanager
    async def running(self, *, worker: bool = True, api: bool = False) -> AsyncIterator[TaskFramework]:
        """Run in this process: dispatch and repair, and on demand execute and serve HTTP.

        With SQLite or the embedded broker one process executes. A process that neither executes nor serves HTTP opens
        only the store; the executing process takes the tasks of such a process within a second.

        Args:
            worker: whether to execute the registered task types; if not, submit to the processes that do. If
                `worker.http_port` is set, health and metrics are served there.
            api: whether to serve the HTTP interface at `api.host` and `api.port`.

        Raises:
            StoreError: if the store cannot be opened.
            LifespanError: if a lifespan hook fails.
            TopologyMismatchError: if a queue or exchange exists with other arguments.
            ConfigurationError: if another process executes on the same SQLite file, or no hook yields the resource that
                a task type needs.
        """
        if not (worker or api or is_shared(self.settings)):
            async with self.store_only():
                yield self
            return
        # Make this now, because it imports modules: later this would block the event loop of a running worker.
        serving, require_port = _http_server(self, api=api)
        from taskframework.worker.containment import contained_tasks

        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(execution_lock(self.settings))
            stack.enter_context(contained_tasks())
            await require_port()  # before any task begins
            process = await self._open(stack, worker=worker)
            await stack.enter_async_context(serving)
            process.loop_watch.start()  # only now: opening may take long, and no task is the cause of that
            stack.callback(process.loop_watch.stop)
            try:
                yield self
            finally:
                process.health.stopping = True

    @contextlib.asynccontextmanager
    async def store_only(self) -> AsyncIterator[TaskFramework]:
        """Open only the store, to submit, show, cancel and replay tasks. Other processes run the tasks."""
        async with contextlib.AsyncExitStack() as stack:
            await self._open_store(stack, dispatches=False)
            yield self

    @property
    def is_running(self) -> bool:
        """Whether the framework is inside `running`, and not stopping."""
        return self._process is not None and not self._process.health.stopping

    @property
    def services(self) -> StoreServices:
        """The services around the store.

        Raises:
            NotRunningError: outside of `running` and `store_only`; or on another event loop than theirs.
        """
        if self._services is None:
            raise NotRunningError
        refuse_other_loop(self._services.loop)
        return self._services

    @property
    def process(self) -> ProcessServices:
        """All services of a running process.

        Raises:
            NotRunningError: outside of `running`.
            StoreOnlyError: in a process that only opened the store.
        """
        if self._process is None:
            raise NotRunningError if self._services is None else StoreOnlyError
        return self._process

    def event_subscriber(self, queue: str | None = None) -> EventSubscriber:
        """Make a subscriber for this program itself, which uses the open broker; the embedded broker works too.

        ::

            async with framework.running(), framework.event_subscriber() as subscriber:
                async for event in subscriber:
                    print(event.type, event.task_id)

        Args:
            queue: RabbitMQ only: name of a durable queue; without it, this receives only events while it listens.

        Raises:
            NotRunningError: outside of `running`.
            StoreOnlyError: in a process that only opened the store.
        """
        from taskframework.events.subscriber import EventSubscriber

        return EventSubscriber(self.process.broker, queue=queue)

    @overload
    async def submit(
        self,
        task_type: str,
        parameters: Any = None,
        *,
        user_id: str | None = None,
        **options: Unpack[SubmissionOptions],
    ) -> TaskHandle[Any]: ...
    @overload
    async def submit(
        self,
        task_type: KindOf[None, R],
        parameters: None = None,
        *,
        user_id: str | None = None,
        **options: Unpack[SubmissionOptions],
    ) -> TaskHandle[R]: ...
    @overload
    async def submit(
        self,
        task_type: KindOf[P, R],
        parameters: P,
        *,
        user_id: str | None = None,
        **options: Unpack[SubmissionOptions],
    ) -> TaskHandle[R]: ...
    async def submit(
        self,
        task_type: AnyTaskType,
        parameters: Any = None,
        *,
        user_id: str | None = None,
        **options: Unpack[SubmissionOptions],
    ) -> TaskHandle[Any]:
        """Submit a task; it is stored durably when this returns.

        Args:
            task_type: the class of the task, or an instance of the class; or the name of a type that is registered
                here, or that a worker has declared in the store.
            parameters: an instance of its model, or JSON that it accepts. With a class, type checkers want an instance.
            user_id: the owner of the task.
            options: how the task is to be done, such as `priority="high"`; `SubmissionOptions` lists all options.

        Raises:
            SubmissionError: if the request is wrong; nothing was stored.
            StoreUnavailableError: if the task could not be stored.
        """
        request = SubmitRequest(task_type=task_type, parameters=parameters, user_id=user_id, **options)
        services = self.services  # read before the task is stored: meanwhile the framework may be closed
        with NamingStore(self.settings.store.url):
            submission = await services.submission.submit(request)
        return self._make_handle(submission.task.task_id, submission.is_new, services.tasks, kind_of(task_type))

    async def submit_many(self, requests: Iterable[SubmitRequest[R]]) -> list[TaskHandle[R] | Exception]:
        """Submit many tasks at once; each has its own outcome, in the order given. Other items are a TypeError."""
        tasks, several = self.services.tasks, check_several(requests)
        outcomes = await self.services.submission.submit_many(several)
        kinds = (kind_of(request.task_type) for request in several)
        return [
            made if isinstance(made, Exception) else self._make_handle(made.task.task_id, made.is_new, tasks, kind)
            for made, kind in zip(outcomes, kinds, strict=True)
        ]

    @overload
    async def submit_batch(
        self,
        task_type: str,
        items: Iterable[Any] | AsyncIterable[Any],
        *,
        user_id: str | None = None,
        **options: Unpack[BatchOptions],
    ) -> BatchHandle[Any]: ...
    @overload
    async def submit_batch(
        self,
        task_type: KindOf[P, R],
        items: Iterable[P] | AsyncIterable[P],
        *,
        user_id: str | None = None,
        **options: Unpack[BatchOptions],
    ) -> BatchHandle[R]: ...
    async def submit_batch(
        self,
        task_type: AnyTaskType,
        items: Iterable[Any] | AsyncIterable[Any],
        *,
        user_id: str | None = None,
        **options: Unpack[BatchOptions],
    ) -> BatchHandle[Any]:
        """Submit a task for each of many items; all of them are stored durably when this returns.

        A list is checked first, and nothing is stored if one of its items is wrong. From any other iterable, items are
        taken, stored and begun one part after the other. If this fails half-way, the same submission again continues a
        batch with an `idempotency_key`; a batch without a key is cancelled.

        Args:
            task_type: as in `submit`.
            items: the parameters of each task, up to 100,000.
            user_id: the owner of the batch and its tasks.
            options: as in `submit`, for each of the tasks; `policy` says when the batch has succeeded.

        Raises:
            SubmissionError: if the request or an item is wrong.
            StoreUnavailableError: if the batch could not be stored.
        """
        request, services = BatchRequest(task_type=task_type, user_id=user_id, **options), self.services
        with NamingStore(self.settings.store.url):
            if isinstance(items := check_iterable(items), Sequence):
                submission = await services.batch_submission.submit(request, items)
            else:
                async with contextlib.aclosing(in_parts(items)) as parts:
                    submission = await services.batch_submission.upload(request, parts)
        return self._make_batch(submission.batch.task_id, submission.is_new, services.batches, kind_of(task_type))

    @overload
    def batch(self, batch_id: str) -> BatchHandle[Any]: ...
    @overload
    def batch(self, batch_id: str, kind: KindOf[Any, R]) -> BatchHandle[R]: ...
    def batch(self, batch_id: str, kind: AnyKind | None = None) -> BatchHandle[Any]:
        """Return a handle on an earlier batch; `kind` is the class of its tasks, which reads the results."""
        return self._make_batch(accept_id(batch_id, "batch_id"), False, self.services.batches, kind_of(kind))

    def stream(self, key: str, *, user_id: str | None = None) -> StreamHandle:
        """Return a handle on the ordered stream with this key; `user_id` is the owner of its tasks."""
        owner = ANONYMOUS if user_id is None else accept_id(user_id, "user_id")
        return StreamHandle(StreamKey(owner, accept_id(key, "key")), self.services.streams)

    @overload
    def handle(self, task_id: str) -> TaskHandle[Any]: ...
    @overload
    def handle(self, task_id: str, kind: KindOf[Any, R]) -> TaskHandle[R]: ...
    def handle(self, task_id: str, kind: AnyKind | None = None) -> TaskHandle[Any]:
        """Return a handle on an earlier task; `kind` is its class, which reads the result."""
        return self._make_handle(accept_id(task_id, "task_id"), False, self.services.tasks, kind_of(kind))

    async def get(self, task_id: str) -> Task:
        """Read a task.

        Raises:
            TaskNotFoundError: if there is no such task.
        """
        return await self.services.tasks.get(accept_id(task_id, "task_id"), EVERYONE)

    def _build_store(self) -> TaskStore:
        """Build the store that the settings name; the harness for tests overrides this to add faults."""
        return build_store(self.settings, self._clock)

    async def _open_store(self, stack: contextlib.AsyncExitStack, *, dispatches: bool) -> StoreServices:
        if self._services is not None:
            raise ConfigurationError("This framework is already running.", hint="Create a second TaskFramework.")
        store = self._build_store()
        await store.open()
        stack.push_async_callback(store.close)
        self._services = build_store_services(self.settings, self.registry, self._clock, store, dispatches=dispatches)
        stack.push_async_callback(self._services.buckets.close)
        stack.push_async_callback(self._services.counter.close)
        stack.callback(self._forget)
        return self._services

    async def _open(self, stack: contextlib.AsyncExitStack, *, worker: bool) -> ProcessServices:
        """Open store, broker and repairs, then begin to consume; the exit closes all in reverse order."""
        from taskframework.recovery.sweeper import forget_dispatches
        from taskframework.wiring.process import build_process_services
        from taskframework.wiring.repairs import reap_leases_on_sqlite, start_repairs
        from taskframework.wiring.worker import start_worker

        broker = build_broker(self.settings, self._clock)
        services = await self._open_store(stack, dispatches=worker or broker.outlives_process)
        if not broker.outlives_process:
            await forget_dispatches(services.store)
        await broker.open()
        stack.push_async_callback(broker.close)
        lifespans = self._enter_lifespans(self.registry, self)
        extensions = await stack.enter_async_context(lifespans) if worker else None
        process = self._process = build_process_services(services, broker, extensions)
        await process.topology.repair()
        await process.pauses.refresh()  # before any message is sent or any task begins
        # In reverse: observers may make events, and what the bridge waits for makes events and messages.
        for end in (process.producer.close, services.bus.drain, process.bridge.drain, services.bus.drain):
            stack.push_async_callback(end)
        for work in (process.cascade, process.retrier, process.spawner, process.early_signals):
            stack.push_async_callback(work.stop)
        stack.push_async_callback(process.breaker.stop)  # exits run in reverse: after every part that may open it
        await reap_leases_on_sqlite(process)
        start_repairs(process, stack, of_schedules=False)
        if process.worker is not None:  # if the start fails later; while repairs run, since one may be writing it
            stack.push_async_callback(process.worker.sign_of_life.withdraw)
        if self.settings.broker.dead_letter_collector:
            process.collector.start()
            stack.push_async_callback(process.collector.stop)
        if process.worker is not None:
            await start_worker(process.worker, services, stack)
        start_repairs(process, stack, of_schedules=True)
        return process

    def _forget(self) -> None:
        self._services = self._process = None


def _http_server(framework: TaskFramework, *, api: bool) -> tuple[Any, Callable[[], Awaitable[None]]]:
    """Return the HTTP server of a running framework, and the check of its port. Without a server both do nothing."""
    if not api and framework.settings.worker.http_port is None:
        return contextlib.nullcontext(), partial(asyncio.sleep, 0)
    require_extra("api", "Serving HTTP" if api else "worker.http_port")
    from taskframework.api.server import require_port, server_of

    return server_of(framework, api=api), partial(require_port, framework.settings, api=api)
