"""Settlement: what becomes of an outcome, its message and the count of stale writes, whatever the store answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from taskframework import BackgroundTaskExecutable, RetryableError, TaskContext, TaskOptions
from taskframework.aggregation.state_aggregator import StateAggregatorService
from taskframework.bus import EventBus
from taskframework.clock import SystemClock
from taskframework.errors import StoreUnavailableError, TaskUnreadableError
from taskframework.model.attempts import Claim
from taskframework.model.events import AttemptFinished, TaskEvent
from taskframework.model.interventions import Reap
from taskframework.model.outcome import Failed, Outcome, Released, Succeeded, classify, describe
from taskframework.model.retry import RetryPolicy
from taskframework.model.scope import EVERYONE, Scope
from taskframework.model.status import TaskStatus
from taskframework.model.task import Task
from taskframework.model.transitions import Fence, Transition
from taskframework.moves import TaskMoves
from taskframework.stores.sqlite import SqliteStore
from taskframework.tasks.registry import Registration, TaskRegistry
from taskframework.testing.conformance.store_suite import insert_one
from taskframework.testing.factories import new_task
from taskframework.worker.attempt import RunningAttempt
from taskframework.worker.settle import SettleStation

FAILED = Failed(describe(ValueError("broken"), retryable=False), False)
RETRYING = Failed(describe(OSError("not now"), retryable=True), True, timedelta(hours=1))
HOUR = timedelta(hours=1)


class Plain(BackgroundTaskExecutable[Any, Any]):
    task_type = "test-task"

    async def execute(self, context: TaskContext[Any]) -> None: ...


class Delivery:
    """Tells how it was answered."""

    def __init__(self) -> None:
        self.answers: list[str] = []

    async def ack(self) -> None:
        self.answers.append("ack")

    async def reject(self) -> None:
        self.answers.append("reject")


class Forgetful(SqliteStore):
    """Applies what it is asked, and then fails as often as told."""

    lost_replies = 0
    is_away = False

    async def apply(self, transition: Transition) -> Task | None:
        self._look()
        task = await super().apply(transition)
        if self.lost_replies:
            self.lost_replies -= 1
            raise StoreUnavailableError
        return task

    async def get(self, task_id: str, scope: Scope) -> Task | None:
        self._look()
        return await super().get(task_id, scope)

    def _look(self) -> None:
        if self.is_away:
            raise StoreUnavailableError


class Bench:
    """A settle station with the aggregator behind it."""

    def __init__(self, store: Forgetful) -> None:
        self.store = store
        self.bus = EventBus()
        self.events: list[str] = []
        self.stale: list[str] = []
        aggregator = StateAggregatorService(TaskMoves(store, self.bus))
        self.bus.listen(AttemptFinished, aggregator.on_attempt_finished, name="a", must_succeed=True)
        self.bus.listen(TaskEvent, lambda event: self.events.append(type(event).__name__), name="events")
        self.policy = RetryPolicy(5, HOUR, HOUR, 2, 0)

        #: For how long the rate limit of a task was held, each time.
        self.held: list[timedelta] = []
        self.no_hold: Exception | None = None

    @property
    def station(self) -> SettleStation:
        return SettleStation(
            self.store,
            self.bus,
            SystemClock(),
            "worker",
            self.policy,
            self.stale.append,
            lambda error: None,
            self._hold,
        )

    async def _hold(self, registration: Registration, task: Task, delay: timedelta) -> None:
        if self.no_hold is not None:
            raise self.no_hold
        self.held.append(delay)

    async def claimed(self, worker_id: str = "worker", task: Task | None = None) -> RunningAttempt:
        """An attempt at a task, a new one by default."""
        if task is None:
            task = (await insert_one(self.store, new_task(now=self.store.now() - HOUR))).task
        claim = Claim(task.task_id, task.dispatch_epoch, f"claim of {worker_id}", worker_id, -HOUR)
        running = await self.store.apply(claim)
        assert running is not None
        fence = Fence(task.task_id, running.fencing_token, claim.claim_id)
        return RunningAttempt(running, fence, SystemClock().monotonic() + 30)

    async def taken_away(self) -> RunningAttempt:
        """An attempt whose task another worker runs by now."""
        attempt = await self.claimed()
        retrying = await self.store.apply(Reap(attempt.task.task_id, 1, timedelta(0), 3, timedelta(0)))
        await self.claimed("other-worker", retrying)
        return attempt

    async def settle(self, attempt: RunningAttempt, outcome: Outcome, kind: type[Plain] = Plain) -> Delivery:
        delivery = Delivery()
        await self.station.settle(TaskRegistry().register(kind), attempt, outcome, delivery)  # type: ignore[arg-type]
        return delivery

    async def present(self, attempt: RunningAttempt) -> Task:
        task = await self.store.get(attempt.task.task_id, EVERYONE)
        assert task is not None
        return task


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    store = Forgetful(tmp_path / "tasks.db")
    await store.open()
    yield Bench(store)
    await store.close()


@pytest.mark.parametrize(
    "chosen", [TaskOptions(initial_delay=60), TaskOptions(max_delay=60), TaskOptions(max_delay=timedelta(minutes=1))]
)
async def test_the_delays_of_a_task_type_go_before_those_of_the_settings(bench: Bench, chosen: TaskOptions) -> None:
    class Own(Plain):
        options = chosen

    attempt = await bench.claimed()
    await bench.settle(attempt, Failed(describe(OSError("not now"), retryable=True), True), Own)
    task = await bench.present(attempt)
    assert task.not_before - task.updated_at == timedelta(minutes=1)


@pytest.mark.parametrize("lost_replies", [0, 1, 2])
@pytest.mark.parametrize(
    ("outcome", "status", "event", "answer"),
    [
        (Succeeded("done"), TaskStatus.COMPLETED, "TaskCompletedEvent", "ack"),
        (FAILED, TaskStatus.FAILED, "TaskFailedEvent", "reject"),
        (RETRYING, TaskStatus.RETRYING, "TaskRetryingEvent", "ack"),
        (Released(), TaskStatus.QUEUED, "TaskReleasedEvent", "ack"),
    ],
    ids=["completed", "failed", "retrying", "released"],
)
async def test_a_settlement_is_recognised_as_its_own_when_its_reply_was_lost(
    bench: Bench, lost_replies: int, outcome: Outcome, status: TaskStatus, event: str, answer: str
) -> None:
    attempt = await bench.claimed()
    bench.store.lost_replies = lost_replies
    delivery = await bench.settle(attempt, outcome)
    task = await bench.present(attempt)
    assert (task.status, task.sequence) == (status, attempt.task.sequence + 1)
    assert (delivery.answers, bench.events, bench.stale) == ([answer], [event], [])


@pytest.mark.parametrize(
    ("options", "attempts", "delay"),
    [
        (TaskOptions(), 1, 20),
        (TaskOptions(), 3, 60),
        (TaskOptions(initial_delay=timedelta(seconds=3)), 2, 6),
        (TaskOptions(initial_delay=timedelta(0)), 2, 0),
        (TaskOptions(max_delay=timedelta(seconds=30)), 2, 30),
        (TaskOptions(max_delay=timedelta(0)), 2, 0),
        (TaskOptions(initial_delay=timedelta(seconds=100), max_delay=timedelta(minutes=5)), 2, 200),
    ],
)
async def test_the_delay_of_a_retry_follows_the_options_of_its_type(
    bench: Bench, options: TaskOptions, attempts: int, delay: float
) -> None:
    class Own(Plain):
        pass

    Own.options = options
    bench.policy = RetryPolicy(5, timedelta(seconds=20), timedelta(minutes=1), 2, 0)
    attempt = await bench.claimed()
    attempt.task = attempt.task.evolve(attempts=attempts)
    await bench.settle(attempt, Failed(RETRYING.error, True), Own)
    task = await bench.present(attempt)
    assert task.not_before - task.updated_at == timedelta(seconds=delay)


@pytest.mark.parametrize("outcome", [FAILED, Failed(RETRYING.error, True, timedelta(seconds=7)), Succeeded(None)])
async def test_an_outcome_without_retry_or_with_its_own_delay_gets_no_other_delay(
    bench: Bench, outcome: Outcome
) -> None:
    attempt = await bench.claimed()
    registration = TaskRegistry().register(Plain)
    assert bench.station._with_delay(registration, attempt, outcome) == outcome


async def test_a_settlement_is_recognised_although_the_task_is_further_on(bench: Bench) -> None:
    attempt = await bench.claimed()
    request = AttemptFinished(attempt.task, attempt.fence, "worker", Released())
    first = await bench.bus.ask(request)
    await bench.claimed("other-worker", await bench.present(attempt))
    assert await bench.bus.ask(request) == first


async def test_a_stale_outcome_is_counted_once_and_logged_with_both_tokens(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    attempt = await bench.taken_away()
    delivery = await bench.settle(attempt, FAILED)
    assert (delivery.answers, bench.events, bench.stale) == (["ack"], [], ["test-task"])
    told(caplog, attempt, 2, "other-worker")


async def test_a_lease_lost_in_the_heartbeat_is_logged_with_both_tokens(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    attempt = await bench.taken_away()
    await bench.station.discard(attempt)
    assert bench.stale == ["test-task"]
    told(caplog, attempt, 2, "other-worker")


async def test_a_lost_lease_of_a_task_that_nobody_holds_is_logged_without_a_holder(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    attempt = await bench.claimed()
    await bench.store.apply(Reap(attempt.task.task_id, 1, timedelta(0), 3, timedelta(0)))
    await bench.station.discard(attempt)
    told(caplog, attempt, 1, None)


async def test_a_stale_outcome_of_a_task_of_a_newer_release_is_logged(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unreadable(task_id: str, scope: Scope) -> None:
        raise TaskUnreadableError(task_id, "a status of tomorrow")

    attempt = await bench.taken_away()
    monkeypatch.setattr(bench.store, "get", unreadable)
    delivery = await bench.settle(attempt, FAILED)
    assert (delivery.answers, bench.events, bench.stale) == (["ack"], [], ["test-task"])
    told(caplog, attempt, None, None)


@pytest.mark.parametrize("trouble", ["away", "hangs"])
async def test_without_the_store_a_lost_lease_is_counted_all_the_same(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    attempt = await bench.claimed()
    monkeypatch.setattr("taskframework.worker.settle._HOLDER_TIMEOUT_SECONDS", 0.01)
    bench.store.is_away = trouble == "away"
    if trouble == "hangs":
        monkeypatch.setattr(bench.store, "get", lambda *_: asyncio.Event().wait())
    await bench.station.discard(attempt)
    assert bench.stale == ["test-task"]
    told(caplog, attempt, None, None)


async def test_a_store_that_stays_away_costs_the_outcome_when_the_lease_is_over(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    attempt = await bench.claimed()
    attempt.lease_ends = SystemClock().monotonic() + 0.05
    bench.store.is_away = True
    delivery = await bench.settle(attempt, Succeeded("done"))
    assert (delivery.answers, bench.events, bench.stale) == (["ack"], [], ["test-task"])
    told(caplog, attempt, None, None)


def told(caplog: pytest.LogCaptureFixture, attempt: RunningAttempt, token: int | None, holder: str | None) -> None:
    """The one line in the log says what it should, to people and to programs."""
    (record,) = [record for record in caplog.records if record.name == "taskframework.worker.settle"]
    assert record.levelno == logging.WARNING
    fields = {
        name: vars(record)[name] for name in ("task_id", "task_type", "fencing_token", "current_token", "held_by")
    }
    assert fields == {
        "task_id": attempt.task.task_id,
        "task_type": "test-task",
        "fencing_token": 1,
        "current_token": token,
        "held_by": holder,
    }
    text = record.getMessage()
    assert attempt.task.task_id in text
    held = f"the task now has token {token} and is held by {holder or 'nobody'}"
    assert text.endswith("who has the task now could not be read" if token is None else held)


def told_to_come_later(delay: timedelta | None) -> Failed:
    return classify(RetryableError("429", delay=delay, pause_limit=True))


@pytest.mark.parametrize(
    ("asked", "held"),
    [(timedelta(minutes=1), timedelta(minutes=1)), (None, HOUR)],
    ids=["its own delay", "by the policy"],
)
async def test_an_outcome_that_asks_for_it_holds_the_bucket_as_long_as_the_task_waits(
    bench: Bench, asked: timedelta | None, held: timedelta
) -> None:
    attempt = await bench.claimed()
    await bench.settle(attempt, told_to_come_later(asked))
    task = await bench.present(attempt)
    assert (bench.held, task.status, task.not_before - task.updated_at) == ([held], TaskStatus.RETRYING, held)


async def test_an_outcome_that_does_not_ask_for_it_holds_no_bucket(bench: Bench) -> None:
    await bench.settle(await bench.claimed(), classify(RetryableError("busy", delay=timedelta(minutes=1))))
    await bench.settle(await bench.claimed(), Succeeded(None))
    assert bench.held == []


@pytest.mark.parametrize("error", [StoreUnavailableError(), TimeoutError()], ids=["away", "slow"])
async def test_a_rate_limit_that_cannot_be_held_costs_no_outcome(
    bench: Bench, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    bench.no_hold = error
    attempt = await bench.claimed()
    await bench.settle(attempt, told_to_come_later(timedelta(minutes=1)))
    assert (await bench.present(attempt)).status is TaskStatus.RETRYING
    assert "its rate limit could not be held" in caplog.text
