"""Debounced and throttled keys: who shares a task, what it runs with, and what a process that dies leaves."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from taskframework import failpoint
from taskframework.bus import EventBus
from taskframework.errors import InvalidRequestError
from taskframework.model.attempts import Claim, Complete, Fail, Release
from taskframework.model.debounce import WINDOWS
from taskframework.model.events import TaskEvent, TaskReplacedEvent, TaskSubmittedEvent
from taskframework.model.idempotency import GRACE
from taskframework.model.interventions import Cancel, Replay
from taskframework.model.marks import MarkPublished
from taskframework.model.query import TaskFilter
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.model.task import Task
from taskframework.model.transitions import Fence
from taskframework.recovery.retention import RetentionRepair
from taskframework.stores.sqlite import SqliteStore
from taskframework.submission.requests import SubmitRequest
from taskframework.submission.service import Submission
from taskframework.submission.types import TaskTypes
from taskframework.tasks.registry import TaskRegistry
from taskframework.testing.clock import FakeClock
from taskframework.testing.conformance.store_suite import make_error
from tests.support.kitchen_sink import CountWords, Flaky
from tests.support.submission import submission_into

SECOND, DAY, NO_TIME = timedelta(seconds=1), timedelta(days=1), timedelta(0)
WAIT, LONGEST, PERIOD = 10 * SECOND, 60 * SECOND, timedelta(minutes=10)


async def die() -> None:
    raise RuntimeError("the process died")


class Installation:
    """A store and the way in."""

    def __init__(self, store: SqliteStore, clock: FakeClock) -> None:
        self.store = store
        self.clock = clock
        self.told: list[TaskEvent] = []
        bus = EventBus()
        bus.listen(TaskEvent, self.told.append, name="told")
        registry = TaskRegistry()
        registry.register(CountWords)
        registry.register(Flaky)
        self.service = submission_into(store, TaskTypes(registry, store), bus, max_attempts=1)

    async def submit(self, text: str, **options: Any) -> Submission:
        request = SubmitRequest(task_type="count-words", parameters={"text": text}, **options)
        return await self.service.submit(request)

    async def debounce(self, text: str, key: str = "page", **options: Any) -> Submission:
        return await self.submit(text, debounce={"key": key, "wait": WAIT, "max_wait": LONGEST}, **options)

    async def throttle(self, text: str, key: str = "page") -> Submission:
        return await self.submit(text, throttle={"key": key, "every": PERIOD})

    async def tasks(self) -> list[Task]:
        return list((await self.store.list_tasks(EVERYONE, TaskFilter(), limit=500)).items)

    async def begin(self, task: Task) -> Task | None:
        """What a worker makes of a message that was sent for this task as it is here."""
        claim = Claim(task.task_id, task.dispatch_epoch, f"claim-{task.dispatch_epoch}", "worker-1", DAY)
        return await self.store.apply(claim)

    async def present(self, task: Task) -> Task:
        there = await self.store.get(task.task_id, EVERYONE)
        assert there is not None
        return there


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[Installation]:
    clock = FakeClock()
    store = SqliteStore(tmp_path / "tasks.db", clock=clock)
    await store.open()
    yield Installation(store, clock)
    failpoint.disarm()
    await store.close()


def text_of(task: Task) -> str:
    return str(task.parameters["text"])


class TestDebounce:
    async def test_newer_parameters_replace_those_of_the_waiting_task_and_restart_its_wait(
        self, here: Installation
    ) -> None:
        first = await here.debounce("one")
        assert (first.is_new, first.task.not_before) == (True, here.clock.now() + WAIT)
        here.clock.advance(4)
        second = await here.debounce("two")
        assert (second.is_new, second.task.task_id) == (False, first.task.task_id)
        assert (text_of(second.task), second.task.not_before) == ("two", here.clock.now() + WAIT)
        assert (second.task.next_dispatch_at, second.task.dispatch_epoch) == (second.task.not_before, 2)
        assert [entry.type for entry in second.task.history] == ["submitted", "replaced"]
        assert [type(event) for event in here.told] == [TaskSubmittedEvent, TaskReplacedEvent]
        assert await here.begin(first.task) is None, "an older message begins nothing"
        here.clock.advance(WAIT)
        begun = await here.begin(second.task)
        assert begun is not None
        assert text_of(begun) == "two"
        assert text_of(await here.present(second.task)) == "two"

    async def test_each_key_user_and_type_has_its_own_task(self, here: Installation) -> None:
        option: Any = {"key": "page", "wait": WAIT}
        other = SubmitRequest(task_type="flaky", parameters={}, debounce=option)
        made = [
            await here.debounce("one"),
            await here.debounce("one", key="other"),
            await here.debounce("one", user_id="bob"),
            await here.service.submit(other),
        ]
        assert [submission.is_new for submission in made] == [True] * 4

    async def test_a_debounced_task_waits_at_most_max_wait_from_the_first_submission_on(
        self, here: Installation
    ) -> None:
        first = await here.debounce("0")
        latest = first.task.created_at + LONGEST
        for n in range(1, 20):
            here.clock.advance(4)
            replaced = (await here.debounce(str(n))).task
            assert (replaced.task_id, text_of(replaced)) == (first.task.task_id, str(n))
            assert replaced.not_before == min(here.clock.now() + WAIT, latest)
        late = await here.debounce("late")
        assert (await here.begin(late.task)) is not None

    async def test_a_late_debounced_task_gets_newer_parameters_and_keeps_its_place(self, here: Installation) -> None:
        first = await here.debounce("one")
        here.clock.advance(LONGEST + WAIT)
        due = await here.debounce("two")
        later = await here.debounce("three")
        assert (due.task.not_before, later.task.dispatch_epoch) == (
            first.task.created_at + LONGEST,
            due.task.dispatch_epoch,
        )
        begun = await here.begin(due.task)
        assert begun is not None
        assert text_of(begun) == "three", "the message that is in the queue finds the newest"

    async def test_a_debounced_task_that_has_begun_is_left_alone_and_the_next_window_opens(
        self, here: Installation
    ) -> None:
        first = await here.debounce("one")
        here.clock.advance(WAIT)
        begun = await here.begin(first.task)
        assert begun is not None
        second = await here.debounce("two")
        assert second.is_new
        assert second.task.task_id != first.task.task_id
        fence = Fence(begun.task_id, begun.fencing_token, "claim-1")
        released = await here.store.apply(Release(fence, "worker-1"))
        assert released is not None
        assert (await here.debounce("three")).task.task_id == second.task.task_id
        assert text_of(await here.present(first.task)) == "one"

    async def test_a_debounced_task_that_was_released_counts_as_begun(self, here: Installation) -> None:
        first = (await here.debounce("one")).task
        here.clock.advance(WAIT)
        begun = await here.begin(first)
        assert begun is not None
        fence = Fence(begun.task_id, begun.fencing_token, "claim-1")
        assert await here.store.apply(Release(fence, "worker-1")) is not None
        assert (await here.debounce("two")).is_new
        assert text_of(await here.present(first)) == "one"

    async def test_a_debounced_task_that_has_ended_is_left_alone(self, here: Installation) -> None:
        first = (await here.debounce("one")).task
        await here.store.apply(Cancel(first.task_id, EVERYONE, "alice", None))
        second = (await here.debounce("two")).task
        assert second.task_id != first.task_id
        replayed = await here.store.apply(Replay(first.task_id, EVERYONE, "alice", NO_TIME))
        assert replayed is not None
        assert (await here.debounce("three")).task.task_id == second.task_id
        assert text_of(await here.present(first)) == "one", "a replay runs what there was"

    async def test_a_replayed_task_of_the_present_window_keeps_its_parameters(self, here: Installation) -> None:
        first = (await here.debounce("one")).task
        here.clock.advance(WAIT)
        begun = await here.begin(first)
        assert begun is not None
        fence = Fence(begun.task_id, begun.fencing_token, "claim-1")
        assert await here.store.apply(Fail(fence, "worker-1", make_error(), False, NO_TIME)) is not None
        assert await here.store.apply(Replay(first.task_id, EVERYONE, "alice", NO_TIME)) is not None
        assert (await here.debounce("two")).is_new
        assert text_of(await here.present(first)) == "one"

    @pytest.mark.parametrize("point", ["submit.before_insert", "debounce.after_record", "submit.after_insert"])
    async def test_a_submitter_that_dies_leaves_nothing_in_the_way(self, here: Installation, point: str) -> None:
        failpoint.arm(point, die)
        with pytest.raises(RuntimeError):
            await here.debounce("one")
        failpoint.disarm()
        second = (await here.debounce("two")).task
        assert [text_of(task) for task in await here.tasks()] == ["two"]
        assert (await here.debounce("three")).task.task_id == second.task_id

    async def test_a_submitter_that_comes_before_the_first_has_stored_the_task_stores_it(
        self, here: Installation
    ) -> None:
        arrived, goes_on = asyncio.Event(), asyncio.Event()

        async def sleep() -> None:
            arrived.set()
            await goes_on.wait()

        failpoint.arm("debounce.after_record", sleep)
        first = asyncio.create_task(here.debounce("one"))
        await arrived.wait()
        failpoint.disarm()
        second = await here.debounce("two")
        goes_on.set()
        assert ((await first).is_new, second.is_new) == (False, True)
        [task] = await here.tasks()
        assert ((await first).task.task_id, second.task.task_id) == (task.task_id, task.task_id)
        assert text_of(task) == "one", "it was accepted last"

    async def test_a_first_submitter_that_sleeps_until_its_task_begins_opens_a_new_window(
        self, here: Installation
    ) -> None:
        async def another_stores_it_and_a_worker_begins() -> None:
            failpoint.disarm()
            second = await here.debounce("two")
            here.clock.advance(WAIT)
            begun.append(await here.begin(second.task))

        begun: list[Task | None] = []
        failpoint.arm("debounce.after_record", another_stores_it_and_a_worker_begins)
        first = await here.debounce("one")
        assert begun[0] is not None
        assert (first.is_new, first.task.task_id != begun[0].task_id) == (True, True)
        assert (text_of(begun[0]), text_of(await here.present(first.task))) == ("two", "one")
        assert (await here.debounce("three")).task.task_id == first.task.task_id

    async def test_a_submitter_that_dies_after_it_replaced_has_replaced(self, here: Installation) -> None:
        await here.debounce("one")
        failpoint.arm("debounce.after_replace", die)
        with pytest.raises(RuntimeError):
            await here.debounce("two")
        failpoint.disarm()
        assert [text_of(task) for task in await here.tasks()] == ["two"]

    async def test_a_window_whose_task_never_came_is_given_up_in_time(self, here: Installation) -> None:
        failpoint.arm("debounce.after_record", die)
        with pytest.raises(RuntimeError):
            await here.debounce("one")
        failpoint.disarm()
        [record] = await here.store.list_records(WINDOWS.name, limit=10)
        here.clock.advance(GRACE)
        assert (await here.debounce("two")).task.task_id != WINDOWS.content(record).task_id

    async def test_concurrent_debounced_submissions_share_one_task_with_the_newest_text(
        self, here: Installation
    ) -> None:
        accepted = await asyncio.gather(*(here.debounce(str(n)) for n in range(30)))
        [task] = await here.tasks()
        assert {submission.task.task_id for submission in accepted} == {task.task_id}
        assert sum(submission.is_new for submission in accepted) == 1
        newest = max((submission.task for submission in accepted), key=lambda seen: seen.sequence)
        assert text_of(task) == text_of(newest)

    @pytest.mark.parametrize("seed", range(20))
    async def test_a_debounced_task_always_runs_with_the_newest_accepted_parameters(
        self, here: Installation, seed: int
    ) -> None:
        """Submitters that die, workers that claim just then: each task runs with the last that was accepted for it."""
        chance = random.Random(seed)
        number, newest, ran = 0, dict[str, Task](), dict[str, str]()

        async def submitter() -> None:
            nonlocal number
            for _ in range(5):
                number += 1
                text = str(number)
                await asyncio.sleep(0)
                try:
                    accepted = (await here.debounce(text)).task
                except RuntimeError:
                    continue
                before = newest.setdefault(accepted.task_id, accepted)
                newest[accepted.task_id] = max(before, accepted, key=lambda seen: seen.sequence)

        async def worker() -> None:
            for _ in range(30):
                await asyncio.sleep(0)
                here.clock.advance(chance.choice((0, 1, 11)))
                for task in await here.tasks():
                    if task.status is TaskStatus.QUEUED and (begun := await here.begin(task)) is not None:
                        ran[begun.task_id] = text_of(begun)

        async def dies_at_times() -> None:
            if chance.random() < 0.1:
                await die()

        failpoint.arm("debounce.after_record", dies_at_times)
        await asyncio.gather(submitter(), submitter(), submitter(), worker())
        failpoint.disarm()
        here.clock.advance(LONGEST)
        await worker()
        assert ran == {task.task_id: text_of(task) for task in await here.tasks()}, "nothing is replaced once it began"
        assert ran == {task_id: text_of(task) for task_id, task in newest.items()}
        assert len(ran) < number, "something was debounced"

    async def test_the_record_of_a_key_goes_after_its_task(self, here: Installation) -> None:
        retention = RetentionRepair(here.store, finished=DAY, dead_letters=DAY, idempotency_keys=DAY, limit=9)
        task = (await here.debounce("one")).task
        here.clock.advance(3 * DAY)
        await retention.purge()
        assert (await here.debounce("two")).task.task_id == task.task_id, "as long as it waits"
        begun = await here.begin(await here.present(task))
        assert begun is not None
        done = await here.store.apply(
            Complete(Fence(task.task_id, begun.fencing_token, f"claim-{begun.dispatch_epoch}"), "w", None)
        )
        assert done is not None
        await here.store.mark(MarkPublished(task.task_id, done.sequence))
        here.clock.advance(3 * DAY)
        for _ in range(3):
            await retention.purge()
        assert await here.tasks() == []
        assert not await here.store.list_records(WINDOWS.name, limit=10)


class TestThrottle:
    async def test_the_first_submission_of_each_period_is_the_task(self, here: Installation) -> None:
        first = await here.throttle("one")
        again = await here.throttle("two")
        assert (first.is_new, again.is_new, again.task) == (True, False, first.task)
        here.clock.advance(PERIOD)
        assert (await here.throttle("three")).is_new
        assert len(await here.tasks()) == 2

    async def test_each_key_user_and_type_has_its_own_task(self, here: Installation) -> None:
        option: Any = {"key": "page", "every": PERIOD}
        other = SubmitRequest(task_type="flaky", parameters={}, throttle=option)
        made = [
            await here.throttle("one"),
            await here.throttle("one", "other"),
            await here.submit("one", throttle={"key": "page", "every": PERIOD}, user_id="bob"),
            await here.submit("one", throttle={"key": "page", "every": 2 * PERIOD}),
            await here.service.submit(other),
        ]
        assert [submission.is_new for submission in made] == [True] * 5

    async def test_a_throttled_key_keeps_its_task_however_that_ended(self, here: Installation) -> None:
        first = (await here.throttle("one")).task
        await here.store.apply(Cancel(first.task_id, EVERYONE, "alice", None))
        again = await here.throttle("two")
        assert (again.is_new, again.task.status) == (False, TaskStatus.CANCELLED)

    async def test_many_throttled_submissions_at_once_are_one_task(self, here: Installation) -> None:
        option: Any = {"key": "page", "every": PERIOD}
        requests = [
            SubmitRequest(task_type="count-words", parameters={"text": str(n)}, throttle=option) for n in range(9)
        ]
        outcomes = await here.service.submit_many(requests)
        outcomes += await asyncio.gather(*(here.throttle(str(n)) for n in range(9)))
        submissions = [outcome for outcome in outcomes if isinstance(outcome, Submission)]
        assert len(submissions) == 18
        assert len({submission.task.task_id for submission in submissions}) == 1
        assert sum(submission.is_new for submission in submissions) == 1

    async def test_one_call_may_have_throttled_requests_and_ones_with_idempotency_keys(
        self, here: Installation
    ) -> None:
        first = (await here.throttle("one")).task
        given: list[Any] = [{"throttle": {"key": "page", "every": PERIOD}}, {"idempotency_key": "k"}]
        requests = [SubmitRequest(task_type="count-words", parameters={"text": "two"}, **each) for each in given]
        shared, keyed = await here.service.submit_many(requests)
        assert isinstance(shared, Submission)
        assert isinstance(keyed, Submission)
        assert (shared.is_new, shared.task, keyed.is_new) == (False, first, True)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"debounce": {"key": "k", "wait": WAIT}, "idempotency_key": "i"}, "debounce"),
        ({"throttle": {"key": "k", "every": WAIT}, "idempotency_key": "i"}, "throttle"),
        ({"throttle": {"key": "k", "every": WAIT}, "debounce": {"key": "k", "wait": WAIT}}, "throttle"),
        ({"throttle": {"key": "k", "every": WAIT}, "unique": {"key": "k", "version": 1}}, "throttle"),
        ({"debounce": {"key": "k", "wait": WAIT}, "unique": {"key": "k", "version": 1}}, "debounce"),
        ({"debounce": {"key": "k", "wait": WAIT}, "not_before": "2030-01-01T00:00:00Z"}, "not_before"),
        ({"debounce": {"key": "k", "wait": WAIT}, "deadline": "2030-01-01T00:00:00Z"}, "deadline"),
        ({"debounce": {"key": "k", "wait": WAIT, "max_wait": WAIT / 2}}, "debounce.max_wait"),
        ({"debounce": {"key": "k", "wait": "10"}}, "debounce.wait"),
        ({"debounce": {"key": "k", "wait": 5}}, "debounce.wait"),
        ({"debounce": {"key": "k", "wait": NO_TIME}}, "debounce.wait"),
        ({"debounce": {"key": "", "wait": WAIT}}, "debounce.key"),
        ({"debounce": {"key": "k"}}, "debounce.wait"),
        ({"throttle": {"key": "k", "every": "400d"}}, "throttle.every"),
        ({"throttle": {"key": "k", "every": WAIT, "first": True}}, "throttle.first"),
    ],
)
async def test_contradicting_options_are_refused_with_the_option_and_a_next_step(
    here: Installation, options: Any, field: str
) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        await here.submit("one", **options)
    assert refused.value.field == field
    assert refused.value.hint
    assert await here.tasks() == []
