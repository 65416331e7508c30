"""The base of all cases of the store suite: how to get a store, how to let time pass, and the differential check."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol, cast

import pytest_asyncio

from taskframework import failpoint
from taskframework.model.attempts import Claim
from taskframework.model.marks import (
    CascadeAgain,
    CountAfterEnd,
    CountAgain,
    EndPutOff,
    ForgetDispatch,
    MakeDue,
    Mark,
    MarkDispatched,
    MarkPublished,
    MarkSpawned,
    RenewLease,
    RestartQueueTimeout,
)
from taskframework.model.outcome import describe
from taskframework.model.query import TaskFilter
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.model.task import Task, new_claim_id
from taskframework.model.task_fields import Lease, TaskError
from taskframework.model.transitions import Fence, Transition
from taskframework.stores.base import TaskStore
from taskframework.stores.replies import Inserted
from taskframework.testing.conformance.comparison import TOLERANCE, differences
from taskframework.testing.factories import new_task

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
NO_TOLERANCE = timedelta(0)
#: A lease that ended before it began: such a task can be reaped at once.
EXPIRED = -MINUTE
#: How late a test's view of a server's clock may be. A task that a write made due must be due for the test, too.
SKEW = timedelta(milliseconds=50)

#: Marks whose outcome nobody waits for, so that `mark` makes them; `apply` makes the others.
MARKS = (
    CascadeAgain,
    CountAfterEnd,
    CountAgain,
    EndPutOff,
    ForgetDispatch,
    MakeDue,
    MarkDispatched,
    MarkPublished,
    MarkSpawned,
    RenewLease,
    RestartQueueTimeout,
)
Request = Transition | Mark


class StoreSuite:
    """The base of the cases. An adapter's tests subclass `StoreConformance` instead."""

    async def make_store(self) -> TaskStore:
        """Make an open, empty store. The suite closes it."""
        raise NotImplementedError

    async def pass_time(self, seconds: float) -> None:
        """Let the store's clock move on; never more than 2.1 seconds, because with a server a test waits for them."""
        raise NotImplementedError

    @pytest_asyncio.fixture
    async def store(self) -> AsyncIterator[TaskStore]:
        store = await self.make_store()
        yield store
        await store.close()


@contextmanager
def lose_reply(point: str) -> Iterator[None]:
    """Lose the next reply at this failpoint."""
    failpoint.arm_from({"TASKFRAMEWORK_FAILPOINTS": f"{point}@1=drop"})
    try:
        yield
    finally:
        failpoint.disarm(point)


class Inserts(Protocol):
    """A store, or an object that inserts through one."""

    async def insert(self, tasks: Sequence[Task]) -> Sequence[Inserted | Exception]: ...


async def insert_one(inserts: Inserts, task: Task) -> Inserted:
    """Insert a task, and raise the error if it fails."""
    [reply] = await inserts.insert([task])
    if isinstance(reply, Exception):
        raise reply
    return reply


async def put(store: TaskStore, **overrides: Any) -> Task:
    """Insert a task. Without overrides it can be claimed now, whatever the clocks say.

    Its last change is so long ago that a test notices a move which does not note its time.
    """
    now = store.now()
    task = new_task(**({"now": now, "not_before": now - SECOND, "updated_at": now - HOUR} | overrides))
    inserted = await insert_one(store, task)
    assert inserted.is_new
    return inserted.task


async def put_running(store: TaskStore, *, lease: timedelta = HOUR, **overrides: Any) -> tuple[Task, Fence]:
    """Insert a task that a worker runs, and return it with the fence of its claim."""
    claim_id = new_claim_id()
    held = Lease("worker-1", claim_id, store.now() + lease)
    running = {"status": TaskStatus.RUNNING, "fencing_token": 1, "attempts": 1, "next_dispatch_at": None}
    task = await put(store, **({**running, "started_at": store.now(), "lease": held} | overrides))
    return task, Fence(task.task_id, task.fencing_token, claim_id)


async def put_final(store: TaskStore, status: TaskStatus, **overrides: Any) -> Task:
    """Insert a task that has ended."""
    ended = {"status": status, "next_dispatch_at": None, "finished_at": store.now()}
    return await put(store, **(ended | overrides))


async def read_task(store: TaskStore, task_id: str) -> Task:
    """Return the task as the store has it."""
    task = await store.get(task_id, EVERYONE)
    assert task is not None
    return task


@dataclass(frozen=True, slots=True)
class CheckedAnswer:
    """The answer of a store to a request, and the answer of the pure rule."""

    request: Request
    before: Task
    #: None if the rule refuses.
    expected: Task | None
    #: None for a mark, because nobody waits for its outcome.
    reply: Task | None

    def check(self, after: Task) -> None:
        """Check the store against the rule: the document after a move must be what the rule makes of the one before it.

        Times may differ by a tolerance; the reply to a move must be that document. If the rule refuses, the store must
        refuse and leave the document unchanged. Only if the attempt's own claim has ended it already, the store may
        reply with the document.
        """
        assert differences(after, self.before if self.expected is None else self.expected, self._tolerance) == []
        if isinstance(self.request, MARKS):
            return
        move, reply, status = cast(Transition, self.request), self.reply, self.before.status
        if self.expected is not None:
            assert reply is not None, f"{status}: the store refused {move}"
            assert all(moment.microsecond % 1000 == 0 and not moment.utcoffset() for moment in _times(after))
        elif reply is not None:
            assert move.was_applied(self.before), f"{status}: the rule refuses {move}, the store made it"
        assert reply is None or differences(reply, after, NO_TOLERANCE) == []

    @property
    def _tolerance(self) -> timedelta:
        return NO_TOLERANCE if self.expected is None else TOLERANCE


async def ask(store: TaskStore, request: Request, before: Task) -> CheckedAnswer:
    """Make a request to the store and to the pure rule; `before` is the task as the store has it."""
    if isinstance(request, MARKS):
        expected = request.apply(before, store.now())
        await store.mark(request)
        return CheckedAnswer(request, before, expected, None)
    transition = cast(Transition, request)
    expected = transition.apply(before, store.now() + SKEW)
    reply = await store.apply(transition)
    if expected is None and reply is not None:  # its time may have come between the two
        expected = transition.apply(before, store.now() + SKEW)
    return CheckedAnswer(transition, before, expected, reply)


async def read_all_tasks(store: TaskStore) -> dict[str, Task]:
    """All tasks as the store has them, by id; much quicker than one by one."""
    pages = [await store.list_tasks(EVERYONE, TaskFilter(batches=batches), limit=1_000) for batches in (False, True)]
    assert all(page.next_cursor is None for page in pages)
    return {task.task_id: task for page in pages for task in page.items}


async def try_move(store: TaskStore, transition: Transition) -> Task | None:
    """Make a move, and check the store against the pure rule."""
    answered = await ask(store, transition, await read_task(store, transition.task_id))
    answered.check(await read_task(store, transition.task_id))
    return answered.reply


async def make_move(store: TaskStore, transition: Transition) -> Task:
    """`try_move`, for a transition that must not be refused."""
    task = await try_move(store, transition)
    assert task is not None, f"refused: {transition} on {await store.get(transition.task_id, EVERYONE)}"
    return task


async def expect_refusal(store: TaskStore, transition: Transition) -> None:
    """`try_move`, for a transition that must be refused."""
    task = await try_move(store, transition)
    assert task is None, f"not refused: {transition}; now {task}"


async def make_mark(store: TaskStore, mark: Mark) -> Task:
    """Make a mark, check the store against the pure rule, and return the task after it."""
    answered = await ask(store, mark, await read_task(store, mark.task_id))
    after = await read_task(store, mark.task_id)
    answered.check(after)
    return after


async def make_request(store: TaskStore, request: Request) -> Task | None:
    """Call `try_move` or `make_mark`, depending on the request."""
    if isinstance(request, MARKS):
        return await make_mark(store, request)
    return await try_move(store, cast(Transition, request))


def make_claim(task: Task, *, lease: timedelta = HOUR, worker_id: str = "worker-1", **overrides: Any) -> Claim:
    """Make a claim for the task's present dispatch epoch."""
    values: dict[str, Any] = {"dispatch_epoch": task.dispatch_epoch, "claim_id": new_claim_id()} | overrides
    return Claim(task_id=task.task_id, worker_id=worker_id, lease=lease, **values)


async def claim_task(store: TaskStore, task: Task, *, lease: timedelta = HOUR, **overrides: Any) -> tuple[Task, Fence]:
    """Claim a task, and return it with the fence of the claim."""
    claim = make_claim(task, lease=lease, **overrides)
    running = await make_move(store, claim)
    return running, Fence(running.task_id, running.fencing_token, claim.claim_id)


def make_error(message: str = "it broke") -> TaskError:
    """Make an error as the executor would report it."""
    return describe(ValueError(message), retryable=True)


def _times(task: Task) -> list[datetime]:
    ends = task.lease.expires_at if task.lease else None
    times = (task.not_before, task.next_dispatch_at, task.publish_at, task.updated_at, task.finished_at, ends)
    return [moment for moment in times if moment is not None]
