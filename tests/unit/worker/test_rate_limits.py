"""The two checks of rate limits: who waits, who is put off until when, and how many deliveries a worker takes in."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any, TypeVar, cast

import pytest

from taskframework import BackgroundTaskExecutable, RateLimit, TaskContext, TaskOptions
from taskframework.errors import StoreUnavailableError
from taskframework.limits.buckets import MemoryBuckets
from taskframework.limits.task_limits import hold_bucket_of
from taskframework.model.message import TaskMessage
from taskframework.model.rate_limits import RATE, Bucket, BucketLimit, TakePermits
from taskframework.model.scope import Scope
from taskframework.model.status import TaskStatus
from taskframework.model.task import Task
from taskframework.model.task_fields import LimitWait
from taskframework.stores.base import TaskStore
from taskframework.tasks.registry import TaskRegistry
from taskframework.testing.clock import FakeClock
from taskframework.testing.factories import new_task
from taskframework.worker.admission import Candidate, PutOff
from taskframework.worker.keyed_limits import KeyedRateLimits
from taskframework.worker.rate_limits import RateLimits

T = TypeVar("T")


class Untyped(BackgroundTaskExecutable[dict[str, Any], None]):
    task_type = "free"

    async def execute(self, context: TaskContext[dict[str, Any]]) -> None: ...


class Typed(Untyped):
    task_type = "typed"
    options = TaskOptions(rate_limit="openai")


class Keyed(Untyped):
    task_type = "keyed"
    options = TaskOptions(rate_limit=RateLimit("openai", key="user"))


ALICE = RATE.id_of("openai", "alice")


class Stage:
    """The two checks among a few stored tasks, on a clock that stands still."""

    def __init__(self, limit: BucketLimit) -> None:
        self.clock = FakeClock()
        self.limit = limit
        self.buckets = MemoryBuckets(self.clock)
        self.registry = TaskRegistry()
        for executable in (Untyped, Typed, Keyed):
            self.registry.register(executable)
        self.taken: list[tuple[str, int]] = []
        self.put_off: list[str] = []
        limits = {"openai": limit}
        taken = lambda name, count: self.taken.append((name, count))  # noqa: E731
        store = cast(TaskStore, self)
        self.by_type = RateLimits(self.buckets, limits, store, self.registry, self.clock, taken)
        self.by_key = KeyedRateLimits(self.buckets, limits, store, self.clock, taken, self.put_off.append)
        self.tasks: dict[str, Task] = {}
        self.holding = AsyncExitStack()

    def now(self) -> Any:
        return self.clock.now()

    async def get_many(self, task_ids: Collection[str], scope: Scope) -> dict[str, Task]:
        return {task_id: self.tasks[task_id] for task_id in task_ids if task_id in self.tasks}

    def task(self, user: object = "alice", task_type: str = "keyed", **fields: Any) -> Candidate:
        """A stored task, by default of the keyed type, and the delivery that tells of it."""
        task = new_task(now=self.now(), task_type=task_type, parameters={"user": user}).evolve(**fields)
        self.tasks[task.task_id] = task
        return self.candidate(task_type, task.task_id)

    def typed(self, **fields: Any) -> Candidate:
        return self.task(task_type="typed", **fields)

    def candidate(self, task_type: str, task_id: str = "t1") -> Candidate:
        message = TaskMessage(task_id, task_type, 1)
        return Candidate(message, {}, self.registry.get(task_type), "claim", self.holding)


async def passes(stage: Stage, seconds: float) -> None:
    for _ in range(round(seconds / 0.05)):
        stage.clock.advance(0.05)
        for _ in range(10):
            await asyncio.sleep(0)


async def test_a_type_without_a_limit_goes_on_at_once_and_asks_nobody() -> None:
    stage = Stage(BucketLimit(1, 1))
    for check in (stage.by_type, stage.by_key):
        assert await check.admit(stage.candidate("free")) is None
    assert (stage.taken, stage.by_type.ceiling("free")) == ([], None)


async def test_a_type_with_a_limit_waits_for_its_permit() -> None:
    stage = Stage(BucketLimit(2, 1))
    assert await stage.by_type.admit(stage.typed()) is None
    second = asyncio.create_task(stage.by_type.admit(stage.typed()))
    await passes(stage, 0.4)
    assert not second.done()
    await passes(stage, 0.2)
    assert second.done()
    assert sum(count for _, count in stage.taken) == 2
    await stage.by_type.close()


class BusyWorker:
    """Gives a delivery that waited its slot back after half a second, as a worker with short tasks in all its slots."""

    def __init__(self, stage: Stage, candidate: Candidate) -> None:
        self.clock = stage.clock
        self.seconds_with_slot = 0.0
        candidate.without_slot, candidate.with_slot = self.without_slot, self.with_slot

    async def without_slot(self, awaited: Awaitable[T]) -> T | None:
        result = await awaited
        await self.clock.sleep(0.5)
        return result

    async def with_slot(self, awaited: Awaitable[T]) -> T | None:
        began = self.clock.monotonic()
        result = await awaited
        self.seconds_with_slot += self.clock.monotonic() - began
        return result


async def test_a_delivery_that_gets_its_slot_too_late_takes_it_earlier_the_next_time() -> None:
    """It does not hold the slot until there is another permit; other task types need it."""
    stage = Stage(BucketLimit(0.1, 1))
    candidate = stage.typed()
    worker, began = BusyWorker(stage, candidate), stage.clock.monotonic()
    admitted = asyncio.create_task(stage.by_type.admit(candidate))
    await passes(stage, 9.9)
    assert not admitted.done(), "the first permit came half a second before the slot, and was lost"
    await passes(stage, 0.15)
    assert (admitted.done(), worker.seconds_with_slot < 0.5) == (True, True)
    assert stage.clock.monotonic() - began == pytest.approx(10, abs=0.1)
    await stage.by_type.close()


async def test_a_delivery_with_a_key_keeps_its_slot_if_a_slot_would_come_too_late() -> None:
    stage = Stage(BucketLimit(5, 1))
    assert await stage.by_key.admit(stage.task()) is None
    candidate = stage.task()
    worker = BusyWorker(stage, candidate)
    admitted = asyncio.create_task(stage.by_key.admit(candidate))
    await passes(stage, 0.65)
    assert not admitted.done(), "its permit was for 0.2 seconds, and the slot came at 0.7"
    await passes(stage, 0.1)
    assert admitted.done()
    candidate = stage.task()
    worker = BusyWorker(stage, candidate)
    admitted = asyncio.create_task(stage.by_key.admit(candidate))
    await passes(stage, 0.25)
    assert (admitted.done(), worker.seconds_with_slot > 0.05) == (True, True), "it waited with its slot"


async def test_a_delivery_with_a_key_gives_its_slot_away_while_its_bucket_does_not_answer() -> None:
    """As while Redis is away: other task types need the slot."""
    stage = Stage(BucketLimit(5, 1))
    candidate, given_away, back = stage.task(), asyncio.Event(), asyncio.Event()
    take = stage.buckets.take

    async def take_later(wanted: TakePermits) -> Bucket:
        await back.wait()
        return await take(wanted)

    async def without_slot(awaited: Awaitable[T]) -> T | None:
        given_away.set()
        return await awaited

    stage.buckets.take = take_later  # type: ignore[method-assign, assignment]
    candidate.without_slot = without_slot
    admitted = asyncio.create_task(stage.by_key.admit(candidate))
    await asyncio.wait_for(given_away.wait(), 30)
    back.set()
    assert await admitted is None


async def test_a_task_of_a_key_without_a_permit_is_put_off_until_its_turn() -> None:
    stage = Stage(BucketLimit(0.1, 2))
    answers = [await stage.by_key.admit(stage.task()) for _ in range(4)]
    assert answers == [None, None, PutOff(timedelta(seconds=10), ALICE), PutOff(timedelta(seconds=20), ALICE)]
    assert await stage.by_key.admit(stage.task("bob")) is None
    assert (stage.taken.count(("openai", 1)), stage.put_off) == (3, ["openai"] * 2)


async def test_deliveries_of_a_key_that_are_here_together_ask_its_bucket_together() -> None:
    stage = Stage(BucketLimit(0.1, 2))
    asked: list[tuple[str, int]] = []

    async def take(
        take: TakePermits, really: Callable[[TakePermits], Awaitable[Bucket]] = stage.buckets.take
    ) -> Bucket:
        asked.append((take.record_id, take.most))
        await asyncio.sleep(0)
        return await really(take)

    stage.buckets.take = take  # type: ignore[method-assign]
    users = ["alice"] * 5 + ["bob"]
    answers = await asyncio.gather(*(stage.by_key.admit(stage.task(user)) for user in users))
    turns = [PutOff(timedelta(seconds=10 * place), ALICE) for place in (1, 2, 3)]
    assert answers == [None, None, *turns, None]
    assert asked == [(ALICE, 5), (RATE.id_of("openai", "bob"), 1), (ALICE, 3)]
    assert stage.put_off == ["openai"] * 3


async def test_a_bucket_that_cannot_be_asked_is_an_error_for_all_who_ask() -> None:
    stage = Stage(BucketLimit(0.1, 1))

    async def away(take: TakePermits) -> Bucket:
        raise StoreUnavailableError("away")

    stage.buckets.take = away  # type: ignore[method-assign]
    answers = await asyncio.gather(*(stage.by_key.admit(stage.task()) for _ in range(3)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [StoreUnavailableError] * 3


async def test_a_task_whose_turn_has_come_goes_before_a_task_that_comes_now() -> None:
    stage = Stage(BucketLimit(0.1, 1))
    await stage.by_key.admit(stage.task())
    put_off = await stage.by_key.admit(stage.task())
    assert put_off is not None
    stage.clock.advance(10)
    turn = LimitWait(ALICE, 1, stage.now())
    assert await stage.by_key.admit(stage.task(waits_for_limit=turn)) is None
    assert await stage.by_key.admit(stage.task()) == PutOff(timedelta(seconds=10), ALICE)


@pytest.mark.parametrize(
    ("limit", "epoch"), [(ALICE, 2), (RATE.id_of("openai", "bob"), 1)], ids=["of another attempt", "of another key"]
)
async def test_a_turn_of_another_limit_or_epoch_does_not_count(limit: str, epoch: int) -> None:
    stage = Stage(BucketLimit(0.1, 1))
    await stage.by_key.admit(stage.task())
    await stage.by_key.admit(stage.task())
    stage.clock.advance(10)
    turn = LimitWait(limit, epoch, stage.now())
    assert await stage.by_key.admit(stage.task(waits_for_limit=turn)) == PutOff(timedelta(seconds=10), ALICE)


async def test_a_message_before_its_turn_gets_no_second_one() -> None:
    stage = Stage(BucketLimit(0.1, 1))
    later = stage.now() + timedelta(seconds=30)
    early = stage.task(waits_for_limit=LimitWait(ALICE, 1, later))
    assert await stage.by_key.admit(early) == PutOff(later, ALICE)
    assert stage.taken == []


async def test_turns_of_one_second_that_come_together_all_run() -> None:
    stage = Stage(BucketLimit(3, 1))
    await stage.by_key.admit(stage.task())
    for _ in range(4):
        assert await stage.by_key.admit(stage.task()) is not None
    stage.clock.advance(1)
    turn = LimitWait(ALICE, 1, stage.now())
    coming = [asyncio.create_task(stage.by_key.admit(stage.task(waits_for_limit=turn))) for _ in range(4)]
    await passes(stage, 1.2)
    assert [task.result() for task in coming] == [None] * 4


@pytest.mark.parametrize("fields", [{"status": TaskStatus.RUNNING}, {"dispatch_epoch": 2}], ids=["runs", "newer"])
async def test_a_task_that_the_claim_will_refuse_takes_no_permit(fields: dict[str, Any]) -> None:
    stage = Stage(BucketLimit(0.1, 4))
    for check, task_type in ((stage.by_key, "keyed"), (stage.by_type, "typed")):
        refused, gone = stage.task(task_type=task_type, **fields), stage.candidate(task_type, "gone")
        assert (await check.admit(refused), await check.admit(gone)) == (None, None)
        assert (refused.is_task_known, gone.is_task_known) == (True, False)
    assert stage.taken == []


async def test_every_value_of_the_field_has_a_bucket() -> None:
    stage = Stage(BucketLimit(0.1, 1))
    users = ["alice", "", "a/b", 7, "7 ", True, None, ["x"], {"b": 1, "a": 2}, "x" * 300, "x" * 301]
    # None is in the bucket of those without a value.
    assert [await stage.by_key.admit(stage.task(user)) for user in users if user is not None] == [None] * 10
    assert await stage.by_key.admit(stage.task({"a": 2, "b": 1})) is not None


async def test_a_worker_takes_in_what_runs_and_a_few_more() -> None:
    stage = Stage(BucketLimit(20, 40))
    assert stage.by_type.ceiling("typed") == 16
    assert stage.by_type.ceiling("keyed") is None
    for _ in range(30):
        await stage.by_type.admit(stage.typed())
    assert stage.by_type.ceiling("typed") == 64
    await stage.holding.aclose()
    assert stage.by_type.ceiling("typed") == 16


async def test_a_ceiling_is_not_changed_for_a_little() -> None:
    stage = Stage(BucketLimit(2, 40))
    seen = []
    for _ in range(16):
        seen.append(stage.by_type.ceiling("typed"))
        await stage.by_type.admit(stage.typed())
    assert seen == sorted(seen, key=lambda ceiling: ceiling or 0)
    assert len(set(seen)) <= 5


@pytest.mark.parametrize("executable", [Typed, Keyed])
async def test_a_hold_is_of_the_bucket_of_the_task(executable: type[Untyped]) -> None:
    stage = Stage(BucketLimit(10, 5))
    registration = stage.registry.get(executable.task_type)
    assert registration is not None
    task = new_task(now=stage.now(), parameters={"user": "alice"})
    await hold_bucket_of(stage.buckets, {"openai": stage.limit}, registration, task, timedelta(seconds=30))
    held = ALICE if executable is Keyed else RATE.id_of("openai")
    assert [name for name, _ in await stage.buckets.list_known(10)] == [held]
    assert (await stage.buckets.take(TakePermits(held, stage.limit))).granted == 0


async def test_a_hold_by_a_task_without_a_rate_limit_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage(BucketLimit(10, 5))
    registration = stage.registry.get("free")
    assert registration is not None
    task = new_task(now=stage.now(), task_type="free")
    await hold_bucket_of(stage.buckets, {"openai": stage.limit}, registration, task, timedelta(seconds=30))
    assert "paused nothing, because task type free has no rate_limit in its options" in caplog.text
    assert await stage.buckets.list_known(10) == []
