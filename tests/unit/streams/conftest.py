"""An installation without a broker, whose time is moved by hand and whose worker is the test."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from taskframework import Settings, failpoint
from taskframework.model.attempts import Claim, Complete, Fail, Release
from taskframework.model.scope import ANONYMOUS, EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.model.streams import STREAMS, Stream, StreamKey
from taskframework.model.task import Task, new_claim_id
from taskframework.model.transitions import Fence
from taskframework.stores.sqlite import SqliteStore
from taskframework.submission.requests import SubmitRequest
from taskframework.tasks.registry import TaskRegistry
from taskframework.testing.clock import FakeClock
from taskframework.testing.conformance.store_suite import make_error
from taskframework.wiring.store_services import StoreServices, build_store_services
from tests.support.kitchen_sink import CountWords

HOUR, NO_TIME = timedelta(hours=1), timedelta(0)
KEY = StreamKey(ANONYMOUS, "a/b")


async def _die() -> None:
    raise RuntimeError("the process died")


@contextmanager
def armed(point: str) -> Iterator[None]:
    """Whoever passes the point dies there."""
    failpoint.arm(point, _die)
    try:
        yield
    finally:
        failpoint.disarm(point)


class Installation:
    """Store services, what a worker does, and what a relay would bring."""

    def __init__(self, store: SqliteStore, clock: FakeClock) -> None:
        registry = TaskRegistry()
        registry.register(CountWords)
        settings = Settings.model_validate({"retention": {"finished": "1h", "dead_letters": "2h"}})
        self.store, self.clock = store, clock
        self.services: StoreServices = build_store_services(settings, registry, clock, store, dispatches=True)
        self._numbers = itertools.count()

    async def submit(self, **options: Any) -> Task:
        """Submit one task of the stream."""
        [task] = await self.submit_many(1, **options)
        return task

    async def submit_many(self, count: int, **options: Any) -> list[Task]:
        outcomes = await self.services.submission.submit_many([self.request(**options) for _ in range(count)])
        tasks = []
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
            tasks.append(outcome.task)
        return tasks

    def request(self, stream: dict[str, Any] | None = None, **options: Any) -> SubmitRequest:
        parameters = {"text": str(next(self._numbers))}
        place: Any = {"key": KEY.key, **(stream or {})}
        return SubmitRequest(task_type="count-words", parameters=parameters, stream=place, **options)

    async def get(self, task: Task) -> Task:
        there = await self.store.get(task.task_id, EVERYONE)
        assert there is not None
        return there

    async def statuses(self, *tasks: Task) -> list[TaskStatus]:
        return [(await self.get(task)).status for task in tasks]

    async def begin(self, task: Task) -> Fence:
        """Claim a task, as a worker does."""
        present, claim = await self.get(task), new_claim_id()
        claimed = await self.store.apply(Claim(task.task_id, present.dispatch_epoch, claim, "worker-1", 100 * HOUR))
        assert claimed is not None, f"{present.status} at {present.stream}"
        return Fence(task.task_id, claimed.fencing_token, claim)

    async def end(self, task: Task, *, fails: bool = False, looks: bool = True) -> Task:
        """Run a task to its end, and see to its stream unless the process dies before."""
        fence = await self.begin(task)
        end = Fail(fence, "worker-1", make_error(), False, NO_TIME) if fails else Complete(fence, "worker-1", 7)
        assert await self.store.apply(end) is not None
        ended = await self.get(task)
        if looks:
            await self.look(ended)
        return ended

    async def retry_later(self, task: Task) -> None:
        """An attempt fails, and the next one is due in an hour."""
        fence = await self.begin(task)
        await self.look(await self._applied(Fail(fence, "worker-1", make_error(), True, HOUR)))

    async def release(self, task: Task) -> None:
        await self.look(await self._applied(Release(await self.begin(task), "worker-1")))

    async def look(self, task: Task) -> None:
        """What a listener or a relay brings about."""
        self.services.looks.handle_task(task)
        await self.services.looks.finished()

    async def stream(self) -> Stream:
        [record] = (await self.store.read_records([KEY.record_id])).values()
        return STREAMS.content(record)

    async def _applied(self, move: Any) -> Task:
        task = await self.store.apply(move)
        assert task is not None
        return task


@pytest.fixture
async def here(store: SqliteStore, clock: FakeClock) -> AsyncIterator[Installation]:
    yield Installation(store, clock)
    failpoint.disarm()
