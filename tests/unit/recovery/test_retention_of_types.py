"""How long the tasks of a type stay that says so, and what is kept all the same."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest

from taskframework import BackgroundTaskExecutable, RegistrationError, Retention, TaskContext, TaskOptions
from taskframework.bus import EventBus
from taskframework.model.attempts import Claim, Complete, Fail
from taskframework.model.idempotency import key_id
from taskframework.model.interventions import Cancel, Replay
from taskframework.model.marks import MarkPublished
from taskframework.model.options import KeptFor
from taskframework.model.query import MAX_LIMIT, TaskFilter
from taskframework.model.scope import EVERYONE
from taskframework.model.status import DEAD, TaskStatus
from taskframework.model.subtasks import subtask_of
from taskframework.model.task import FAMILY_VERSION, Task
from taskframework.model.task_fields import Subtasks
from taskframework.model.transitions import Fence
from taskframework.recovery import retention
from taskframework.stores.sqlite import SqliteStore
from taskframework.submission.requests import SubmitRequest
from taskframework.submission.types import TaskTypes
from taskframework.tasks.registry import TaskRegistry
from taskframework.tasks.retention import retention_from_option, retention_from_times
from taskframework.testing.clock import FakeClock
from taskframework.testing.conformance.store_suite import insert_one, make_error
from taskframework.testing.factories import new_task
from tests.support.submission import submission_into

HOUR, NO_TIME = timedelta(hours=1), timedelta(0)
FINISHED, FAILED, KEYS = 6 * HOUR, 12 * HOUR, 3 * HOUR


class Usual(BackgroundTaskExecutable[None, None]):
    task_type = "usual"

    async def execute(self, context: TaskContext[None]) -> None: ...


class Forgotten(Usual):
    task_type = "forgotten"
    options = TaskOptions(retention=0)


class Remembered(Usual):
    task_type = "remembered"
    options = TaskOptions(retention=Retention(finished=20 * HOUR, failed=HOUR))


#: What the rules say, in the test's own words: after its end, by type and whether it failed.
RULES = {
    ("usual", False): FINISHED,
    ("usual", True): FAILED,
    ("forgotten", False): NO_TIME,
    ("forgotten", True): FAILED,
    ("remembered", False): 20 * HOUR,
    ("remembered", True): HOUR,
}


@dataclass
class Ended:
    """A task that the test knows of, as long as it is to be there."""

    task: Task
    until: datetime
    is_told: bool = True


class Stage:
    """A store with its way in, and the retention."""

    def __init__(self, store: SqliteStore, clock: FakeClock, *, declared: bool = False) -> None:
        self.store = store
        self.clock = clock
        registry = TaskRegistry()
        for executable in (Usual, Forgotten, Remembered):
            registry.register(executable)
        self.types = TaskTypes(registry, store)
        known = TaskTypes(TaskRegistry(), store) if declared else self.types
        kept = retention_from_times(FINISHED, FAILED)
        self.service = submission_into(store, known, EventBus(), max_attempts=1, keys_kept=KEYS, kept=kept)
        self.retention = retention.RetentionRepair(
            store, finished=FINISHED, dead_letters=FAILED, idempotency_keys=KEYS, limit=3
        )

    async def submit(self, task_type: str, **options: Any) -> Task:
        return (await self.service.submit(SubmitRequest(task_type=task_type, **options))).task

    async def end(self, task: Task, *, fails: bool = False, is_told: bool = True) -> Task:
        claim = Claim(task.task_id, task.dispatch_epoch, "claim", "worker-1", HOUR)
        claimed = await self.store.apply(claim)
        assert claimed is not None
        fence = Fence(task.task_id, claimed.fencing_token, "claim")
        over = Fail(fence, "worker-1", make_error(), False, NO_TIME) if fails else Complete(fence, "worker-1", None)
        ended = await self.store.apply(over)
        assert ended is not None
        if is_told:
            await self.tell(ended)
        return ended

    async def tell(self, task: Task) -> None:
        await self.store.mark(MarkPublished(task.task_id, task.sequence))

    async def purge(self) -> None:
        for _ in range(2):  # a parent goes after its sub-tasks
            while await self.retention.purge():
                pass

    async def is_there(self, task: Task) -> bool:
        return await self.store.get(task.task_id, EVERYONE) is not None

    async def all_there(self) -> set[str]:
        page = await self.store.list_tasks(EVERYONE, TaskFilter(), limit=MAX_LIMIT)
        assert page.next_cursor is None
        return {task.task_id for task in page.items}


@pytest.fixture
def stage(store: SqliteStore, clock: FakeClock) -> Stage:
    return Stage(store, clock)


async def test_a_day_of_retention_leaves_exactly_what_the_rules_say(stage: Stage) -> None:
    chance, known, live = random.Random(7), list[Ended](), set[str]()
    for hour in range(24):
        for task_type in ("usual", "forgotten", "remembered"):
            live.add((await stage.submit(task_type)).task_id)
            for fails in (False, True):
                is_told = chance.random() < 0.7
                task = await stage.end(await stage.submit(task_type), fails=fails, is_told=is_told)
                assert task.finished_at is not None
                known.append(Ended(task, task.finished_at + RULES[task_type, fails], is_told))
        if hour % 5 == 4:
            for ended in known:
                await stage.tell(ended.task)
                ended.is_told = True
        await stage.purge()
        now = stage.clock.now()
        known = [ended for ended in known if now < ended.until or not ended.is_told]
        assert await stage.all_there() == live | {ended.task.task_id for ended in known}, f"after {hour} hours"
        stage.clock.advance(HOUR)


async def test_a_type_can_keep_nothing(stage: Stage) -> None:
    task = await stage.end(await stage.submit("forgotten"), is_told=False)
    await stage.purge()
    assert await stage.is_there(task), "nobody was told of its end yet"
    await stage.tell(task)
    await stage.purge()
    assert not await stage.is_there(task)


async def test_a_declared_type_has_the_same_retention(store: SqliteStore, clock: FakeClock) -> None:
    stage = Stage(store, clock, declared=True)
    await stage.types.declare("worker-1")
    task = await stage.submit("remembered")
    assert task.retention == KeptFor(20 * 3_600_000, 3_600_000)


async def test_a_cancelled_task_is_removed_like_a_finished_one_and_a_replayed_one_stays(stage: Stage) -> None:
    cancelled = await stage.store.apply(Cancel((await stage.submit("forgotten")).task_id, EVERYONE, "alice", None))
    assert cancelled is not None
    failed = await stage.end(await stage.submit("remembered"), fails=True)
    assert failed.status in DEAD
    replayed = await stage.store.apply(Replay(failed.task_id, EVERYONE, "alice", NO_TIME))
    assert replayed is not None
    for task in (cancelled, replayed):
        await stage.tell(task)
    stage.clock.advance(2 * HOUR)
    await stage.purge()
    assert (await stage.is_there(cancelled), await stage.is_there(replayed)) == (False, True)


@pytest.mark.parametrize("named", [{"idempotency_key": "key"}, {"unique": {"key": "key", "version": 1}}])
async def test_a_task_that_a_later_submission_must_find_stays_as_long_as_its_key(stage: Stage, named: Any) -> None:
    task = await stage.end(await stage.submit("forgotten", **named))
    stage.clock.advance(KEYS - timedelta(milliseconds=1))
    await stage.purge()
    assert (await stage.submit("forgotten", **named)).task_id == task.task_id
    stage.clock.advance(timedelta(milliseconds=1))
    await stage.purge()
    assert not await stage.is_there(task)
    assert not await stage.store.read_records([key_id("anonymous", "key")])


@pytest.mark.parametrize("task_type", ["usual", "forgotten", "remembered"])
@pytest.mark.parametrize("fails", [False, True])
async def test_the_task_of_a_throttled_key_stays_for_its_period(stage: Stage, task_type: str, fails: bool) -> None:
    period = 18 * HOUR
    throttle = {"key": "key", "every": period}
    task = await stage.end(await stage.submit(task_type, throttle=throttle), fails=fails)
    passed = stage.clock.now().timestamp() % period.total_seconds()
    stage.clock.advance(period - timedelta(seconds=passed) - timedelta(milliseconds=1))
    await stage.purge()
    assert (await stage.submit(task_type, throttle=throttle)).task_id == task.task_id
    stage.clock.advance(timedelta(milliseconds=1))
    assert (await stage.submit(task_type, throttle=throttle)).task_id != task.task_id
    stage.clock.advance(period + HOUR)
    await stage.purge()
    assert await stage.is_there(task) == (RULES[task_type, fails] > 2 * period)


async def test_a_debounced_task_stays_long_enough_that_its_id_is_not_used_again(stage: Stage) -> None:
    task = await stage.submit("forgotten", debounce={"key": "key", "wait": "1ms"})
    stage.clock.advance(timedelta(seconds=1))
    await stage.end(task)
    await stage.purge()
    assert await stage.is_there(task)
    assert (await stage.submit("forgotten", debounce={"key": "key", "wait": "1ms"})).task_id != task.task_id


async def test_sub_tasks_stay_as_long_as_their_parent(stage: Stage) -> None:
    waiting: dict[str, Any] = {"status": TaskStatus.WAITING, "next_dispatch_at": None, "check_at": stage.clock.now()}
    parent = new_task(now=stage.clock.now(), subtasks=Subtasks(1, None), schema_version=FAMILY_VERSION, **waiting)
    await insert_one(stage.store, parent)
    group = {"task_type": "forgotten", "priority": "normal", "max_attempts": 1, "retention": {"finished": 0}}
    subtask = subtask_of(parent, 0, group, None, "hash", stage.clock.now(), NO_TIME)
    await stage.end((await insert_one(stage.store, subtask)).task)
    stage.clock.advance(9 * HOUR)
    await stage.purge()
    assert await stage.is_there(subtask)
    ended = await stage.store.apply(Cancel(parent.task_id, EVERYONE, "alice", None))
    assert ended is not None
    await stage.tell(ended)
    await stage.purge()
    assert await stage.is_there(subtask), "its parent stays for as long as the settings say"
    stage.clock.advance(FINISHED)
    await stage.purge()
    assert not await stage.all_there()


@pytest.mark.parametrize("wrong", [-1, "1d", True, timedelta(days=40_000)])
def test_a_retention_that_is_no_time_is_refused(wrong: Any) -> None:
    with pytest.raises(RegistrationError, match=r"retention.*Use a timedelta or seconds, from zero"):
        TaskOptions(retention=wrong)
    for given in ({"finished": wrong}, {"failed": wrong}):
        with pytest.raises(RegistrationError, match=r"retention.*Use a timedelta or seconds, from zero"):
            Retention(**given)


@pytest.mark.parametrize(
    ("given", "kept"),
    [(None, None), (0, KeptFor(0)), (1.5, KeptFor(1_500)), (Retention(failed=HOUR), KeptFor(None, 3_600_000))],
)
def test_a_retention_is_carried_by_tasks(given: Any, kept: KeptFor | None) -> None:
    assert retention_from_option(given) == kept
