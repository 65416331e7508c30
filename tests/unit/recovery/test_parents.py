"""Parents: when their sub-tasks are counted, what a replay of them leaves and finds, and what a dead process left."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from taskframework.aggregation.cascade import Cascade
from taskframework.aggregation.reporter import SubtaskReporter
from taskframework.aggregation.spawner import Spawner
from taskframework.bus import EventBus
from taskframework.errors import ParentFinishedError, StoreUnavailableError, TransitionRefusedError
from taskframework.model.attempts import Claim, Complete
from taskframework.model.drivers import CASCADE, SPAWN, Driver
from taskframework.model.events import TaskCompletedEvent, TaskSubmittedEvent
from taskframework.model.interventions import Cancel, Replay
from taskframework.model.options import StreamPlace, Unique
from taskframework.model.plans import part_of
from taskframework.model.query import RoundOfSubtasks
from taskframework.model.records import Record
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.model.subtasks import Counts, subtask_id
from taskframework.model.task import Task
from taskframework.model.task_fields import ParentLink, Subtasks
from taskframework.model.transitions import Fence
from taskframework.model.versions import newest_record
from taskframework.model.waiting import RECOUNT_AFTER, SPAWN_AFTER, WAIT_CHECK_INTERVAL, CountSubtasks, Reopen
from taskframework.moves import TaskMoves
from taskframework.operations.tasks import TaskOperations
from taskframework.recovery.parents import ParentRepair
from taskframework.stores.replies import Inserted
from taskframework.stores.sqlite import SqliteStore
from taskframework.testing.clock import FakeClock
from taskframework.testing.eventually import eventually
from taskframework.testing.factories import new_task

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)


ONE_FAILED = Subtasks(1, None, done=1, failed=1)


def family(store: SqliteStore, statuses: list[TaskStatus], **parent: Any) -> list[Task]:
    """A parent with sub-tasks in these statuses; the parent comes first."""
    now = store.now()
    usual = {"status": TaskStatus.WAITING, "next_dispatch_at": None, "check_at": now + SECOND}
    top = new_task(task_id="parent", now=now, **{**usual, "subtasks": Subtasks(len(statuses), None), **parent})
    below = [
        new_task(
            task_id=subtask_id("parent", 0, 1, slot),
            now=now,
            parent=ParentLink("parent", 0, slot),
            status=status,
            finished_at=now if status.is_final else None,
        )
        for slot, status in enumerate(statuses)
    ]
    return [top, *below]


async def test_the_last_sub_task_is_counted_without_a_pause(store: SqliteStore, clock: FakeClock) -> None:
    parent, first, second = family(store, [TaskStatus.COMPLETED, TaskStatus.COMPLETED])
    await store.insert([parent, first])
    reporter = SubtaskReporter(store, TaskMoves(store, EventBus()), clock)
    reporter.handle_task(first)
    await eventually(lambda: clock.sleeping == 1)  # counted, and in the pause
    await store.insert([second])
    reporter.handle_task(second)

    await eventually(lambda: is_over(store))  # although the clock stands still


async def test_the_end_of_a_sub_task_with_the_id_of_a_deleted_one_is_counted(
    store: SqliteStore, clock: FakeClock
) -> None:
    """Its parent is a version that was submitted again after the retention had deleted its family."""
    reporter = SubtaskReporter(store, TaskMoves(store, EventBus()), clock)
    before = family(store, [TaskStatus.COMPLETED])[1]
    reporter.handle_task(before)
    await reporter.finished()
    clock.advance(timedelta(days=30).total_seconds())
    parent, again = family(store, [TaskStatus.COMPLETED])
    assert (again.task_id, again.sequence) == (before.task_id, before.sequence)
    await store.insert([parent, again])
    reporter.handle_task(again)
    await reporter.finished()
    assert await is_over(store)


async def test_the_pause_is_short_when_the_rest_will_soon_have_ended(store: SqliteStore, clock: FakeClock) -> None:
    parent, *ended = family(store, [TaskStatus.COMPLETED] * 11)
    await store.insert([parent, ended[0]])
    reporter = SubtaskReporter(store, TaskMoves(store, EventBus()), clock)
    reporter.handle_task(ended[0])
    await eventually(lambda: clock.sleeping == 1)  # counted, and in the pause
    await store.insert(ended[1:9])  # eight in 40 milliseconds, so the last two will take some ten
    reporter.handle_task(ended[1])
    clock.advance(0.04)
    await eventually(lambda: counted(store, 9))
    await eventually(lambda: clock.sleeping == 1)
    await store.insert(ended[9:])  # in another process: nobody tells that these were the last
    reporter.handle_task(ended[2])

    clock.advance(0.012)
    await eventually(lambda: is_over(store))


async def test_the_pause_is_longer_than_the_first_one_while_most_subtasks_still_run(
    store: SqliteStore, clock: FakeClock
) -> None:
    parent, *ended = family(store, [TaskStatus.COMPLETED] * 11)
    await store.insert([parent, ended[0]])
    reporter = SubtaskReporter(store, TaskMoves(store, EventBus()), clock)
    reporter.handle_task(ended[0])
    await eventually(lambda: clock.sleeping == 1)
    await store.insert([ended[1]])  # one in 40 milliseconds, so the others will take hundreds
    reporter.handle_task(ended[1])
    clock.advance(0.04)
    await eventually(lambda: counted(store, 2))
    await eventually(lambda: clock.sleeping == 1)
    await store.insert([ended[2]])
    reporter.handle_task(ended[2])
    clock.advance(0.07)
    await asyncio.sleep(0)
    assert clock.sleeping == 1, "50 times the cost of a count, which is 1.5 milliseconds and a little for each sub-task"
    clock.advance(0.01)
    await eventually(lambda: counted(store, 3))


async def test_the_pause_is_longer_when_others_count_too_and_never_too_long_for_marks(
    store: SqliteStore, clock: FakeClock
) -> None:
    parent, *ended = family(store, [TaskStatus.COMPLETED] * 20)
    await store.insert([parent, *ended[:3]])
    reporter = SubtaskReporter(store, TaskMoves(store, EventBus()), clock)
    others = 100

    async def count_elsewhere() -> None:
        for _ in range(others):
            present = await store.get("parent", EVERYONE)
            assert present is not None
            assert await store.apply(CountSubtasks.of(present, Counts(3, 0, 0)))

    reporter.handle_task(ended[0])
    await eventually(lambda: clock.sleeping == 1)
    await count_elsewhere()
    reporter.handle_task(ended[1])
    clock.advance(0.04)
    await eventually(lambda: serial(store, others + 2))
    await eventually(lambda: clock.sleeping == 1)
    reporter.handle_task(ended[2])
    clock.advance(1.4)
    await asyncio.sleep(0)
    assert clock.sleeping == 1, "all of them together count no more often than one alone"
    clock.advance(0.11)
    await eventually(lambda: serial(store, others + 3))


class Interrupted:
    """The store, with something that happens in the middle of the first counts, one after the other."""

    def __init__(self, store: SqliteStore, *meanwhile: Callable[[], Awaitable[object]]) -> None:
        self._count, self._meanwhile = store.count_subtasks, list(meanwhile)
        self.counts = 0
        store.count_subtasks = self.count_subtasks  # type: ignore[method-assign]

    async def count_subtasks(self, round: RoundOfSubtasks) -> dict[TaskStatus, int]:
        counted = await self._count(round)
        self.counts += 1
        if self._meanwhile:
            await self._meanwhile.pop(0)()
        return counted


async def counted_by(reporter: SubtaskReporter, clock: FakeClock) -> None:
    """Let the reporter do all that it heard of."""
    await eventually(lambda: clock.sleeping == 1)  # counted, and in the pause
    await reporter.finished()


async def test_an_ended_sub_task_counts_as_reported_after_the_count_is_written_and_once(
    store: SqliteStore, clock: FakeClock
) -> None:
    parent, child, other = family(store, [TaskStatus.COMPLETED, TaskStatus.QUEUED])
    await store.insert([parent, child, other])
    reporter, told = SubtaskReporter(store, TaskMoves(store, EventBus()), clock), list[int]()

    async def look() -> None:
        assert told == [], "nobody may mark it before the count is written"

    counted = Interrupted(store, look)
    reporter.handle_task(child, lambda: told.append(1))
    await counted_by(reporter, clock)
    assert (told, counted.counts) == ([1], 1)
    reporter.handle_task(child, lambda: told.append(2))
    assert told == [1, 2], "it is known to be reported"


async def test_an_end_that_comes_while_the_reporter_finishes_is_counted_without_a_pause(
    store: SqliteStore, clock: FakeClock
) -> None:
    parent, first, second = family(store, [TaskStatus.COMPLETED, TaskStatus.COMPLETED])
    await store.insert([parent, first])
    reporter, told = SubtaskReporter(store, TaskMoves(store, EventBus()), clock), list[int]()
    finishing = list[asyncio.Task[None]]()

    async def hear_the_other() -> None:
        finishing.append(asyncio.create_task(reporter.finished()))
        await asyncio.sleep(0)  # it has asked for the end of pauses
        await store.insert([second])
        reporter.handle_task(second, lambda: told.append(2))

    Interrupted(store, hear_the_other)
    reporter.handle_task(first, lambda: told.append(1))
    await eventually(lambda: told == [1, 2])
    await finishing[0]  # although the clock stands still


async def test_an_end_whose_count_fails_is_left_to_the_repair(store: SqliteStore, clock: FakeClock) -> None:
    parent, child = family(store, [TaskStatus.COMPLETED])
    await store.insert([parent, child])

    async def fail() -> None:
        raise StoreUnavailableError

    Interrupted(store, fail)
    reporter, told = SubtaskReporter(store, TaskMoves(store, EventBus()), clock), list[int]()
    reporter.handle_task(child, lambda: told.append(1))
    await reporter.finished()
    assert told == []
    reporter.handle_task(child, lambda: told.append(2))
    await counted_by(reporter, clock)
    assert told == [2], "it comes again"


@pytest.mark.parametrize(("others", "is_told"), [(1, True), (19, True), (20, False)])
async def test_a_reporter_that_another_count_overtakes_counts_again(
    store: SqliteStore, clock: FakeClock, others: int, is_told: bool
) -> None:
    subtasks = family(store, [TaskStatus.COMPLETED, TaskStatus.QUEUED])
    await store.insert(subtasks)

    async def other() -> None:
        present = await store.get("parent", EVERYONE)
        assert present is not None
        assert await store.apply(CountSubtasks.of(present, Counts())) is not None

    Interrupted(store, *[other] * others)
    reporter, told = SubtaskReporter(store, TaskMoves(store, EventBus()), clock), list[int]()
    reporter.handle_task(subtasks[1], lambda: told.append(1))
    await (counted_by(reporter, clock) if is_told else reporter.finished())
    assert told == [1] * is_told
    present = await store.get("parent", EVERYONE)
    assert present is not None
    assert present.subtasks is not None
    assert present.subtasks.done == is_told


async def test_a_sub_task_that_ends_during_a_count_is_in_the_next_count(store: SqliteStore, clock: FakeClock) -> None:
    parent, first, second = family(store, [TaskStatus.COMPLETED, TaskStatus.COMPLETED])
    await store.insert([parent, first])
    reporter = SubtaskReporter(store, TaskMoves(store, EventBus()), clock)

    async def ends() -> None:
        await store.insert([second])
        reporter.handle_task(second)

    Interrupted(store, ends)
    reporter.handle_task(first)
    await eventually(lambda: clock.sleeping == 1)
    clock.advance(SECOND)
    await eventually(lambda: is_over(store))


async def counted(store: SqliteStore, done: int) -> bool:
    task = await store.get("parent", EVERYONE)
    return task is not None and task.subtasks is not None and task.subtasks.done == done


async def serial(store: SqliteStore, number: int) -> bool:
    task = await store.get("parent", EVERYONE)
    return task is not None and task.subtasks is not None and task.subtasks.report_serial == number


async def is_over(store: SqliteStore) -> bool:
    task = await store.get("parent", EVERYONE)
    return task is not None and task.status is TaskStatus.COMPLETED


async def test_a_late_count_between_reopening_and_replay_is_made_good(store: SqliteStore) -> None:
    class Late(TaskMoves):
        """Somebody counts the failure once more, just before the replay."""

        async def make(self, move: Any) -> Task | None:
            if isinstance(move, Replay) and (parent := await store.get("parent", EVERYONE)) is not None:
                assert await super().make(CountSubtasks.of(parent, Counts(failed=1))) is not None
            return await super().make(move)

    failed = {"status": TaskStatus.FAILED, "check_at": None, "finished_at": store.now()}
    parent, child = family(store, [TaskStatus.FAILED], **failed, subtasks=Subtasks(1, None, done=1, failed=1))
    await store.insert([parent, child])
    operations = TaskOperations(store, Late(store, EventBus()), SECOND)
    await operations.retry(child.task_id, EVERYONE, by="operator", reopen=True)
    present = await store.get("parent", EVERYONE)
    assert present is not None
    assert present.status is TaskStatus.WAITING


async def test_a_count_that_was_begun_before_the_replay_is_not_written_after_it(store: SqliteStore) -> None:
    begun: list[CountSubtasks] = []

    class Late(TaskMoves):
        async def make(self, move: Any) -> Task | None:
            if isinstance(move, Replay) and (parent := await store.get("parent", EVERYONE)) is not None:
                begun.append(CountSubtasks.of(parent, Counts(failed=1)))
            return await super().make(move)

    failed = {"status": TaskStatus.FAILED, "check_at": None, "finished_at": store.now()}
    parent, child = family(store, [TaskStatus.FAILED], **failed, subtasks=Subtasks(1, None, done=1, failed=1))
    await store.insert([parent, child])
    moves = Late(store, EventBus())
    await TaskOperations(store, moves, SECOND).retry(child.task_id, EVERYONE, by="operator", reopen=True)
    assert await moves.make(begun[0]) is None
    present = await store.get("parent", EVERYONE)
    assert present is not None
    assert (present.status, present.check_at) == (TaskStatus.WAITING, store.now())


async def test_a_count_that_was_begun_before_the_retry_of_a_sub_task_does_not_end_the_parent(
    store: SqliteStore, clock: FakeClock
) -> None:
    parent, failed, done = family(
        store, [TaskStatus.FAILED, TaskStatus.COMPLETED], subtasks=Subtasks(2, None, policy="allow_failures")
    )
    await store.insert([parent, failed, done])
    moves = TaskMoves(store, EventBus())
    operations, reporter = TaskOperations(store, moves, SECOND), SubtaskReporter(store, moves, clock)
    Interrupted(store, lambda: operations.retry(failed.task_id, EVERYONE, by="operator"))
    reporter.handle_task(done)
    await counted_by(reporter, clock)
    present = await operations.get("parent", EVERYONE)
    assert (present.status, present.subtasks and present.subtasks.done) == (TaskStatus.WAITING, 1)


async def test_a_retry_of_a_sub_task_whose_parent_ends_at_the_same_time_is_refused(store: SqliteStore) -> None:
    class Late(TaskMoves):
        """A count that began before the replay is written right after it."""

        async def make(self, move: Any) -> Task | None:
            if isinstance(move, Replay) and (parent := await store.get("parent", EVERYONE)) is not None:
                replayed = await super().make(move)
                assert await super().make(CountSubtasks.of(parent, Counts(failed=1))) is not None
                return replayed
            return await super().make(move)

    parent, failed = family(store, [TaskStatus.FAILED], subtasks=Subtasks(1, None, policy="allow_failures"))
    await store.insert([parent, failed])
    moves = Late(store, EventBus())
    operations = TaskOperations(store, moves, SECOND)
    with pytest.raises(ParentFinishedError, match="which is COMPLETED_WITH_ERRORS"):
        await operations.retry(failed.task_id, EVERYONE, by="operator")
    present = await operations.get("parent", EVERYONE)
    assert CASCADE.time_of(present) is not None
    await Cascade(store, moves).work_on(present)
    assert (await operations.get(failed.task_id, EVERYONE)).status is TaskStatus.CANCELLED


async def test_failed_sub_tasks_of_an_ended_parent_are_repaired_one_after_the_other(
    store: SqliteStore, clock: FakeClock
) -> None:
    failed = {"status": TaskStatus.FAILED, "check_at": None, "finished_at": store.now()}
    round = Subtasks(3, None, done=3, failed=3, policy="at_least(2)")
    tasks = family(store, [TaskStatus.FAILED] * 3, **failed, subtasks=round)
    await store.insert(tasks)
    _, first, second, _ = tasks
    moves = TaskMoves(store, EventBus())
    operations, reporter = TaskOperations(store, moves, SECOND), SubtaskReporter(store, moves, clock)

    async def parent_after_a_count() -> TaskStatus:
        reporter.request_count("parent")
        await reporter.finished()
        return (await operations.get("parent", EVERYONE)).status

    for subtask in (first, second):
        await operations.retry(subtask.task_id, EVERYONE, by="operator", reopen=True)
        assert await parent_after_a_count() is TaskStatus.WAITING, "the other failures do not cancel it"
    for subtask, after in ((first, TaskStatus.WAITING), (second, TaskStatus.COMPLETED)):
        claimed = await store.apply(Claim(subtask.task_id, 2, subtask.task_id, "worker-1", MINUTE))
        assert claimed is not None
        fence = Fence(subtask.task_id, claimed.fencing_token, subtask.task_id)
        assert await store.apply(Complete(fence, "worker-1", None)) is not None
        assert await parent_after_a_count() is after


@pytest.mark.parametrize(
    ("reopened", "status", "cancelled"),
    [(True, TaskStatus.COMPLETED_WITH_ERRORS, 2), (False, TaskStatus.WAITING, 0)],
    ids=["reopened", "not yet visible"],
)
async def test_sub_tasks_that_were_deleted_count_as_cancelled(
    store: SqliteStore,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
    reopened: bool,
    status: TaskStatus,
    cancelled: int,
) -> None:
    """A parent may be reopened while the retention deletes its family. Otherwise a database that was elected just now
    may not show what was stored last.
    """
    over = {"status": TaskStatus.FAILED, "check_at": None, "finished_at": store.now()} if reopened else {}
    round = Subtasks(3, None, policy="allow_failures")
    parent, first, *_ = family(store, [TaskStatus.COMPLETED] * 3, **over, subtasks=round)
    await store.insert([parent, first])
    moves = TaskMoves(store, EventBus())
    if reopened:
        assert await moves.make(Reopen("parent", EVERYONE, "operator")) is not None
    reporter = SubtaskReporter(store, moves, clock)
    reporter.handle_task(first)
    await counted_by(reporter, clock)
    present = await store.get("parent", EVERYONE)
    assert present is not None
    assert (present.status, present.subtasks and present.subtasks.cancelled) == (status, cancelled)
    assert [record.levelname for record in caplog.records if "has deleted" in record.message] == ["WARNING"] * reopened


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        (
            {"subtasks": ONE_FAILED, "stream": StreamPlace("k", "serial", 0)},
            "A parent in a serial stream cannot be reopened. Retry the parent; it waits for its turn.",
        ),
        (
            {"subtasks": replace(ONE_FAILED, round=2)},
            "The parent has had another round of sub-tasks since then. Retry the parent; it begins with new ones.",
        ),
        (
            {"subtasks": replace(ONE_FAILED, is_awaited=False)},
            "The parent went on without its sub-tasks. Retry the parent; it begins with new ones.",
        ),
        (
            {"subtasks": replace(ONE_FAILED, planned=3)},
            "The retention has deleted 2 sub-tasks of task parent. Retry that task; it begins with new ones.",
        ),
    ],
    ids=["in a serial stream", "after another round", "after its signal", "partly deleted"],
)
async def test_a_parent_that_cannot_wait_again_is_not_reopened(
    store: SqliteStore, fields: dict[str, Any], hint: str
) -> None:
    failed = {"status": TaskStatus.FAILED, "check_at": None, "finished_at": store.now()}
    parent, child = family(store, [TaskStatus.FAILED], **failed, **fields)
    await store.insert([parent, child])
    operations = TaskOperations(store, TaskMoves(store, EventBus()), SECOND)
    with pytest.raises(ParentFinishedError) as refused:
        await operations.retry(child.task_id, EVERYONE, by="operator", reopen=True)
    assert refused.value.hint == hint
    assert await operations.get("parent", EVERYONE) == parent


async def test_a_parent_that_a_newer_version_has_replaced_is_not_reopened(store: SqliteStore) -> None:
    failed = {"status": TaskStatus.FAILED, "check_at": None, "finished_at": store.now()}
    counted, older = Subtasks(1, None, done=1, failed=1), Unique("page", 1)
    parent, child = family(store, [TaskStatus.FAILED], **failed, subtasks=counted, unique=older)
    newer = new_task(task_id="newer", now=store.now(), unique=Unique("page", 2), user_id=parent.user_id)
    await store.insert([parent, child, newer])
    await store.write_records([newest_record(newer, Unique("page", 2), None, SECOND)])
    operations = TaskOperations(store, TaskMoves(store, EventBus()), SECOND)
    with pytest.raises(TransitionRefusedError, match="version 1 of 'page', and task newer has taken its place"):
        await operations.retry(child.task_id, EVERYONE, by="operator", reopen=True)
    assert await operations.get("parent", EVERYONE) == parent


async def test_a_parent_is_not_replayed_while_its_sub_tasks_are_being_cancelled(store: SqliteStore) -> None:
    failed = {"status": TaskStatus.FAILED, "check_at": None, "finished_at": store.now()}
    [parent, *_] = family(store, [], **failed, cascade_at=store.now())
    assert Replay("parent", EVERYONE, "operator", SECOND).apply(parent, store.now()) is None
    assert Replay("parent", EVERYONE, "operator", SECOND).apply(parent.evolve(cascade_at=None), store.now()) is not None


@pytest.fixture
def bus() -> EventBus:
    return EventBus()


@pytest.fixture
def repair(store: SqliteStore, clock: FakeClock, bus: EventBus) -> Callable[[], Awaitable[None]]:
    """What the repair of another process finds, done to its end."""
    moves = TaskMoves(store, bus)
    spawner, cascade = Spawner(store, bus, SECOND, AsyncMock()), Cascade(store, moves)
    reporter = SubtaskReporter(store, moves, clock)
    parents = ParentRepair(store, moves, spawner, reporter, cascade, 10)

    async def look() -> None:
        await parents.run_once()
        for work in (spawner, cascade, reporter):
            await work.finished()

    return look


@pytest.mark.parametrize(("limit", "has_more"), [(1, True), (2, False)])
@pytest.mark.parametrize("driver", [SPAWN, CASCADE])
async def test_the_repair_says_whether_more_parents_are_due(
    store: SqliteStore, clock: FakeClock, bus: EventBus, driver: Driver, limit: int, has_more: bool
) -> None:
    [parent, *_] = family(store, [], check_at=None, **{driver.field: store.now()})
    await store.insert([parent])
    moves, work = TaskMoves(store, bus), AsyncMock()
    work.start = Mock()
    parents = ParentRepair(store, moves, work, SubtaskReporter(store, moves, clock), work, limit)
    assert await parents.run_once() is has_more
    assert work.start.call_count == 1


async def test_a_count_that_a_dead_process_left_undone_is_done_soon(
    store: SqliteStore,
    clock: FakeClock,
    repair: Callable[[], Awaitable[None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as that of a batch that was sealed after its last item had ended: no further end makes anybody count."""
    await store.insert(family(store, [TaskStatus.COMPLETED], check_at=store.now()))

    async def is_away(round: RoundOfSubtasks) -> dict[TaskStatus, int]:
        raise StoreUnavailableError

    with monkeypatch.context() as patched:
        patched.setattr(store, "count_subtasks", is_away)
        await repair()
    clock.advance(RECOUNT_AFTER)
    await repair()
    parent = await store.get("parent", EVERYONE)
    assert parent is not None
    assert parent.status is TaskStatus.COMPLETED


async def test_a_plan_that_a_dead_process_left_half_stored_is_stored(
    store: SqliteStore, clock: FakeClock, bus: EventBus, repair: Callable[[], Awaitable[None]]
) -> None:
    submitted: list[Task] = []
    bus.listen(TaskSubmittedEvent, lambda event: submitted.append(event.task), name="test")
    items = [[n, "hash"] for n in range(3)]
    plan = [{"task_type": "part", "priority": "normal", "max_attempts": 1, "items": items}]
    left = {
        "subtasks": Subtasks(3, plan),
        "spawn_at": store.now() + SPAWN_AFTER,
        "check_at": store.now() + WAIT_CHECK_INTERVAL,
    }
    parent, first = family(store, [TaskStatus.COMPLETED], **left)
    await store.insert([parent, first])
    await repair()
    assert await below(store) == [first], "the process that planned them has its time"
    clock.advance(SPAWN_AFTER)
    await repair()
    found = await below(store)
    assert [task.parent and task.parent.slot for task in found] == [0, 1, 2]
    assert found[0] == first, "what was there is passed over"
    assert [task.parameters for task in found[1:]] == [1, 2]
    assert submitted == found[1:]
    present = await store.get("parent", EVERYONE)
    assert present is not None
    assert present.subtasks is not None
    assert (present.spawn_at, present.subtasks.plan) == (None, None)


async def test_a_plan_that_waited_too_long_in_its_process_is_stored_by_one_of_the_two(
    store: SqliteStore, clock: FakeClock, bus: EventBus, repair: Callable[[], Awaitable[None]]
) -> None:
    plan = [{"task_type": "part", "priority": "normal", "max_attempts": 1, "items": [[0, "hash"]]}]
    spawn_at, check_at = store.now() + SPAWN_AFTER, store.now() + WAIT_CHECK_INTERVAL
    [parent] = family(store, [], subtasks=Subtasks(1, plan), spawn_at=spawn_at, check_at=check_at)
    await store.insert([parent])
    inserts: list[Sequence[Task]] = []
    insert = store.insert

    async def counted(tasks: Sequence[Task]) -> Sequence[Inserted | Exception]:
        inserts.append(tasks)
        return await insert(tasks)

    store.insert = counted  # type: ignore[method-assign]
    clock.advance(SPAWN_AFTER)
    await repair()
    await Spawner(store, bus, SECOND, AsyncMock()).work_on(parent)
    assert len(inserts) == 1, "the repair of another process has it in hand"
    assert [task.parameters for task in await below(store)] == [0]


async def test_a_plan_that_waited_too_long_is_stored_if_nobody_else_does(
    store: SqliteStore, clock: FakeClock, bus: EventBus
) -> None:
    plan = [{"task_type": "part", "priority": "normal", "max_attempts": 1, "items": [[0, "hash"]]}]
    spawn_at, check_at = store.now() + SPAWN_AFTER, store.now() + WAIT_CHECK_INTERVAL
    [parent] = family(store, [], subtasks=Subtasks(1, plan), spawn_at=spawn_at, check_at=check_at)
    await store.insert([parent])
    clock.advance(2 * SPAWN_AFTER)
    await Spawner(store, bus, SECOND, AsyncMock()).work_on(parent)
    assert [task.parameters for task in await below(store)] == [0]


async def test_a_large_plan_is_stored_from_its_records_which_go_then(
    store: SqliteStore, clock: FakeClock, repair: Callable[[], Awaitable[None]]
) -> None:
    parent, plans = in_records(store)
    await store.write_records(plans[:1])
    await store.insert([parent])
    await repair()
    assert [task.parameters for task in await below(store)] == [0]
    present = await store.get("parent", EVERYONE)
    assert present is not None
    assert present.spawn_at is not None, "a part was missing: it is tried again"

    await store.write_records(plans[1:])
    clock.advance(MINUTE)
    await repair()
    assert [task.parameters for task in await below(store)] == [0, 1]
    assert await store.read_records([plan.id for plan in plans]) == {}


async def test_a_large_plan_is_not_stored_any_further_when_its_parent_has_ended(
    store: SqliteStore, repair: Callable[[], Awaitable[None]]
) -> None:
    parent, plans = in_records(store)
    await store.write_records(plans)
    await store.insert([parent])
    insert = store.insert

    async def insert_and_cancel(tasks: Sequence[Task]) -> Sequence[Inserted | Exception]:
        await store.apply(Cancel("parent", EVERYONE, "alice", None))
        return await insert(tasks)

    store.insert = insert_and_cancel  # type: ignore[method-assign]
    await repair()
    assert [task.parameters for task in await below(store)] == [0]


async def test_each_part_of_a_plan_waits_until_most_events_of_earlier_parts_are_published(
    store: SqliteStore, bus: EventBus
) -> None:
    parent, plans = in_records(store)
    await store.write_records(plans)
    await store.insert([parent])
    stored: list[int] = []

    async def wait_for_room() -> None:
        stored.append(len(await below(store)))

    await Spawner(store, bus, SECOND, wait_for_room).work_on(parent)
    assert stored == [1, 2]


def in_records(store: SqliteStore) -> tuple[Task, list[Record]]:
    """A parent with a plan in two records, each with one sub-task."""
    group = {"task_type": "part", "priority": "normal", "max_attempts": 1}
    later = store.now() + WAIT_CHECK_INTERVAL
    subtasks = Subtasks(2, None, plan_records=2)
    [parent] = family(store, [], subtasks=subtasks, spawn_at=store.now(), check_at=later)
    return parent, [part_of(parent, n, n, [{**group, "items": [[n, "hash"]]}], store.now()) for n in range(2)]


async def test_a_plan_of_which_a_part_could_not_be_stored_is_kept(
    store: SqliteStore, repair: Callable[[], Awaitable[None]]
) -> None:
    items = [[n, "hash"] for n in range(2)]
    plan = [{"task_type": "part", "priority": "normal", "max_attempts": 1, "items": items}]
    await store.insert(family(store, [], subtasks=Subtasks(2, plan), spawn_at=store.now()))

    async def insert(tasks: Sequence[Task]) -> Sequence[Inserted | Exception]:
        return [Inserted(tasks[0], is_new=True), StoreUnavailableError()]

    store.insert = insert  # type: ignore[method-assign]
    await repair()
    present = await store.get("parent", EVERYONE)
    assert present is not None
    assert present.subtasks is not None
    assert (present.subtasks.plan, present.spawn_at is None) == (plan, False)


async def test_a_cascade_that_nobody_began_is_begun(store: SqliteStore, repair: Callable[[], Awaitable[None]]) -> None:
    over = {"status": TaskStatus.CANCELLED, "check_at": None, "finished_at": store.now(), "cascade_at": store.now()}
    await store.insert(family(store, [TaskStatus.QUEUED, TaskStatus.COMPLETED, TaskStatus.RETRYING], **over))
    await repair()
    found = await below(store)
    assert [task.status for task in found] == [TaskStatus.CANCELLED, TaskStatus.COMPLETED, TaskStatus.CANCELLED]
    present = await store.get("parent", EVERYONE)
    assert present is not None
    assert present.cascade_at is None


async def test_a_parent_of_which_nobody_heard_is_counted_when_it_is_looked_at(
    store: SqliteStore, repair: Callable[[], Awaitable[None]]
) -> None:
    await store.insert(family(store, [TaskStatus.COMPLETED, TaskStatus.COMPLETED], check_at=store.now()))
    await repair()
    present = await store.get("parent", EVERYONE)
    assert present is not None
    assert present.status is TaskStatus.COMPLETED


async def below(store: SqliteStore) -> list[Task]:
    return list(await store.list_subtasks(RoundOfSubtasks("parent", 0, 1), limit=10))


async def test_a_parent_that_had_continued_without_a_sub_task_is_counted_when_it_ends(
    store: SqliteStore, clock: FakeClock
) -> None:
    over: dict[str, Any] = {"status": TaskStatus.COMPLETED, "finished_at": clock.now(), "check_at": None}
    counted_before = Subtasks(2, None, done=1, succeeded=1)  # the other one has ended before the parent ends
    tasks = family(store, [TaskStatus.COMPLETED, TaskStatus.CANCELLED], subtasks=counted_before, **over)
    await store.insert(tasks)
    reporter = SubtaskReporter(store, TaskMoves(store, EventBus()), clock)
    reporter.on_event(TaskCompletedEvent(tasks[0]))
    await reporter.finished()
    parent = await store.get("parent", EVERYONE)
    assert parent is not None
    assert parent.subtasks is not None
    assert (parent.subtasks.done, parent.subtasks.succeeded, parent.subtasks.cancelled) == (2, 1, 1)
