"""`SyncTaskFramework`: for Flask, Django, and scripts."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from types import ModuleType, TracebackType
from typing import Any, Self, TypeVar, Unpack, overload

from taskframework.blocking.handles import SyncBatchHandle, SyncTaskHandle
from taskframework.blocking.thread import FrameworkThread
from taskframework.model.task import Task
from taskframework.operations.handle import TaskHandle
from taskframework.runtime import TaskFramework
from taskframework.settings import LoadedSettings, Settings
from taskframework.submission.options import BatchOptions, SubmissionOptions
from taskframework.submission.requests import SubmitRequest
from taskframework.tasks.executable import AnyExecutable
from taskframework.tasks.kinds import AnyKind, AnyTaskType, KindOf, P
from taskframework.tasks.registry import Registration
from taskframework.tasks.values import check_iterable

R = TypeVar("R")
T = TypeVar("T")


class SyncTaskFramework:
    """`TaskFramework` for programs without asyncio::

        tasks = SyncTaskFramework()

        handle = tasks.submit("count-words", {"text": "one two"})
        print(handle.result(timeout=30))

    It runs on an event loop in a thread of its own, from the first call until `close` or the end of the program. Any
    number of threads may share it. A process may be forked before the first call, as gunicorn does with `preload_app`:
    then each process opens its own framework.
    """

    def __init__(
        self,
        settings: Settings | LoadedSettings | None = None,
        *,
        framework: TaskFramework | None = None,
        worker: bool = False,
    ) -> None:
        """Configure it; nothing is opened before the first call.

        Args:
            settings: as for `TaskFramework`.
            framework: a framework to run instead of a new one, with its own task types and settings.
            worker: whether this process executes tasks, too.

        Raises:
            ConfigurationError: if the settings cannot be used.
        """
        #: The framework that runs in the thread. Its coroutines must be called through `run`.
        self.framework = framework or TaskFramework(settings)
        self._thread = FrameworkThread(self.framework, worker=worker)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        """Open the framework now, so that a program shows errors at its start.

        Raises:
            OpenedBeforeForkError: in a process that was forked after it was opened.
            TaskframeworkError: as `TaskFramework.running`.
        """
        self._thread.open()

    def close(self) -> None:
        """Close the framework; a later call opens it again. The end of the program closes it, too."""
        self._thread.close()

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Let `framework` run any other coroutine, and wait until it is done::

            tasks.run(lambda: tasks.framework.stream("cart-7").status())

        Args:
            work: returns the coroutine.

        Raises:
            OpenedBeforeForkError: in a process that was forked after it was opened.
            BeingClosedError: while another thread is closing it.
            ClosedMeanwhileError: if it was closed before the work was done.
            RuntimeError: if it is called on an event loop, which must not wait.
            Exception: whatever the work raises.
        """
        return self._thread.run(work)

    def register(self, executable: AnyExecutable) -> Registration:
        """`TaskFramework.register`; a process that only submits needs it only to check parameters by a type's model."""
        return self.framework.register(executable)

    def register_module(self, module: str | ModuleType) -> Sequence[Registration]:
        """`TaskFramework.register_module`."""
        return self.framework.register_module(module)

    @overload
    def submit(
        self,
        task_type: str,
        parameters: Any = None,
        *,
        user_id: str | None = None,
        **options: Unpack[SubmissionOptions],
    ) -> SyncTaskHandle[Any]: ...
    @overload
    def submit(
        self,
        task_type: KindOf[None, R],
        parameters: None = None,
        *,
        user_id: str | None = None,
        **options: Unpack[SubmissionOptions],
    ) -> SyncTaskHandle[R]: ...
    @overload
    def submit(
        self,
        task_type: KindOf[P, R],
        parameters: P,
        *,
        user_id: str | None = None,
        **options: Unpack[SubmissionOptions],
    ) -> SyncTaskHandle[R]: ...
    def submit(
        self,
        task_type: AnyTaskType,
        parameters: Any = None,
        *,
        user_id: str | None = None,
        **options: Unpack[SubmissionOptions],
    ) -> SyncTaskHandle[Any]:
        """`TaskFramework.submit`: the task is stored durably when this returns."""
        submit: Any = self.framework.submit  # the overloads are above
        handle = self.run(lambda: submit(task_type, parameters, user_id=user_id, **options))
        return SyncTaskHandle(handle, self._thread)

    def submit_many(self, requests: Iterable[SubmitRequest[R]]) -> list[SyncTaskHandle[R] | Exception]:
        """`TaskFramework.submit_many`: each has its own outcome, in the order given."""
        outcomes = self.run(lambda: self.framework.submit_many(requests))
        return [
            SyncTaskHandle(outcome, self._thread) if isinstance(outcome, TaskHandle) else outcome
            for outcome in outcomes
        ]

    @overload
    def submit_batch(
        self,
        task_type: str,
        items: Iterable[Any],
        *,
        user_id: str | None = None,
        **options: Unpack[BatchOptions],
    ) -> SyncBatchHandle[Any]: ...
    @overload
    def submit_batch(
        self,
        task_type: KindOf[P, R],
        items: Iterable[P],
        *,
        user_id: str | None = None,
        **options: Unpack[BatchOptions],
    ) -> SyncBatchHandle[R]: ...
    def submit_batch(
        self,
        task_type: Any,
        items: Iterable[Any],
        *,
        user_id: str | None = None,
        **options: Unpack[BatchOptions],
    ) -> SyncBatchHandle[Any]:
        """`TaskFramework.submit_batch`: all items are stored durably when this returns. Items that are not a sequence
        are iterated in the calling thread.
        """
        submit = self.framework.submit_batch
        if isinstance(check_iterable(items), Sequence):
            handle = self.run(lambda: submit(task_type, items, user_id=user_id, **options))
        else:
            handle = self._thread.run_with(
                items, lambda async_items: submit(task_type, async_items, user_id=user_id, **options)
            )
        return SyncBatchHandle(handle, self._thread)

    @overload
    def handle(self, task_id: str) -> SyncTaskHandle[Any]: ...
    @overload
    def handle(self, task_id: str, kind: KindOf[Any, R]) -> SyncTaskHandle[R]: ...
    def handle(self, task_id: str, kind: AnyKind | None = None) -> SyncTaskHandle[Any]:
        """`TaskFramework.handle`: a handle on a task that was submitted earlier."""
        self._thread.open_for_call()
        untyped_kind: Any = kind
        return SyncTaskHandle(self.framework.handle(task_id, untyped_kind), self._thread)

    @overload
    def batch(self, batch_id: str) -> SyncBatchHandle[Any]: ...
    @overload
    def batch(self, batch_id: str, kind: KindOf[Any, R]) -> SyncBatchHandle[R]: ...
    def batch(self, batch_id: str, kind: AnyKind | None = None) -> SyncBatchHandle[Any]:
        """`TaskFramework.batch`: a handle on a batch that was submitted earlier."""
        self._thread.open_for_call()
        untyped_kind: Any = kind
        return SyncBatchHandle(self.framework.batch(batch_id, untyped_kind), self._thread)

    def get(self, task_id: str) -> Task:
        """`TaskFramework.get`: read a task."""
        return self.run(lambda: self.framework.get(task_id))
