"""Deliveries in hand: nothing is kept for longer than the broker's patience, whatever becomes of it here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from typing import Any, cast

import pytest

from taskframework.errors import StoreUnavailableError
from taskframework.model.attempts import Claim
from taskframework.model.message import TaskMessage
from taskframework.model.outcome import Outcome, Succeeded
from taskframework.model.status import Priority
from taskframework.model.stream_moves import ClaimTurn
from taskframework.tasks.registry import Registration, TaskRegistry
from taskframework.testing.clock import FakeClock
from taskframework.testing.factories import new_task
from taskframework.worker.admission import Admission, AdmissionCheck, Candidate, PutOff
from taskframework.worker.attempt import LeaseLostError, RunningAttempt
from taskframework.worker.claim import Refusal
from taskframework.worker.consumer import TaskConsumer
from taskframework.worker.deliveries import PendingDeliveries, PendingDelivery
from taskframework.worker.lanes import LanePolicy
from taskframework.worker.store_breaker import StoreBreaker

#: A quarter of it is 15 s, half is 30 s, an eighth 7.5 s; it is looked for what is due once a second.
TIMEOUT = timedelta(seconds=60)


class FakeDelivery:
    """Remembers its answers."""

    headers: Mapping[str, str] = {}
    queue = "tasks.reports.normal"
    lane = Priority.NORMAL

    def __init__(self, task_id: str = "t1", body: bytes | None = None) -> None:
        self.body = TaskMessage(task_id, "reports", 1).to_body() if body is None else body
        self.answers: list[str] = []

    async def ack(self) -> None:
        self.answers.append("ack")

    async def reject(self) -> None:
        self.answers.append("reject")

    async def put_back(self) -> None:
        self.answers.append("put back")


class FakeClaims:
    """Gives every task to who asks, as long as the store is there."""

    def __init__(self) -> None:
        self.is_away = False
        self.error: BaseException | None = None
        self.known = True
        self.due: list[str] = []
        self.put_off: list[PutOff] = []
        self.asked = 0
        self.is_repeated = False

    def request(self, message: TaskMessage) -> Claim:
        return Claim(message.task_id, message.dispatch_epoch, "a claim", "worker", TIMEOUT)

    async def claim(self, claim: Claim, *, is_repeated: bool = False) -> RunningAttempt | Refusal:
        self.asked += 1
        self.is_repeated = is_repeated
        self._look()
        return cast(RunningAttempt, FakeAttempt(claim.task_id)) if self.known else Refusal.NO_DOCUMENT

    async def claim_turn(self, claim: ClaimTurn, *, is_repeated: bool) -> RunningAttempt | None:
        self.asked += 1
        self.is_repeated = is_repeated
        self._look()
        return cast(RunningAttempt, FakeAttempt(claim.task_id)) if self.known else None

    async def hand_over(self, message: TaskMessage, put_off: PutOff) -> Refusal:
        self._look()
        if not self.known:
            return Refusal.NO_DOCUMENT
        self.due.append(message.task_id)
        self.put_off.append(put_off)
        return Refusal.NOT_OURS

    def _look(self) -> None:
        if self.error is not None:
            raise self.error
        if self.is_away:
            raise StoreUnavailableError("no answer")


class FakeAttempt:
    def __init__(self, task_id: str) -> None:
        self.task = new_task(task_id=task_id)


class FakeRegistry:
    def get(self, task_type: str) -> str:
        return task_type


class FakeHeartbeat:
    """Knows whose lease it was asked to keep."""

    def __init__(self) -> None:
        self.kept: list[str] = []

    def add(self, attempt: RunningAttempt) -> None:
        self.kept.append(attempt.task.task_id)

    def remove(self, attempt: RunningAttempt) -> None:
        self.kept.remove(attempt.task.task_id)


class Work:
    """Executor and settlement: every task runs until it is told to end, then its delivery is acknowledged."""

    def __init__(self) -> None:
        self.running: dict[str, asyncio.Event] = {}
        self.error: Exception | None = None
        self.discarded: list[str] = []

    async def execute(self, registration: Registration, attempt: RunningAttempt) -> Outcome:
        if self.error is not None:
            raise self.error
        end = self.running[attempt.task.task_id] = asyncio.Event()
        await end.wait()
        del self.running[attempt.task.task_id]
        return Succeeded(None)

    async def settle(self, _: Registration, __: RunningAttempt, ___: Outcome, pending: PendingDelivery) -> None:
        await pending.ack()

    async def discard(self, attempt: RunningAttempt) -> None:
        self.discarded.append(attempt.task.task_id)


class Bench:
    """A consumer with one slot, among fakes."""

    def __init__(self, *checks: AdmissionCheck) -> None:
        self.clock = FakeClock()
        self.timeout: timedelta | None = TIMEOUT
        #: What another worker could begin at once, and how often somebody asked for it.
        self.idle_types, self.questions = set[str](), 0
        self.claims, self.work, self.heartbeat = FakeClaims(), Work(), FakeHeartbeat()
        self.deliveries = PendingDeliveries(self.clock, lambda: self.timeout)
        self.breaker = StoreBreaker(self._ping, self.clock, lambda: self.deliveries.unanswered)
        self.consumer = TaskConsumer(
            cast(TaskRegistry, FakeRegistry()),
            cast(Any, self.claims),
            cast(Any, self.work),
            cast(Any, self.work),
            cast(Any, self.heartbeat),
            self.breaker,
            self.deliveries,
            Admission(checks),
            LanePolicy(dict.fromkeys(Priority, 1), timedelta(hours=1)),
            self.clock.now,
            self._can_begin_elsewhere,
            slots=1,
        )

    async def _can_begin_elsewhere(self, task_type: str, lane: Priority) -> bool:
        self.questions += 1
        return task_type in self.idle_types

    async def _ping(self) -> None:
        if self.claims.is_away:
            raise StoreUnavailableError("no answer")

    def take(self, task_id: str = "t1", body: bytes | None = None) -> FakeDelivery:
        delivery = FakeDelivery(task_id, body)
        self.consumer.take_delivery("reports", delivery)
        return delivery

    async def after(self, seconds: float) -> None:
        """Let time pass in small steps."""
        for _ in range(max(1, round(seconds * 4))):
            for _ in range(10):
                await asyncio.sleep(0)
            self.clock.advance(min(seconds, 0.25))
        for _ in range(20):
            await asyncio.sleep(0)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    keeping = asyncio.create_task(made.consumer.watch_deliveries())
    yield made
    keeping.cancel()
    made.consumer.abandon()
    await made.breaker.stop()
    await asyncio.wait([keeping])


async def test_a_delivery_without_a_slot_is_handed_over_after_a_quarter_of_the_timeout(bench: Bench) -> None:
    running, waiting = bench.take("t1"), bench.take("t2")
    await bench.after(14)
    assert (running.answers, waiting.answers) == ([], [])
    await bench.after(2)
    assert (running.answers, waiting.answers) == ([], ["ack"])
    assert (bench.claims.due, bench.consumer.lanes.waiting) == (["t2"], 0)
    bench.work.running["t1"].set()
    await bench.after(0)
    assert (running.answers, bench.claims.asked) == (["ack"], 1)
    assert not bench.deliveries._pending, "what is done with costs no memory"


async def test_a_delivery_that_an_idle_worker_could_begin_waits_only_for_seconds(bench: Bench) -> None:
    bench.idle_types = {"others"}
    running, waiting = bench.take("t1"), bench.take("t2")
    await bench.after(2)
    assert (bench.questions, waiting.answers) == (0, [])
    await bench.after(3)
    assert (bench.questions > 0, waiting.answers) == (True, [])
    bench.idle_types = {"reports"}
    late = bench.take("t3")
    await bench.after(2)
    assert (running.answers, waiting.answers, late.answers, bench.claims.due) == ([], ["ack"], [], ["t2"])
    await bench.after(2)
    assert (running.answers, late.answers) == ([], ["ack"])


async def test_each_delivery_waits_from_its_own_arrival(bench: Bench) -> None:
    bench.take("t1")
    first = bench.take("t2")
    await bench.after(10)
    second = bench.take("t3")
    await bench.after(6)
    assert (first.answers, second.answers) == (["ack"], [])


async def test_a_running_delivery_is_acknowledged_after_half_the_timeout_with_its_slot(bench: Bench) -> None:
    running = bench.take("t1")
    await bench.after(29)
    assert (running.answers, bench.deliveries.acked_early) == ([], 0)
    await bench.after(2)
    assert (running.answers, bench.deliveries.acked_early) == (["ack"], 1)
    waiting = bench.take("t2")
    await bench.after(1)
    assert (bench.consumer.lanes.running, waiting.answers) == (1, [])
    bench.work.running["t1"].set()
    await bench.after(0)
    assert running.answers == ["ack"], "acknowledged twice"
    assert bench.deliveries.acked_early == 0
    assert list(bench.work.running) == ["t2"]


async def test_a_long_task_of_a_stopped_consumer_counts_at_once(bench: Bench) -> None:
    running = bench.take("t1")
    await bench.after(5)
    bench.deliveries.mark_consumers_stopped("reports")
    await bench.consumer.acknowledge_early()
    assert running.answers == [], "it may end in a moment"
    await bench.after(4)
    assert (running.answers, bench.deliveries.acked_early) == (["ack"], 1)


async def test_a_shorter_consumer_timeout_counts_for_deliveries_in_hand(bench: Bench) -> None:
    running, waiting = bench.take("t1"), bench.take("t2")
    await bench.after(5)
    bench.timeout = timedelta(seconds=8)
    await bench.after(1)
    assert (running.answers, waiting.answers) == (["ack"], ["ack"])
    assert bench.claims.due == ["t2"]


async def test_without_a_consumer_timeout_no_delivery_is_acknowledged_early(bench: Bench) -> None:
    bench.timeout = None
    running, waiting = bench.take("t1"), bench.take("t2")
    await bench.after(100)
    bench.deliveries.mark_consumers_stopped("reports")
    await bench.consumer.acknowledge_early()
    assert (running.answers, waiting.answers) == ([], [])


async def test_waiting_deliveries_are_handed_over_at_once_if_only_long_tasks_run(bench: Bench) -> None:
    bench.take("t1")
    waiting = [bench.take(f"t{number}") for number in (2, 3)]
    await bench.after(0)
    bench.consumer.hand_over_waiting()
    await bench.after(0)
    assert [delivery.answers for delivery in waiting] == [["ack"], ["ack"]]
    assert bench.claims.due == ["t2", "t3"]


async def test_a_hand_over_that_fails_does_not_keep_the_message(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.take("t1")
    waiting = bench.take("t2")
    await bench.after(0)
    bench.claims.error = RuntimeError("a mistake")
    bench.consumer.hand_over_waiting()
    await bench.after(0)
    assert waiting.answers == ["ack"], "an unanswered message would use up prefetch for ever"
    assert caplog.messages == ["a delivery of tasks.reports.normal could not be handled"]
    assert bench.deliveries.unanswered == 1


async def test_a_delivery_is_held_while_the_store_is_away(bench: Bench) -> None:
    bench.claims.is_away = True
    held = bench.take()
    await bench.after(10)
    assert (held.answers, bench.claims.asked, bench.breaker.is_open) == ([], 1, True)
    assert not bench.claims.is_repeated
    bench.claims.is_away = False
    await bench.after(4)
    assert list(bench.work.running) == ["t1"]
    assert held.answers == []
    assert bench.claims.is_repeated, "the lease may run since the first asking"


async def test_a_delivery_held_for_a_quarter_of_the_timeout_is_left_to_its_document(bench: Bench) -> None:
    bench.claims.is_away = True
    held, waiting = bench.take("t1"), bench.take("t2")
    await bench.after(16)
    assert (held.answers, waiting.answers, bench.claims.due) == (["ack"], ["ack"], [])
    bench.claims.is_away = False
    await bench.after(4)
    assert not bench.work.running, "nobody runs it without its message"
    assert bench.consumer.lanes.running == 0


async def test_a_message_that_is_unreadable_or_without_task_is_rejected_when_handed_over(bench: Bench) -> None:
    bench.take("t1")
    unreadable = bench.take(body=b"{")
    await bench.after(16)
    bench.claims.known = False
    orphan = bench.take("t3")
    await bench.after(16)
    assert (unreadable.answers, orphan.answers) == (["reject"], ["reject"])


async def test_an_unreadable_message_waits_for_no_slot_and_many_are_one_log_line(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.take("t1")
    unreadable = [bench.take(body=b"{") for _ in range(3)]
    await bench.after(0)
    assert [delivery.answers for delivery in unreadable] == [["reject"]] * 3
    assert (bench.consumer.lanes.running, bench.deliveries.unanswered) == (1, 1)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    late = bench.take(body=b"")
    await bench.after(0)
    assert late.answers == ["reject"]


async def test_a_delivery_whose_handling_fails_costs_no_place_for_good(bench: Bench) -> None:
    bench.work.error = RuntimeError("a bug")
    failed = bench.take()
    await bench.after(0)
    assert (failed.answers, bench.deliveries.unanswered, bench.consumer.lanes.running) == (["ack"], 0, 0)


async def test_a_cancellation_by_nobody_here_is_a_failure_and_that_of_an_abandoned_delivery_is_not(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.claims.error = asyncio.CancelledError()  # as a driver may raise it
    failed = bench.take()
    await bench.after(0)
    assert (failed.answers, bench.deliveries.unanswered, bench.consumer.lanes.running) == (["ack"], 0, 0)
    assert caplog.messages == ["a delivery of tasks.reports.normal could not be handled"]
    bench.claims.error = None
    abandoned = bench.take()
    await bench.after(0)
    bench.consumer.abandon()
    await bench.after(0)
    assert (abandoned.answers, len(caplog.messages)) == ([], 1), "the broker delivers it again"


async def test_an_attempt_that_lost_its_lease_is_given_up_and_forgotten(bench: Bench) -> None:
    bench.work.error = LeaseLostError()
    lost = bench.take("t1")
    await bench.after(0)
    assert (lost.answers, bench.work.discarded, bench.heartbeat.kept) == (["ack"], ["t1"], [])
    assert (bench.deliveries.unanswered, bench.consumer.lanes.running) == (0, 0)


async def test_the_heartbeat_keeps_what_runs_and_nothing_else(bench: Bench) -> None:
    bench.take("t1")
    bench.take("t2")
    await bench.after(1)
    assert bench.heartbeat.kept == ["t1"]
    bench.work.running["t1"].set()
    await bench.after(0)
    assert bench.heartbeat.kept == ["t2"]


async def test_a_delivery_that_waits_for_the_store_goes_back_when_the_worker_stops(bench: Bench) -> None:
    bench.claims.is_away = True
    held = bench.take()
    await bench.after(1)
    await bench.consumer.close()
    await bench.after(0)
    assert (held.answers, bench.claims.due, bench.deliveries.unanswered) == (["put back"], [], 0)
    await asyncio.wait_for(bench.consumer.finished(), 1)


async def test_a_delivery_that_has_not_started_goes_back_when_the_worker_stops(bench: Bench) -> None:
    running, waiting = bench.take("t1"), bench.take("t2")
    await bench.after(1)
    await bench.consumer.close()
    late = bench.take("t3")
    await bench.after(1)
    assert (running.answers, waiting.answers, late.answers) == ([], ["put back"], [])
    assert list(bench.work.running) == ["t1"]


async def test_a_delivery_that_went_back_when_the_worker_stopped_is_not_handed_over_as_well(bench: Bench) -> None:
    bench.take("t1")
    went_back = bench.take("t2")
    await bench.after(1)
    await bench.consumer.close()
    assert bench.deliveries.unanswered == 1
    await bench.after(16)
    assert (went_back.answers, bench.claims.due) == (["put back"], []), "its message and a second one"


async def test_nothing_begins_when_all_work_is_abandoned(bench: Bench) -> None:
    """A stop that is cancelled ends so, and the heartbeat has ended then."""
    bench.take("t1")
    bench.take("t2")
    await bench.after(1)
    assert list(bench.work.running) == ["t1"]
    bench.consumer.abandon()
    await bench.consumer.finished()
    bench.take("t3")
    await bench.after(1)
    assert list(bench.work.running) == ["t1"]


@pytest.mark.parametrize("is_away_at_claim", [True, False])
async def test_a_task_that_was_possibly_claimed_gives_nothing_back(is_away_at_claim: bool) -> None:
    """The reply to a claim is lost, and asked again it is refused: whether the first was made nobody knows for sure."""
    given_back: list[str] = []

    class Holds:
        async def admit(self, candidate: Candidate) -> PutOff | None:
            candidate.unless_claimed.callback(given_back.append, candidate.message.task_id)
            return None

    bench = Bench(Holds())
    bench.claims.known = False
    bench.claims.is_away = is_away_at_claim
    delivery = bench.take("t1")
    await bench.after(1)
    bench.claims.is_away = False
    await bench.after(10)
    assert delivery.answers == ["reject"]
    assert given_back == ([] if is_away_at_claim else ["t1"])
    await bench.breaker.stop()


@pytest.mark.parametrize("answer", [None, PutOff(timedelta(minutes=1))], ids=["claimed", "put off"])
@pytest.mark.parametrize("is_known", [True, False])
async def test_a_task_that_was_deleted_while_its_delivery_waited_leaves_no_dead_letter(
    is_known: bool, answer: PutOff | None
) -> None:
    """Another message of the task came first. If nobody here has read the task, it may have been lost."""

    class Reads:
        async def admit(self, candidate: Candidate) -> PutOff | None:
            candidate.is_task_known = is_known
            return answer

    bench = Bench(Reads())
    bench.claims.known = False
    delivery = bench.take("t1")
    await bench.after(1)
    assert delivery.answers == ["ack" if is_known else "reject"]


def turn(task_id: str = "t1") -> ClaimTurn:
    return ClaimTurn(task_id, 0, "a claim", "worker", TIMEOUT, "reports", "normal")


async def test_a_turn_takes_a_free_slot_and_keeps_it_while_its_task_runs(bench: Bench) -> None:
    assert await bench.consumer.try_start_turn(turn())
    await bench.after(0.25)
    assert (list(bench.work.running), bench.heartbeat.kept, bench.consumer.lanes.running) == (["t1"], ["t1"], 1)
    bench.work.running["t1"].set()
    await bench.after(0)
    assert bench.consumer.lanes.running == 0


async def test_a_turn_stands_in_line_behind_the_messages_that_wait(bench: Bench) -> None:
    bench.take("t1")
    await bench.after(0)
    bench.take("t2")
    started = asyncio.create_task(bench.consumer.try_start_turn(turn("t3")))
    await bench.after(0)
    bench.take("t4")
    for running in ("t1", "t2", "t3"):
        assert list(bench.work.running) == [running]
        bench.work.running[running].set()
        await bench.after(0)
    assert (started.result(), list(bench.work.running)) == (True, ["t4"])


async def test_a_turn_that_gets_no_slot_soon_is_left_to_a_message(bench: Bench) -> None:
    bench.take("t1")
    await bench.after(0)
    waiting, started = bench.take("t2"), asyncio.create_task(bench.consumer.try_start_turn(turn("t3")))
    await bench.after(0.5)
    assert not started.done()
    await bench.after(1)
    assert not started.result()
    assert (bench.claims.asked, bench.claims.due) == (1, []), "it is neither claimed nor marked as due"
    bench.work.running["t1"].set()
    await bench.after(0)
    assert (list(bench.work.running), waiting.answers) == (["t2"], [])


@pytest.mark.parametrize("end", ["close", "hand_over_waiting"])
async def test_a_turn_in_line_is_left_to_a_message_when_the_worker_starts_no_more(bench: Bench, end: str) -> None:
    bench.take("t1")
    await bench.after(0)
    started = asyncio.create_task(bench.consumer.try_start_turn(turn("t2")))
    await bench.after(0)
    if (closing := getattr(bench.consumer, end)()) is not None:
        await closing
    await bench.after(0)
    assert not started.result()
    assert bench.claims.due == []


async def test_a_turn_whose_work_is_abandoned_has_its_answer(bench: Bench) -> None:
    bench.claims.is_away = True
    started = asyncio.create_task(bench.consumer.try_start_turn(turn()))
    await bench.after(1)
    bench.consumer.abandon()
    await bench.after(0)
    assert not started.result()


async def test_a_turn_that_is_not_claimed_gives_its_slot_back(bench: Bench) -> None:
    bench.claims.known = False
    assert not await bench.consumer.try_start_turn(turn())
    assert (bench.claims.asked, bench.consumer.lanes.running, list(bench.deliveries._pending)) == (1, 0, [])


async def test_a_turn_whose_claim_fails_is_logged_and_gives_its_slot_back(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.claims.error = ValueError("broken")
    assert not await bench.consumer.try_start_turn(turn())
    assert (bench.consumer.lanes.running, list(bench.deliveries._pending)) == (0, [])
    assert "could not be handled" in caplog.text


async def test_a_turn_waits_for_the_store_and_asks_again_with_the_same_claim(bench: Bench) -> None:
    bench.claims.is_away = True
    started = asyncio.create_task(bench.consumer.try_start_turn(turn()))
    await bench.after(1)
    assert (bench.claims.asked, started.done()) == (1, False)
    bench.claims.is_away = False
    await bench.after(5)
    assert (await started, bench.claims.is_repeated, list(bench.work.running)) == (True, True, ["t1"])


async def test_a_turn_does_not_wait_for_the_store_while_the_worker_stops(bench: Bench) -> None:
    bench.claims.is_away = True
    started = asyncio.create_task(bench.consumer.try_start_turn(turn()))
    await bench.after(1)
    await bench.consumer.close()
    assert not await started
    bench.claims.is_away = False
    assert not await bench.consumer.try_start_turn(turn("t2")), "nothing begins after the stop"


async def test_the_slot_of_a_turn_is_counted_once_its_task_has_run_for_five_seconds(bench: Bench) -> None:
    assert await bench.consumer.try_start_turn(turn())
    await bench.after(4)
    assert bench.deliveries.acked_early == 0
    await bench.after(2)
    assert bench.deliveries.acked_early == 1, "the prefetch would count on its slot"
