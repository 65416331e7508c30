"""One process of a harness: a framework on a throw-away store with faults, whose handles let virtual time pass."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from taskframework.model.batch_status import BatchStatus
from taskframework.model.events import TaskEvent
from taskframework.model.task import Task
from taskframework.operations.batch_handle import BatchHandle
from taskframework.operations.handle import R, TaskHandle
from taskframework.runtime import TaskFramework
from taskframework.settings import Settings
from taskframework.stores.base import TaskStore
from taskframework.stores.sqlite import SqliteStore
from taskframework.telemetry import running_code
from taskframework.testing.clock import FakeClock
from taskframework.testing.faults import Faults, FaultyStore, ProcessClock
from taskframework.urls import sqlite_file
from taskframework.wiring.store_services import StoreServices

#: The settings of a harness that a test may change; all others have their usual defaults.
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "shutdown": {"await_termination_timeout": "0s"},
    "retry": {"jitter_factor": 0},  # so that a retry comes when the test expects it
}
#: The settings that a test cannot change, besides the store.
_FIXED: Mapping[str, Mapping[str, Any]] = {"broker": {"url": "embedded://"}}

#: Lets time pass until a task is final; the timeout, in virtual time, is that of the handle.
PassTime = Callable[[str, timedelta | float | None], Awaitable[Task]]


class VirtualFramework(TaskFramework):
    """One process of a harness: its store and its clock may fail, and its events are recorded from the start."""

    def __init__(
        self, settings: Settings, clock: FakeClock, faults: Faults, events: list[TaskEvent], pass_time: PassTime
    ) -> None:
        super().__init__(settings, clock=ProcessClock(clock, faults))
        self._faults = faults
        self._events = events
        self._make_handle = partial(_VirtualTaskHandle, pass_time=pass_time)
        self._make_batch = partial(_VirtualBatchHandle, pass_time=pass_time)

    async def _open_store(self, stack: contextlib.AsyncExitStack, *, dispatches: bool) -> StoreServices:
        services = await super()._open_store(stack, dispatches=dispatches)
        services.bus.listen(TaskEvent, self._events.append, name="harness")
        return services

    def _build_store(self) -> TaskStore:
        # The file is thrown away, and a sync with each commit takes half of the time that a year of schedules takes.
        store = SqliteStore(sqlite_file(self.settings.store.url), clock=self._clock, syncs=False)
        return FaultyStore.around(store, self._faults)


@dataclass(frozen=True, slots=True)
class _VirtualTaskHandle(TaskHandle[R]):
    """A handle whose waits let time pass; without that, a task that is due later would never end."""

    pass_time: PassTime = field(kw_only=True)

    async def finished(self, timeout: timedelta | float | None = None) -> Task:
        task = await self.task()
        if task.status.is_final:
            return task
        if _is_in_task_code():
            return await TaskHandle.finished(self, timeout)
        return await self.pass_time(self.task_id, timeout)


@dataclass(frozen=True, slots=True)
class _VirtualBatchHandle(BatchHandle[R]):
    """The same for a batch."""

    pass_time: PassTime = field(kw_only=True)

    async def finished(self, timeout: timedelta | float | None = None) -> BatchStatus:
        status = await self.status()
        if not status.status.is_final and not _is_in_task_code():
            await self.pass_time(self.batch_id, timeout)
        return await BatchHandle.finished(self, timeout)


def _is_in_task_code() -> bool:
    """Whether the caller is code of a task. Virtual time stands still while code runs, so it waits in real time."""
    return running_code.get() is not None


def id_of(task: TaskHandle[Any] | BatchHandle[Any] | str) -> str:
    """Return the id of a task or a batch."""
    if isinstance(task, str):
        return task
    return task.batch_id if isinstance(task, BatchHandle) else task.task_id


def as_duration(duration: timedelta | float) -> timedelta:
    """Return a length of virtual time, which may be given in seconds.

    Raises:
        ValueError: if it is negative.
    """
    time = duration if isinstance(duration, timedelta) else timedelta(seconds=duration)
    if time < timedelta(0):
        raise ValueError(f"{time.total_seconds():g} s: time does not pass backwards")
    return time


def settings_with(sections: Mapping[str, dict[str, Any]], file: Path) -> Settings:
    """Return the settings of a harness with the sections that a test gives, on a SQLite file.

    Raises:
        ConfigurationError: if the settings are wrong.
    """
    merged: dict[str, Any] = {**_DEFAULTS, **_FIXED, **sections, "store": {"url": f"sqlite:///{file}"}}
    for name, section in merged.items():
        if isinstance(section, Mapping):  # anything else gets the error of the settings
            merged[name] = {**_DEFAULTS.get(name, {}), **section, **_FIXED.get(name, {})}
    return Settings.model_validate(merged)


@contextlib.asynccontextmanager
async def temporary_folder() -> AsyncIterator[Path]:
    """Make a folder for one harness and remove it, without blocking the event loop."""
    folder = await asyncio.to_thread(tempfile.mkdtemp, prefix="taskframework-")
    try:
        yield Path(folder)
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
