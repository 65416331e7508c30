"""What a worker takes in: how much, when nothing, and how seldom it registers anew."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Literal, cast

import pytest

from taskframework.brokers.base import Broker, ConsumeRequest, OnDelivery
from taskframework.clock import SystemClock
from taskframework.errors import StoreUnavailableError
from taskframework.testing.clock import FakeClock
from taskframework.worker.consumer import TaskConsumer
from taskframework.worker.intake import Intake, is_worth_registering, prefetch
from taskframework.worker.store_breaker import StoreBreaker

SLOTS = 16


@pytest.mark.parametrize(
    ("free", "types", "limit", "expected"),
    [
        (100, 1, "auto", 150),
        (100, 10, "auto", 150),  # one busy type among ten fills the worker
        (100, 22, "auto", 150),
        (100, 50, "auto", 66),  # all queues together: 10,000
        (10_000, 1, "auto", 10_000),  # the slots ask for more
        (100, 2_000, "auto", 2),  # two, so that the next one is here when the first is done
        (10, 1, "auto", 15),
        (9, 1, "auto", 9),
        (2, 1, "auto", 2),
        (1, 1, "auto", 1),  # a second one would wait beside an idle worker
        (1, 50, "auto", 1),
        (5, 0, "auto", 5),
        (100, 1, 7, 7),
        (3, 1, 7, 3),  # an upper bound, not a wish
        (100, 200, 1, 1),
    ],
)
def test_any_one_queue_fills_the_free_slots(free: int, types: int, limit: int | Literal["auto"], expected: int) -> None:
    assert prefetch(free, types, limit) == expected


@pytest.mark.parametrize(("free", "expected"), [(1, 3), (2, 4), (9, 18), (10, 20), (100, 200)])
def test_the_prefetch_count_grows_while_lanes_compete(free: int, expected: int) -> None:
    assert prefetch(free, 1, "auto", lanes_compete=True) == expected


@pytest.mark.parametrize("types", [1, 3, 10, 26, 27, 100, 1_000])
@pytest.mark.parametrize("free", [1, 2, 10, 100, 1_000])
def test_the_prefetch_count_stays_bounded(free: int, types: int) -> None:
    count = prefetch(free, types, "auto")
    assert count * types >= free, "busy types leave slots empty"
    assert count * types * 3 <= max(10_000, 3 * (free + 2 * types))


@pytest.mark.parametrize(
    ("present", "wanted", "slots", "worth"),
    [
        (100, 100, 100, False),
        (100, 99, 100, False),
        (100, 88, 100, False),
        (100, 87, 100, True),
        (88, 100, 100, True),  # the last ones: else a worker would stay smaller than it is
        (87, 99, 100, False),
        (1, 0, 100, True),
        (0, 1, 100, True),
        (2, 1, 2, True),
        (4, 3, 4, True),
    ],
)
def test_a_few_slots_are_not_worth_new_consumers(present: int, wanted: int, slots: int, worth: bool) -> None:
    assert is_worth_registering(present, wanted, slots) is worth


class FakeConsumption:
    """Stops when it is let."""

    def __init__(self, broker: FakeBroker, task_type: str) -> None:
        self._broker = broker
        self.task_type = task_type

    async def stop(self) -> None:
        self._broker.stopping += 1
        await self._broker.may_stop.wait()
        self._broker.running.remove(self)

    @property
    def is_live(self) -> bool:
        return self in self._broker.running


class FakeBroker:
    """Remembers what was consumed."""

    def __init__(self) -> None:
        self.prefetches: list[tuple[str, int]] = []
        self.running: list[FakeConsumption] = []
        self.stopping = 0
        self.may_stop = asyncio.Event()
        self.may_stop.set()

    def consume(self, request: ConsumeRequest, on_delivery: OnDelivery) -> FakeConsumption:
        [task_type] = request.task_types
        assert task_type not in {running.task_type for running in self.running}, "two consumptions at the same time"
        self.prefetches.append((task_type, request.prefetch))
        self.running.append(FakeConsumption(self, task_type))
        return self.running[-1]


class FakeDeliveries:
    acked_early = 0

    def __init__(self) -> None:
        self.types_left_over: set[str] = set()
        self.retired: list[str] = []

    def mark_consumers_stopped(self, task_type: str) -> None:
        self.retired.append(task_type)


class FakeLanes:
    are_competing = False


class FakeConsumer:
    """A consumer that does nothing but hold slots."""

    slots = SLOTS

    def __init__(self) -> None:
        self.deliveries = FakeDeliveries()
        self.lanes = FakeLanes()
        self.handed_over = 0

    def take_delivery(self, consumed_as: str, _: object) -> None: ...

    async def acknowledge_early(self) -> None: ...

    def hand_over_waiting(self) -> None:
        self.handed_over += 1


class Bench:
    """An intake among fakes."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.broker = FakeBroker()
        self.consumer = FakeConsumer()
        self.pings = 0
        self.is_away = False
        self.breaker = StoreBreaker(self._ping, self.clock, lambda: 5)
        self.ceilings: dict[str, int] = {}
        self.intake = Intake(
            cast(Broker, self.broker),
            cast(TaskConsumer, self.consumer),
            self.breaker,
            self.clock,
            "auto",
            [self.ceilings.get],
        )

    async def _ping(self) -> None:
        self.pings += 1
        if self.is_away:
            raise StoreUnavailableError("no answer")

    def start(self) -> None:
        self.intake.start(["reports"])

    async def after(self, seconds: float, *expected: int) -> None:
        """Let time pass and say for how many slots was consumed until then."""
        await self.settled()
        self.clock.advance(seconds)
        await self.settled()
        assert self.broker.prefetches == [("reports", prefetch(slots, 1, "auto")) for slots in expected]

    async def settled(self) -> None:
        """Wait until everyone sleeps."""
        for _ in range(20):
            await asyncio.sleep(0)

    def store_fails(self) -> None:
        self.is_away = True
        self.breaker.open(StoreUnavailableError("no answer"))


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    made.broker.may_stop.set()
    await made.intake.stop()
    await made.breaker.stop()


async def test_the_intake_consumes_for_all_slots_and_registers_only_once(bench: Bench) -> None:
    bench.start()
    await bench.after(0, 16)
    assert bench.intake.is_live
    assert bench.intake.problem is None
    for _ in range(5):
        await bench.after(1, 16)


async def test_many_early_acknowledgements_are_one_registration(bench: Bench) -> None:
    bench.start()
    await bench.after(0.5, 16)
    for _ in range(10):
        bench.consumer.deliveries.acked_early += 1
        await bench.after(0, 16)
    await bench.after(0.5, 16, 6)
    assert (bench.consumer.deliveries.retired, bench.consumer.handed_over) == (["reports"], 0)
    bench.consumer.deliveries.acked_early = 11
    await bench.after(5, 16, 6)
    bench.consumer.deliveries.acked_early = 0
    await bench.after(1, 16, 6, 16)


@pytest.mark.parametrize(("slots", "usual", "competing"), [(2, 2, 4), (16, 24, 32)])
async def test_the_intake_registers_again_when_lanes_begin_to_compete_and_a_minute_after(
    slots: int, usual: int, competing: int, bench: Bench
) -> None:
    bench.start()
    bench.ceilings["reports"] = slots
    await bench.after(1, slots)
    bench.consumer.lanes.are_competing = True
    await bench.settled()
    bench.clock.advance(1)
    await bench.settled()
    assert bench.broker.prefetches == [("reports", usual), ("reports", competing)]
    bench.consumer.lanes.are_competing = False
    for _ in range(58):
        bench.clock.advance(1)
        await bench.settled()
    assert len(bench.broker.prefetches) == 2
    for _ in range(4):
        bench.clock.advance(1)
        await bench.settled()
    assert bench.broker.prefetches[2:] == [("reports", usual)]


async def test_with_every_slot_held_the_intake_takes_nothing_and_hands_over_what_waits(bench: Bench) -> None:
    bench.start()
    bench.consumer.deliveries.acked_early = SLOTS - 1
    await bench.after(1, 1)
    bench.consumer.deliveries.acked_early = SLOTS
    await bench.after(1, 1)
    assert not bench.broker.running
    assert bench.consumer.handed_over == 1
    assert bench.intake.problem == "paused: long tasks hold all slots"
    bench.consumer.deliveries.acked_early = SLOTS - 1
    await bench.after(1, 1, 1)
    assert bench.intake.problem is None


async def test_health_names_the_types_that_are_not_consumed(bench: Bench) -> None:
    bench.intake.start(["reports", "invoices"])
    await bench.settled()
    running = list(bench.broker.running)
    bench.broker.running = [consumption for consumption in running if consumption.task_type != "reports"]
    assert bench.intake.problem == "not consuming 1 task type: reports"
    bench.broker.running = []
    assert bench.intake.problem == "not consuming"
    bench.broker.running = running


async def test_while_the_store_is_away_nothing_is_taken_in(bench: Bench) -> None:
    bench.start()
    await bench.after(0, 16)
    bench.store_fails()
    await bench.after(0, 16)
    assert not bench.broker.running, "at once, not after the pause for early acknowledgements"
    assert bench.intake.problem == "paused: the store is away"
    assert bench.consumer.handed_over == 0
    await bench.after(60, 16)
    bench.is_away = False
    await bench.after(3, 16, 16)
    assert bench.intake.problem is None


async def test_deliveries_left_over_are_claimed_before_the_intake_takes_more(bench: Bench) -> None:
    bench.start()
    await bench.after(0, 16)
    bench.store_fails()
    bench.consumer.deliveries.types_left_over = {"reports"}
    bench.is_away = False
    await bench.after(30, 16)
    bench.consumer.deliveries.types_left_over = set()
    await bench.after(1, 16, 16)


async def test_a_worker_that_starts_without_a_store_waits_for_it(bench: Bench) -> None:
    bench.store_fails()
    bench.start()
    await bench.after(10)
    bench.is_away = False
    await bench.after(3, 16)


async def test_a_ceiling_of_one_task_type_changes_only_the_consumers_of_that_type(bench: Bench) -> None:
    types = ["mails", "pages", "reports"]

    async def consumed(seconds: float) -> list[tuple[str, int]]:
        before = len(bench.broker.prefetches)
        await bench.settled()
        bench.clock.advance(seconds)
        await bench.settled()
        return bench.broker.prefetches[before:]

    bench.intake.start(types)
    all_slots = prefetch(SLOTS, 3, "auto")
    assert await consumed(0) == [(name, all_slots) for name in types]
    bench.ceilings["pages"] = 2
    assert await consumed(1) == [("pages", 2)]
    assert bench.consumer.deliveries.retired == ["pages"]
    bench.ceilings["pages"] = 0
    assert await consumed(1) == []
    assert sorted(running.task_type for running in bench.broker.running) == ["mails", "reports"]
    assert (bench.intake.is_live, bench.intake.problem) == (True, None), "it is as it should be"
    del bench.ceilings["pages"]
    bench.consumer.deliveries.types_left_over = {"pages", "mails"}
    assert await consumed(1) == [], "what was left over of it is still to be claimed"
    bench.consumer.deliveries.types_left_over = {"mails"}
    bench.intake.wake()
    assert await consumed(0) == [("pages", all_slots)], "at once"
    assert sorted(running.task_type for running in bench.broker.running) == types
    bench.consumer.deliveries.acked_early = SLOTS // 2
    half = prefetch(SLOTS // 2, 3, "auto")
    bench.consumer.deliveries.types_left_over = set()
    assert await consumed(1) == [(name, half) for name in types]


async def test_the_intake_takes_a_type_freely_if_it_is_consumed_for_all_slots(bench: Bench) -> None:
    assert not bench.intake.takes_freely("reports"), "it has not started"
    bench.start()
    await bench.settled()
    assert bench.intake.takes_freely("reports")
    assert not bench.intake.takes_freely("pages"), "it does not run this type"
    for ceiling in (0, 2):  # paused, limited
        bench.ceilings["reports"] = ceiling
        assert not bench.intake.takes_freely("reports")
    del bench.ceilings["reports"]
    bench.consumer.slots = 9
    assert not bench.intake.takes_freely("reports"), "a delivery would wait behind it"
    bench.consumer.slots = 10
    assert bench.intake.takes_freely("reports")
    bench.store_fails()
    assert not bench.intake.takes_freely("reports")


async def test_the_intake_takes_nothing_freely_while_it_stops(bench: Bench) -> None:
    bench.start()
    await bench.settled()
    bench.broker.may_stop.clear()
    stopping = asyncio.create_task(bench.intake.stop())
    await bench.settled()
    assert not bench.intake.takes_freely("reports")
    bench.broker.may_stop.set()
    await stopping


async def test_a_stop_that_is_cancelled_still_stops_every_consumer(bench: Bench) -> None:
    bench.start()
    await bench.settled()
    bench.broker.may_stop.clear()
    stopping = asyncio.create_task(bench.intake.stop())
    await bench.settled()
    stopping.cancel()
    await asyncio.wait([stopping])
    assert stopping.cancelled()
    bench.broker.may_stop.set()
    await bench.settled()
    assert not bench.broker.running


async def test_a_stop_while_the_intake_registers_again_leaves_no_consumer_running(bench: Bench) -> None:
    bench.start()
    await bench.after(0, 16)
    bench.broker.may_stop.clear()
    bench.consumer.deliveries.acked_early = 8
    await bench.after(1, 16)
    assert bench.broker.stopping == 1
    stopping = asyncio.create_task(bench.intake.stop())
    await bench.settled()
    assert not stopping.done(), "the old consumers still run"
    bench.broker.may_stop.set()
    await stopping
    await bench.after(5, 16)
    assert not bench.broker.running


@pytest.mark.parametrize("what", ["stops", "consumes"])
async def test_trouble_with_the_broker_ends_no_supervision(
    bench: Bench, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.start()
    await bench.after(0, 16)

    def fail(*_: object) -> Awaitable[None]:
        raise RuntimeError("a bug")

    with monkeypatch.context() as patched:
        patched.setattr(
            FakeConsumption if what == "stops" else FakeBroker, "stop" if what == "stops" else "consume", fail
        )
        bench.consumer.deliveries.acked_early = 8
        await bench.after(1, 16)
    await bench.after(1, 16, 8)


async def test_without_task_types_there_is_nothing_to_consume(bench: Bench) -> None:
    bench.intake.start([])
    await bench.after(5)
    assert bench.intake.is_live


# --- the breaker ------------------------------------------------------------------------------------------------------


async def test_the_breaker_closes_when_the_store_answers(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "taskframework.worker.store_breaker")
    bench.store_fails()
    bench.store_fails()
    assert not await _ends(bench.breaker.wait_until_closed(within=None))
    await _advance(bench, 12, until=lambda: False)
    bench.is_away = False
    waiting = [asyncio.create_task(bench.breaker.wait_until_closed(within=None)) for _ in range(3)]
    await _advance(bench, 3, until=lambda: not bench.breaker.is_open)
    assert await asyncio.gather(*waiting) == [True] * 3
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "5 deliveries are held: no answer" in caplog.messages[0]
    assert "back after 1" in caplog.messages[1]


@pytest.mark.parametrize(
    ("number", "away", "back"),
    [(1, "1 delivery is held", "1 delivery was held"), (2, "2 deliveries are held", "2 deliveries were held")],
)
async def test_the_log_counts_the_deliveries_that_wait(
    number: int, away: str, back: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def answers() -> None:
        pass

    caplog.set_level("INFO", "taskframework.worker.store_breaker")
    breaker = StoreBreaker(answers, SystemClock(), lambda: number)
    breaker.open(StoreUnavailableError("no answer"))
    assert await breaker.wait_until_closed(within=10)
    assert away in caplog.messages[0]
    assert back in caplog.messages[1]


async def test_the_store_is_asked_often_at_first_and_at_least_every_three_seconds(bench: Bench) -> None:
    bench.store_fails()
    await _advance(bench, 0.21, until=lambda: bench.pings > 0)
    assert bench.pings == 1
    await _advance(bench, 60, until=lambda: False)
    assert 20 <= bench.pings <= 200, "no hot loop, and never longer than three seconds"
    before = bench.pings
    await _advance(bench, 3.1, until=lambda: bench.pings > before)
    assert bench.pings > before


async def test_a_store_that_answers_pings_alone_is_asked_more_and_more_seldom(bench: Bench) -> None:
    opened = 0
    start = bench.clock.monotonic()
    while bench.clock.monotonic() - start < 20:
        bench.breaker.open(StoreUnavailableError("no majority"))
        opened += 1
        await _advance(bench, 3.1, until=lambda: not bench.breaker.is_open)
    assert opened < 25
    bench.clock.advance(60)
    bench.breaker.open(StoreUnavailableError("no majority"))
    await _advance(bench, 0.21, until=lambda: not bench.breaker.is_open)
    assert not bench.breaker.is_open, "after a good while it is quick again"


async def test_waiting_for_the_store_ends_after_the_given_time(bench: Bench) -> None:
    assert await bench.breaker.wait_until_closed(within=0)
    bench.store_fails()
    waiting = asyncio.create_task(bench.breaker.wait_until_closed(within=5))
    await _advance(bench, 4.9, until=lambda: False)
    assert not waiting.done()
    await _advance(bench, 0.2, until=waiting.done)
    assert await waiting is False


async def _advance(bench: Bench, seconds: float, until: Callable[[], bool]) -> None:
    """Let time pass in small steps, until something is true."""
    for _ in range(round(seconds / 0.05)):
        await bench.settled()
        if until():
            return
        bench.clock.advance(0.05)
    await bench.settled()


async def _ends(work: Awaitable[bool]) -> bool:
    """Whether it ends without any time passing."""
    task = asyncio.ensure_future(work)
    for _ in range(10):
        await asyncio.sleep(0)
    done = task.done()
    task.cancel()
    return done
