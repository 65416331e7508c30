"""What is asked of a store at each size, and how long each answer took."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import httpx

from taskframework import TaskFramework
from taskframework.api.app import create_app
from taskframework.model.attempts import Claim, Complete
from taskframework.model.drivers import DEADLINE, DISPATCH, LEASE, OUTBOX
from taskframework.model.marks import MarkPublished, ReserveDispatch
from taskframework.model.query import TaskFilter
from taskframework.model.scope import EVERYONE, Scope
from taskframework.model.status import Priority, TaskStatus
from taskframework.model.task import Task, new_claim_id
from taskframework.model.transitions import Fence
from taskframework.stores.base import TaskStore
from taskframework.testing.conformance.store_suite import insert_one
from taskframework.testing.factories import new_task
from tests.benchmarks.growth_filling import PARENT, Filler, due, finished, owner, task_type

PAGE, GROUP, DUE, ROUNDS, PURGED, PURGES = 10, 100, 500, 4, 500, 5
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
_OLD, _KEPT = timedelta(days=200), timedelta(days=100)

#: Milliseconds of each answer, by question.
Times = dict[str, list[float]]


@dataclass(frozen=True, slots=True)
class Effort:
    """How often each question is asked."""

    #: Those that take about a millisecond, and those that take more.
    often: int
    rarely: int


async def measure(framework: TaskFramework, filler: Filler, effort: Effort) -> Times:
    """Ask everything of an open framework's store."""
    store, times = framework.services.store, Times()
    for name, question in (await _reading(store)).items():
        times[name] = await _timed(question, effort.often)
    for name, path in _PATHS.items():
        times[name] = await _over_http(framework, path, effort.rarely)
    for name, question in _counts(store).items():
        times[name] = await _timed(question, max(3, effort.rarely // 10))
    times |= await _lives(store, effort.often)
    times |= await _lives_together(store, effort.rarely)
    times |= await _sweep(store, filler)
    times |= await _purge(store, filler)
    return times


async def _reading(store: TaskStore) -> Mapping[str, Callable[[], Awaitable[Any]]]:
    """The questions of people and repairs that change nothing."""
    first = await store.list_tasks(EVERYONE, TaskFilter(), limit=PAGE)
    owned = Scope.of(owner(3))
    old = (await store.list_tasks(Scope.of(owner(7)), TaskFilter(TaskStatus.COMPLETED), limit=1)).items[0]
    lists = {
        "list all": _listing(store, EVERYONE, TaskFilter()),
        "list COMPLETED": _listing(store, EVERYONE, TaskFilter(TaskStatus.COMPLETED)),
        "list FAILED": _listing(store, EVERYONE, TaskFilter(TaskStatus.FAILED)),
        "list of a type": _listing(store, EVERYONE, TaskFilter(task_type=task_type(3))),
        "list of an owner": _listing(store, owned, TaskFilter()),
        "owner + status": _listing(store, owned, TaskFilter(TaskStatus.COMPLETED)),
        "list of a parent": _listing(store, EVERYONE, TaskFilter(parent_task_id=PARENT)),
    }
    return {
        "get": lambda: store.get(old.task_id, EVERYONE),
        **lists,
        "list, next page": lambda: store.list_tasks(EVERYONE, TaskFilter(), limit=PAGE, cursor=first.next_cursor),
        "dead letters": lambda: store.list_tasks(EVERYONE, TaskFilter(dead=True), limit=PAGE, cursor=None),
        "sweep, none due": lambda: store.due(DISPATCH, GROUP),
        "newest running": lambda: store.newest_running(task_type(3), Priority.NORMAL),
        "reaper's look": lambda: store.due(LEASE, GROUP, MINUTE),
        "deadlines": lambda: store.due(DEADLINE, GROUP),
        "relay's look": lambda: store.due(OUTBOX, GROUP),
    }


def _listing(store: TaskStore, scope: Scope, filter: TaskFilter) -> Callable[[], Awaitable[Any]]:
    return lambda: store.list_tasks(scope, filter, limit=PAGE)


def _counts(store: TaskStore) -> Mapping[str, Callable[[], Awaitable[Any]]]:
    return {"count by status": store.count_by_status, "count undriven": lambda: store.undriven(GROUP)}


_PATHS = {
    "HTTP list": f"/api/v1/tasks?limit={PAGE}",
    "HTTP list FAILED": f"/api/v1/tasks?status=FAILED&limit={PAGE}",
    "HTTP dead letters": f"/api/v1/admin/dead-letters?limit={PAGE}",
}


async def _over_http(framework: TaskFramework, path: str, times: int) -> list[float]:
    transport = httpx.ASGITransport(create_app(framework))
    async with httpx.AsyncClient(transport=transport, base_url="http://growth") as client:
        (await client.get(path)).raise_for_status()
        return await _timed(lambda: client.get(path), times)


async def _lives(store: TaskStore, number: int) -> Times:
    """One task after the other: stored, claimed, completed, its publication marked."""
    times: Times = {"insert": [], "claim": [], "complete": [], "mark published": []}
    for _ in range(number):
        task, fence = _new(store)
        times["insert"] += await _timed(lambda task=task: insert_one(store, task), 1)  # type: ignore[misc]
        times["claim"] += await _timed(lambda fence=fence: store.apply(_claim(fence)), 1)  # type: ignore[misc]
        done = Complete(fence, "worker-1", {"n": 1})
        times["complete"] += await _timed(lambda done=done: store.apply(done), 1)  # type: ignore[misc]
        mark = MarkPublished(task.task_id, 3)
        times["mark published"] += await _timed(lambda mark=mark: store.mark(mark), 1)  # type: ignore[misc]
    return times


async def _lives_together(store: TaskStore, number: int) -> Times:
    """A hundred at once, as under load; the times are for all of them together."""
    times: Times = {f"insert {GROUP}": [], f"claim {GROUP}": [], f"complete {GROUP}": []}
    for _ in range(number):
        news = [_new(store) for _ in range(GROUP)]
        claims = [_claim(fence) for _, fence in news]
        completions = [Complete(fence, "worker-1", {"n": 1}) for _, fence in news]
        steps: list[Sequence[Awaitable[Any]]] = [
            [insert_one(store, task) for task, _ in news],
            [store.apply(claim) for claim in claims],
            [store.apply(completion) for completion in completions],
        ]
        for name, calls in zip(times, steps, strict=True):
            begin = time.perf_counter()
            await asyncio.gather(*calls)
            times[name].append((time.perf_counter() - begin) * 1e3)
        await store.mark(*(MarkPublished(task.task_id, 3) for task, _ in news))
    return times


async def _sweep(store: TaskStore, filler: Filler) -> Times:
    """Five hundred tasks are due: find a batch and reserve it, until none is due; and that a few times."""
    times: Times = {f"sweep, {DUE} due": [], f"reserve {GROUP}": []}
    for _ in range(ROUNDS):
        await asyncio.to_thread(filler.insert, due(DUE))
        left = DUE
        while left:
            begin = time.perf_counter()
            found = await store.due(DISPATCH, GROUP)
            middle = time.perf_counter()
            reservations = [ReserveDispatch(task.task_id, task.dispatch_epoch, HOUR, HOUR) for task in found]
            await asyncio.gather(*map(store.apply, reservations))
            times[f"sweep, {DUE} due"].append((middle - begin) * 1e3)
            times[f"reserve {GROUP}"].append((time.perf_counter() - middle) * 1e3)
            left -= len(found)
    return times


async def _purge(store: TaskStore, filler: Filler) -> Times:
    await asyncio.to_thread(filler.insert, finished(PURGED * PURGES, first=1_000_000, age=_OLD))
    took = await _timed(lambda: store.purge(finished=_KEPT, dead_letters=_KEPT, limit=PURGED), PURGES)
    return {f"purge {PURGED}": took}


def _new(store: TaskStore) -> tuple[Task, Fence]:
    now = store.now()
    task = new_task(now=now, not_before=now - MINUTE, dispatch_after=MINUTE)
    return task, Fence(task.task_id, 1, new_claim_id())


def _claim(fence: Fence) -> Claim:
    return Claim(fence.task_id, 1, fence.claim_id, "worker-1", MINUTE)


async def _timed(question: Callable[[], Awaitable[Any]], times: int) -> list[float]:
    """Milliseconds of each answer; the first of several only warms up."""
    took = []
    for _ in range(times + (times > 1)):
        begin = time.perf_counter()
        await question()
        took.append((time.perf_counter() - begin) * 1e3)
    return took[1:] if times > 1 else took
