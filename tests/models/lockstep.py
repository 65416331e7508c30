"""A store and the reference in step: every request goes to both, and replies, documents and lists must be the same."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from typing import TypeVar

from taskframework.model.drivers import CASCADE, CHECK, DISPATCH, OUTBOX, RETRY, SPAWN, Driver
from taskframework.model.marks import Mark
from taskframework.model.query import RoundOfSubtasks
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.model.stream_moves import Unblock
from taskframework.model.task import Task
from taskframework.model.task_fields import CancelRequest
from taskframework.model.transitions import Fence, Transition
from taskframework.stores.base import TaskStore
from taskframework.stores.mongo.expressions import is_set, milliseconds, set_fields
from taskframework.stores.mongo.writes import Write, build_single_write
from taskframework.stores.replies import DueTask, Inserted
from taskframework.testing.conformance.comparison import differences
from taskframework.testing.conformance.store_suite import insert_one
from tests.models.invariants import Watch
from tests.models.reference import SOONER, Reference, TimePasses

Entry = TypeVar("Entry", bound=Hashable)

#: What differs in a walk differs by ten minutes and more; less is how long the walk takes.
_TOLERANCE = timedelta(minutes=4)
_USER_VALUES = {"parameters", "progress", "result", "steps", "history", "subtasks", "signals", "woken_by"}
_SECONDS_AHEAD = (OUTBOX, SPAWN, CHECK, CASCADE, RETRY)
_PLAIN = tuple(field.name for field in fields(Task) if field.name not in {*_USER_VALUES, "status"})


class Lockstep:
    """Makes each request to a store and to the reference.

    The reference goes on from the document that the store has, so that its times are the store's own. Others may use
    the store meanwhile, for other tasks.
    """

    def __init__(self, store: TaskStore, watch: Watch) -> None:
        self._store = store
        # A little ahead: what the store has just made due must be due here, and only the store's own clock knows when.
        self._reference = Reference(watch, now=lambda: store.now() + timedelta(minutes=1))

    def now(self) -> datetime:
        return self._store.now()

    async def insert(self, task: Task) -> Inserted:
        inserted, expected = await insert_one(self._store, task), self._reference.put(task)
        assert inserted.is_new is expected.is_new, f"the store says that it is new: {inserted}"
        self._compare(inserted.task)
        return inserted

    async def apply(self, transition: Transition) -> Task | None:
        reply, expected = await self._store.apply(transition), self._reference.write(transition)
        if reply is None:
            assert expected is None, f"the store refused {transition}"
            self._compare(await self._stored(transition.task_id))
        else:
            # The end of an attempt that is over by its claim may be answered with the document.
            assert expected is not None or transition.was_applied(reply), (
                f"the rule refuses {transition}, the store made it"
            )
            self._compare(reply)  # the document as it is: nobody else is at this task
        return reply

    async def race(self, first: Transition, second: Transition) -> tuple[Task | None, Task | None]:
        """Two requests on one task at once: what comes of it is what one of the two orders makes of it."""
        replies = await asyncio.gather(self._store.apply(first), self._store.apply(second))
        before, after = self._reference.tasks[first.task_id], await self._stored(first.task_id)
        made = list(zip((first, second), [reply is not None for reply in replies], strict=True))
        for order in (made, made[::-1]):
            if self._explains(order, before, after):
                for request, _ in order:
                    self._reference.write(request)
                self._compare(after)
                return replies
        outcome = "\n".join(_differences(after, before))
        raise AssertionError(f"no order explains what was made of {made}; changed:\n{outcome}")

    def _explains(self, order: Iterable[tuple[Transition, bool]], task: Task, after: Task) -> bool:
        for request, is_made in order:
            moved = request.apply(task, self._reference.now())
            if is_made:
                is_answered = moved is not None or request.was_applied(task)
            else:  # in a group, a task that was unblocked and then cancelled looks like one that was not unblocked
                is_answered = moved is None or (isinstance(request, Unblock) and not request.was_applied(after))
            if not is_answered:
                return False
            task = moved or task
        return not _differences(after, task)

    async def mark(self, mark: Mark) -> None:
        await self._store.mark(mark)
        self._reference.write(mark)
        self._compare(await self._stored(mark.task_id))

    async def renew(self, fences: Sequence[Fence], lease: timedelta) -> dict[Fence, CancelRequest | None]:
        renewed = await self._store.renew(fences, lease)
        expected = await self._reference.renew(fences, lease)
        assert renewed == expected, f"the store renewed {renewed}, the rule {expected}"
        for fence in fences:
            self._compare(await self._stored(fence.task_id))
        return renewed

    async def get(self, task_id: str) -> Task | None:
        """The document after the last write; read from the store then."""
        return await self._reference.get(task_id)

    async def count_subtasks(self, round: RoundOfSubtasks) -> Mapping[TaskStatus, int]:
        counted, expected = await self._store.count_subtasks(round), await self._reference.count_subtasks(round)
        assert counted == expected, f"the store counts {counted}, there are {expected}"
        return counted

    async def due(self, driver: Driver, limit: int, grace: timedelta = timedelta(0)) -> Sequence[DueTask]:
        due = await self._store.due(driver, limit, grace)
        found = [task for task in due if task.task_id in self._reference.tasks]
        told, expected = found, await self._reference.due(driver, limit, grace)
        if driver in _SECONDS_AHEAD:  # right after a move it is anybody's guess whether such a time has come
            now = self.now()
            told, expected = (
                [task for task in tasks if abs(task.due - now) > _TOLERANCE] for tasks in (told, expected)
            )
        _same(f"due by {driver.name}", told, expected)
        if driver is DISPATCH:  # once in each look
            assert await self.undriven(1) == [], "I1: the store counts undriven tasks"
        return found

    async def undriven(self, limit: int) -> Sequence[str]:
        return await self._store.undriven(limit)

    async def _stored(self, task_id: str) -> Task:
        task = await self._store.get(task_id, EVERYONE)
        assert task is not None, f"{task_id} is gone"
        return task

    def _compare(self, actual: Task) -> None:
        expected = self._reference.tasks[actual.task_id]
        found = _differences(actual, expected)
        assert found == [], "\n".join(["the document is not what the rule makes of it:", *found])
        self._reference.tasks[actual.task_id] = actual


def _same(what: str, found: Iterable[Entry], expected: Iterable[Entry]) -> None:
    assert set(found) == set(expected), f"{what}: the store lists {list(found)}, it should {list(expected)}"


def _differences(actual: Task, expected: Task) -> list[str]:
    """`differences`, without a second look at what is plainly equal; in a user's values 1 and True are not."""
    plain: dict[str, object] = {name: None for name in _PLAIN if getattr(actual, name) == getattr(expected, name)}
    if "errors" in plain:
        plain["errors"] = ()
    kept = 0
    for old, new in zip(actual.history, expected.history, strict=False):
        if old != new:
            break
        kept += 1
    left, right = (task.evolve(**plain, history=task.history[kept:]) for task in (actual, expected))
    return differences(left, right, _TOLERANCE)


@build_single_write.register
def _time_passes(passing: TimePasses) -> Write:
    by = milliseconds(passing.by)
    changes = {
        name: {"$subtract": [f"${name}", by]} for name in ("not_before", "created_at", *SOONER)
    }  # null stays null
    for record, name in (("lease", "expires_at"), ("waits_for", "until")):
        sooner = {"$mergeObjects": [f"${record}", {name: {"$subtract": [f"${record}.{name}", by]}}]}
        changes[record] = {"$cond": [is_set(f"${record}"), sooner, None]}
    return Write({"_id": passing.task_id}, [set_fields({**changes, "revision": {"$add": ["$revision", 1]}})])
