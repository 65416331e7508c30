"""Admission: the chain of checks before a claim, what a check may hold, and what becomes of what is put off."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta

import pytest

from taskframework.errors import StoreUnavailableError
from taskframework.model.message import TaskMessage
from taskframework.worker.admission import Admission, AdmissionCheck, Candidate, PutOff
from tests.unit.worker.test_deliveries import TIMEOUT, Bench

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


class Check:
    """Gives what it is told to, and holds something until all is over."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log
        self.answer: PutOff | None = None
        self.error: Exception | None = None

    async def admit(self, candidate: Candidate) -> PutOff | None:
        self.log.append(f"{self.name} asked")
        candidate.holding.callback(self.log.append, f"{self.name} lets go")
        if self.error is not None:
            raise self.error
        return self.answer


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.fixture
def checks(log: list[str]) -> list[Check]:
    return [Check("first", log), Check("second", log)]


def candidate(holding: AsyncExitStack) -> Candidate:
    return Candidate(TaskMessage("t1", "reports", 1), {}, None, "claim", holding)


async def test_every_check_must_let_a_delivery_go_on(checks: list[Check], log: list[str]) -> None:
    async with AsyncExitStack() as holding:
        assert await Admission(checks).admit(candidate(holding)) is None
        assert log == ["first asked", "second asked"]
    assert log[2:] == ["second lets go", "first lets go"]


async def test_the_first_check_that_puts_off_is_the_last_one_asked(checks: list[Check], log: list[str]) -> None:
    checks[0].answer = PutOff(HOUR)
    async with AsyncExitStack() as holding:
        assert await Admission(checks).admit(candidate(holding)) == PutOff(HOUR)
    assert log == ["first asked", "first lets go"]


async def test_a_check_that_fails_leaves_nothing_held(checks: list[Check], log: list[str]) -> None:
    checks[1].error = StoreUnavailableError("no answer")
    async with AsyncExitStack() as holding:
        with pytest.raises(StoreUnavailableError):
            await Admission(checks).admit(candidate(holding))
        assert log == ["first asked", "second asked", "second lets go", "first lets go"]
        checks[1].error = None
        assert await Admission(checks).admit(candidate(holding)) is None
        assert log[4:] == ["first asked", "second asked"]


@pytest.mark.parametrize(
    ("until", "delay"), [(HOUR, HOUR), (NOW + HOUR, HOUR), (NOW - HOUR, timedelta(0)), (NOW, timedelta(0))]
)
def test_a_put_off_until_a_past_time_has_no_delay(until: datetime | timedelta, delay: timedelta) -> None:
    assert PutOff(until).delay(NOW) == delay


# --- in a consumer with one slot --------------------------------------------------------------------------------------


def bench_with(checks: list[Check]) -> Bench:
    typed: list[AdmissionCheck] = list(checks)
    return Bench(*typed)


async def test_a_delivery_that_is_put_off_is_acknowledged_and_frees_its_slot(
    checks: list[Check], log: list[str]
) -> None:
    bench = bench_with(checks)
    checks[1].answer = PutOff(HOUR)
    put_off = bench.take("t1")
    await bench.after(0)
    assert (put_off.answers, bench.claims.put_off, bench.claims.asked) == (["ack"], [PutOff(HOUR)], 0)
    assert log[2:] == ["second lets go", "first lets go"]
    checks[1].answer = None
    bench.take("t2")
    await bench.after(0)
    assert list(bench.work.running) == ["t2"]


async def test_a_check_keeps_what_it_holds_until_the_attempt_is_over(checks: list[Check], log: list[str]) -> None:
    bench = bench_with(checks)
    bench.take("t1")
    await bench.after(1)
    assert log == ["first asked", "second asked"]
    bench.work.running["t1"].set()
    await bench.after(0)
    assert log[2:] == ["second lets go", "first lets go"]


async def test_a_check_without_its_store_keeps_the_delivery_and_is_asked_again(
    checks: list[Check], log: list[str]
) -> None:
    bench = bench_with(checks)
    bench.claims.is_away, checks[1].error = True, StoreUnavailableError("no answer")
    kept = bench.take("t1")
    await bench.after(5)
    assert (kept.answers, bench.breaker.is_open) == ([], True)
    bench.claims.is_away, checks[1].error = False, None
    await bench.after(4)
    assert list(bench.work.running) == ["t1"]
    assert log[-2:] == ["first asked", "second asked"]


async def test_a_store_that_is_away_while_a_task_is_put_off_makes_it_late_and_loses_nothing(
    checks: list[Check],
) -> None:
    bench = bench_with(checks)
    checks[0].answer, bench.claims.is_away = PutOff(HOUR), True
    delivery = bench.take("t1")
    await bench.after(0)
    assert (delivery.answers, bench.claims.put_off) == (["ack"], []), "its document says when it is due"
    assert (bench.deliveries.unanswered, bench.consumer.lanes.running) == (0, 0)


async def test_a_broken_check_costs_no_slot(checks: list[Check]) -> None:
    bench = bench_with(checks)
    checks[0].error = RuntimeError("a bug")
    delivery = bench.take("t1")
    await bench.after(0)
    assert (delivery.answers, bench.claims.asked, bench.consumer.lanes.running) == (["ack"], 0, 0)


class SlowCheck:
    """Puts off when it is let."""

    def __init__(self) -> None:
        self.is_asked, self.may_answer = asyncio.Event(), asyncio.Event()

    async def admit(self, candidate: Candidate) -> PutOff | None:
        self.is_asked.set()
        await self.may_answer.wait()
        return PutOff(HOUR)


async def test_a_delivery_put_off_while_the_worker_stops_is_put_back() -> None:
    check = SlowCheck()
    bench = Bench(check)
    delivery = bench.take("t1")
    await check.is_asked.wait()
    await bench.consumer.close()
    check.may_answer.set()
    await bench.consumer.finished()
    assert (delivery.answers, bench.claims.put_off) == (["put back"], [])


# --- what takes long --------------------------------------------------------------------------------------------------


class Patient:
    """Waits without its slot for whatever it is told to."""

    def __init__(self) -> None:
        self.gate: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.answers: list[str | None] = []
        self.is_first = True
        self.gave_back = 0

    async def admit(self, candidate: Candidate) -> PutOff | None:
        if candidate.message.task_id != "t1":
            return None
        candidate.unless_claimed.callback(self._give_back)
        answer = await candidate.without_slot(self._wait())
        self.answers.append(answer)
        return PutOff(HOUR) if answer is None else None

    async def _wait(self) -> str:
        return await self.gate

    def _give_back(self) -> None:
        self.gave_back += 1


async def test_a_delivery_waiting_without_a_slot_lets_others_run_and_continues_with_one() -> None:
    patient = Patient()
    bench = Bench(patient)
    waits = bench.take("t1")
    bench.take("t2")
    await bench.after(1)
    assert (list(bench.work.running), bench.consumer.lanes.running) == (["t2"], 1)
    patient.gate.set_result("now")
    await bench.after(0)
    assert patient.answers == [], "its slot is taken"
    bench.work.running["t2"].set()
    await bench.after(0)
    assert (patient.answers, list(bench.work.running), patient.gave_back) == (["now"], ["t1"], 0)
    bench.work.running["t1"].set()
    await bench.after(0)
    assert (waits.answers, bench.consumer.lanes.running) == (["ack"], 0)


async def test_a_delivery_that_waits_as_long_as_the_broker_allows_is_put_off() -> None:
    patient = Patient()
    bench = Bench(patient)
    waits = bench.take("t1")
    await bench.after(TIMEOUT.total_seconds())
    assert (patient.answers, waits.answers, bench.claims.put_off) == ([None], ["ack"], [PutOff(HOUR)])
    assert (bench.consumer.lanes.running, patient.gave_back) == (0, 1)


async def test_a_worker_that_stops_puts_back_what_waits_without_a_slot() -> None:
    patient = Patient()
    bench = Bench(patient)
    waits = bench.take("t1")
    await bench.after(0)
    await bench.consumer.close()
    await bench.after(0)
    assert (patient.answers, waits.answers, bench.claims.put_off) == ([None], ["put back"], [])
    assert bench.consumer.lanes.running == 0


async def test_a_check_gives_back_what_it_got_when_the_task_is_not_claimed() -> None:
    patient = Patient()
    bench = Bench(patient)
    patient.gate.set_result("now")
    bench.claims.known = False
    bench.take("t1")
    await bench.after(0)
    assert (patient.answers, patient.gave_back) == (["now"], 1)
