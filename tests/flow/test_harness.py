"""The harness for users' tests: days in milliseconds, faults where the test wants them, and asserts that tell."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, ClassVar

import pytest

from taskframework import (
    BackgroundTaskExecutable,
    CallNext,
    ConfigurationError,
    NonRetryableError,
    ResultTimeoutError,
    RetryableError,
    Signal,
    StoreUnavailableError,
    SubtaskSummary,
    TaskContext,
    TaskFailedError,
    TaskFramework,
    TransitionRefusedError,
    UnknownTaskTypeError,
    resource,
    task,
)
from taskframework.model.events import TaskRetryingEvent
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.stores.sqlite.connection import Database
from taskframework.submission.options import StreamOption
from taskframework.testing import Harness, harness
from taskframework.testing.clock import START

HOUR, DAY = timedelta(hours=1), timedelta(days=1)


@task("patient", max_attempts=6, initial_delay=9 * HOUR, max_delay=DAY)
async def patient(parameters: int, context: TaskContext[int]) -> str:
    if context.attempt < parameters:
        raise RetryableError("not yet")
    return f"attempt {context.attempt}"


@task("reports")
def reports(parameters: str) -> str:
    return f"report for {parameters}"


@task("slow")
def slow(parameters: int) -> int:
    time.sleep(0.02)
    if parameters < 0:
        raise NonRetryableError("below zero")
    return parameters


class Held(BackgroundTaskExecutable[None, int]):
    """Waits until the test lets it go; tells which attempt it was."""

    task_type = "held"
    gate: ClassVar[asyncio.Event]
    begun: ClassVar[asyncio.Event]

    async def execute(self, context: TaskContext[None]) -> int:
        self.begun.set()
        await self.gate.wait()
        return context.attempt


class Charges(BackgroundTaskExecutable[str, str]):
    task_type = "charges"
    charged: ClassVar[list[str]] = []

    async def execute(self, context: TaskContext[str]) -> str:
        async def charge() -> str:
            self.charged.append(context.parameters)
            return f"R-{len(self.charged)}"

        receipt: str = await context.once("charge", charge)
        return receipt


class Family(BackgroundTaskExecutable[int, int]):
    """Waits for sub-tasks of which one takes a day, then for somebody, for a week at most."""

    task_type = "family"

    async def execute(self, context: TaskContext[int]) -> None:
        await context.submit_subtasks(patient, range(1, context.parameters))

    async def on_subtasks_finished(self, context: TaskContext[int], summary: SubtaskSummary) -> Any:
        return context.wait_for(signal="approved", timeout=7 * DAY)

    async def on_signal(self, context: TaskContext[int], signal: Signal) -> int:
        return -1 if signal.timed_out else 1


class Approved(BackgroundTaskExecutable[None, str]):
    """Waits for somebody, however long that takes."""

    task_type = "approved"

    async def execute(self, context: TaskContext[None]) -> Any:
        return context.wait_for(signal="approved")

    async def on_signal(self, context: TaskContext[None], signal: Signal) -> str:
        return signal.name


@pytest.fixture(autouse=True)
def _afresh() -> None:
    Held.gate, Held.begun = asyncio.Event(), asyncio.Event()
    Charges.charged.clear()


async def begun(running: Harness) -> Any:
    handle = await running.framework.submit(Held)
    await Held.begun.wait()
    Held.begun.clear()
    return handle


async def test_three_days_of_retries_a_crash_and_a_year_of_schedules() -> None:
    monthly = {"task_type": "reports", "parameters": "everybody", "cron": "0 6 1 * *"}
    async with harness(patient, reports, schedules={"monthly": monthly}) as running:
        handle = await running.framework.submit(patient, 5)
        running.crash_at("settle.before_write")
        assert await running.result(handle) == "attempt 5"
        assert await running.story(handle) == ["submitted", *["started", "retrying"] * 4, "started", "completed"]
        times = [event.task.updated_at - START for event in running.events if isinstance(event, TaskRetryingEvent)]
        # The attempt that the crash took away counts, and is repeated at once.
        assert times == [timedelta(0), timedelta(0), 18 * HOUR, 42 * HOUR]
        assert running.now - START == 66 * HOUR
        await running.advance(START + timedelta(days=365) - running.now)
        running.assert_submitted(reports, "everybody", times=12)
        runs = [report.created_at for report in running.submitted(reports)]
        assert runs == [datetime(2026, month, 1, 6, tzinfo=UTC) for month in range(1, 13)]


async def test_time_stands_still_until_the_test_lets_it_pass() -> None:
    async with harness(patient) as running:
        handle = await running.framework.submit(patient, 3)
        await running.advance(9 * HOUR - timedelta(milliseconds=1))
        assert (await handle.task()).attempts == 1
        await running.advance(0.001)
        assert (await handle.task()).attempts == 2
        with pytest.raises(AssertionError, match="is RETRYING at"):
            await running.result(handle, within=HOUR.total_seconds())
        assert await running.result(handle) == "attempt 3"


async def test_subtasks_and_signals_pass_their_time_too() -> None:
    async with harness(patient, Family, retry={"max_attempts": 9}) as running:
        late = await running.framework.submit(Family, 4)
        assert await running.result(late) == -1
        assert running.now - START == 27 * HOUR + 7 * DAY
        running.assert_submitted(patient, times=3)
        told = await running.framework.submit(Family, 2)
        with pytest.raises(ValueError, match="does not pass backwards"):
            await running.advance(-1)
        await running.advance(HOUR)
        await running.framework.handle(told.task_id).signal("approved")
        assert await running.result(told) == 1
        with pytest.raises(AssertionError, match="patient was submitted 0 times"):
            running.assert_submitted("patient", 9)


async def test_a_task_that_ends_without_a_result_raises_an_error() -> None:
    async with harness(patient) as running:
        with pytest.raises(TaskFailedError, match="DEAD_LETTER"):
            await running.result(await running.framework.submit(patient, 99))


@pytest.mark.parametrize(
    ("point", "charged"),
    [("execute.before", 1), ("step.before_write", 2), ("step.after_write", 1), ("settle.after_write", 1)],
)
async def test_a_process_dies_where_the_test_wants_it(point: str, charged: int) -> None:
    async with harness(Charges) as running:
        running.crash_at(point)
        handle = await running.framework.submit(Charges, "ann")
        before = running.framework
        assert await running.result(handle) == f"R-{charged}"
        await running.advance(1)
        assert running.framework is not before
        assert len(Charges.charged) == charged
        with pytest.raises(ValueError, match="there is no failpoint"):
            running.crash_at("somewhere")


async def test_a_crash_that_never_comes_fails_the_test() -> None:
    async def check() -> None:
        async with harness(patient) as running:
            running.crash_at("step.after_write")
            await running.crash()  # what is planned does not end with one process
            await running.result(await running.framework.submit(patient, 1))

    with pytest.raises(AssertionError, match=r"the process never came to step\.after_write"):
        await check()


async def test_a_crash_while_code_runs_repeats_it() -> None:
    async with harness(Held) as running:
        handle = await begun(running)
        await running.crash()
        Held.gate.set()
        assert await running.result(handle) == 2


async def test_a_lost_lease_stops_the_code_and_the_task_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    async with harness(Held) as running:
        handle = await begun(running)
        await running.lose_leases()
        Held.gate.set()
        assert await running.result(handle) == 2
        assert not [said for said in caplog.records if said.levelname == "ERROR"], "it is no fault of the framework"
        with pytest.raises(AssertionError, match="no attempt runs"):
            await running.lose_leases()


async def test_a_store_that_is_away_refuses_submissions_and_delays_results() -> None:
    async with harness(Held) as running:
        handle = await begun(running)
        with running.store_away():
            with pytest.raises(StoreUnavailableError, match="the store away"):
                await running.framework.submit(Held)
            Held.gate.set()
        assert await running.result(handle) == 1


@task("begins")
async def begins(parameters: str, tasks: TaskFramework = resource(TaskFramework)) -> str:
    return (await tasks.submit("reports", parameters)).task_id


class Pool:
    """Counts what is done with it; closed, it is of no use."""

    def __init__(self) -> None:
        self.rows = 0
        self.is_open = True


@task("stores-rows")
async def stores_rows(parameters: int, pool: Pool = resource(Pool)) -> int:
    assert pool.is_open
    pool.rows += parameters
    return pool.rows


class SumsUp(BackgroundTaskExecutable[list[int], int]):
    task_type = "sums-up"

    async def execute(self, context: TaskContext[list[int]]) -> None:
        await context.submit_subtasks(stores_rows, context.parameters)

    def on_subtasks_finished(
        self, context: TaskContext[list[int]], summary: SubtaskSummary, pool: Pool = resource(Pool)
    ) -> int:
        return pool.rows


async def test_hooks_live_as_long_as_each_process_and_middleware_is_around_every_attempt() -> None:
    pools, attempts = list[Pool](), list[str]()

    @contextlib.asynccontextmanager
    async def open_pool() -> AsyncIterator[Pool]:
        pools.append(Pool())
        yield pools[-1]
        pools[-1].is_open = False

    async def tell(context: TaskContext[Any], call_next: CallNext) -> Any:
        attempts.append(f"{context.task_type} {context.attempt}")
        return await call_next(context)

    async with harness(stores_rows, SumsUp, lifespans=[open_pool], middleware=[tell]) as running:
        assert await running.result(await running.framework.submit(SumsUp, [2, 3])) == 5
        assert attempts == ["sums-up 1", "stores-rows 1", "stores-rows 1", "sums-up 1"]
        chunks = await running.framework.submit_batch(stores_rows, [1, 1, 1], chunk_size=3)
        await running.finished(chunks.batch_id)
        assert pools[0].rows == 8
        running.crash_at("settle.before_write")
        assert await running.result(await running.framework.submit(stores_rows, 4)) == 4
        assert attempts[-2:] == ["stores-rows 1", "stores-rows 2"]
    assert [pool.is_open for pool in pools] == [False, False]


async def test_a_task_without_its_resource_does_not_start() -> None:
    with pytest.raises(ConfigurationError, match="Task type 'stores-rows' cannot run here"):
        async with harness(stores_rows):
            pass
    async with harness(stores_rows, resources=[Pool()]) as running:
        assert await running.result(await running.framework.submit(stores_rows, 1)) == 1


async def test_the_running_framework_is_a_resource() -> None:
    """So a task can submit others that are not its sub-tasks."""
    async with harness(begins, reports) as running:
        other = await running.result(await running.framework.submit(begins, "Ann"))
        assert (await running.finished(other)).result == "report for Ann"


_USERS_TEST = """
import sys
import pytest
from taskframework import task

@task("double")
def double(parameters: int) -> int:
    return parameters * 2

def test_without():
    assert "taskframework.runtime" not in sys.modules

@pytest.mark.{marker}
async def test_with(taskframework_harness):
    async with taskframework_harness(double) as running:
        assert await running.result(await running.framework.submit(double, 4)) == 8
"""


@pytest.mark.parametrize(("marker", "without"), [("asyncio", "anyio"), ("anyio", "asyncio")])
def test_the_fixture_works_with_either_plugin_and_costs_nothing_unused(
    tmp_path: Path, marker: str, without: str
) -> None:
    (tmp_path / "conftest.py").write_text('import pytest\n@pytest.fixture\ndef anyio_backend(): return "asyncio"\n')
    (tmp_path / "test_users.py").write_text(_USERS_TEST.format(marker=marker))
    command = [sys.executable, "-m", "pytest", "-q", "-p", f"no:{without}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "2 passed" in done.stdout, done.stdout


async def test_the_file_is_not_synced_with_each_commit() -> None:
    async with harness(reports) as running:
        database: Database = running.framework.services.store._database  # type: ignore[attr-defined]
        assert await database.write(lambda raw: raw.execute("PRAGMA synchronous").fetchall()) == [(0,)]


async def test_waiting_by_a_handle_lets_time_pass_too() -> None:
    """The first thing that a newcomer writes; it waited for ever, as virtual time stood still."""
    async with harness(patient) as running:
        first, second = [await running.framework.submit(patient, attempts) for attempts in (2, 3)]
        assert tuple(await asyncio.gather(second.result(), first.result())) == ("attempt 3", "attempt 2")
        assert running.now - START == 27 * HOUR
        late = await running.framework.submit(patient, 2)
        with pytest.raises(ResultTimeoutError, match="is still RETRYING"):
            await late.result(timeout=HOUR)
        assert await running.framework.handle(late.task_id).result(timeout=9 * HOUR) == "attempt 2"


async def test_code_of_a_task_waits_for_another_in_real_time() -> None:
    @task("asks")
    async def asks(parameters: str, tasks: TaskFramework = resource(TaskFramework)) -> str:
        return await (await tasks.submit(reports, parameters)).result()

    async with harness(asks, reports) as running:
        assert await (await running.framework.submit(asks, "Ann")).result() == "report for Ann"


async def test_a_batch_is_awaited_by_its_handle() -> None:
    async with harness(patient) as running:
        batch = await running.framework.submit_batch(patient, [1, 2])
        with pytest.raises(TypeError, match=r"Write: await running.finished\(batch\)"):
            await running.result(batch)  # type: ignore[arg-type]
        assert (await running.finished(batch)).ended.succeeded == 2
        assert "completed" in await running.story(batch)
        other = await running.framework.submit_batch(patient, [3])
        assert (await other.finished()).ended.succeeded == 1
        assert running.now - START == 36 * HOUR


async def test_a_wait_that_fails_says_what_is_waited_for() -> None:
    async with harness(patient, Approved) as running:
        late = await running.framework.submit(patient, 2)
        with pytest.raises(AssertionError, match=r"RETRYING at .* What is due next, at 2026-01-01T09:00.*within 1 h"):
            await running.finished(late, within=HOUR)
        waits = await running.framework.submit(Approved)
        for wait in (running.finished(waits, within=20 * HOUR), waits.result()):
            with pytest.raises(AssertionError, match=r"the signal 'approved'\. Time alone will not end it") as told:
                await wait
            assert "within" not in str(told.value)
        await waits.signal("approved")
        assert await waits.result() == "approved"


async def test_tasks_of_a_stream_run_one_after_the_other_however_long_their_code_takes() -> None:
    async with harness(slow) as running:
        handles = [await running.framework.submit(slow, place, stream={"key": "k"}) for place in range(5)]
        assert [await running.result(handle) for handle in handles] == [0, 1, 2, 3, 4]
        more = [await running.framework.submit(slow, place, stream={"key": "k"}) for place in range(3)]
        await running.advance(timedelta(seconds=1))
        assert {(await running.finished(handle)).status for handle in more} == {"COMPLETED"}


async def test_time_does_not_wait_for_a_halted_stream() -> None:
    async with harness(slow) as running:
        failed = await running.framework.submit(slow, -1, stream={"key": "k", "on_failure": "halt"})
        waiting = await running.framework.submit(slow, 1, stream={"key": "k", "on_failure": "halt"})
        await running.finished(failed)
        await running.advance(timedelta(seconds=1))
        assert running.now - START < timedelta(seconds=20)
        assert (await waiting.task()).status == "BLOCKED"


async def test_the_harness_uses_its_own_servers_whatever_the_settings_name() -> None:
    broker, store = {"url": "amqp://nowhere", "prefix": "shop"}, {"url": "mongodb://nowhere/shop"}
    async with harness(patient, broker=broker, store=store) as running:
        assert running.framework.settings.broker.url == "embedded://"
        assert running.framework.settings.broker.prefix == "shop"
        assert running.framework.settings.store.url.startswith("sqlite:///")


async def test_wrong_settings_and_times_of_the_harness_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="retry"):
        async with harness(patient, retry=3):  # type: ignore[arg-type]  # the mistake under test
            pass
    with pytest.raises(ValueError, match=r"has no time zone; write datetime\(2026, 3, …, tzinfo=UTC\)"):
        async with harness(patient, start=datetime(2026, 3, 1)):  # noqa: DTZ001 - the mistake under test
            pass
    shanghai = timezone(timedelta(hours=8))
    async with harness(patient, start=datetime(2026, 3, 1, tzinfo=shanghai)) as running:
        assert running.now == datetime(2026, 2, 28, 16, tzinfo=UTC)
        assert running.now.tzinfo is UTC


@task("fails")
async def fails(parameters: None, context: TaskContext[None]) -> None:
    raise NonRetryableError("no")


async def test_a_superseded_task_that_halts_its_stream_cannot_be_retried() -> None:
    stream: StreamOption = {"key": "s", "on_failure": "halt"}
    async with harness(fails, patient) as running:
        first = await running.framework.submit(fails, unique={"key": "k", "version": 1}, stream=stream)
        assert (await running.finished(first)).status is TaskStatus.FAILED
        second = await running.framework.submit(patient, 0, unique={"key": "k", "version": 2}, stream={"key": "s"})
        with pytest.raises(TransitionRefusedError) as refused:
            await running.framework.services.tasks.retry(first.task_id, EVERYONE, by="ann")
        command = "taskframework streams go-on --position 0 s"
        assert (refused.value.hint or "").endswith(f"If this one halts its stream: {command}")
        explained = await running.framework.services.explain.explain(second.task_id, EVERYONE)
        assert explained.cause.change.endswith(f"let the others continue without it: {command}")


async def test_a_passage_that_never_comes_is_refused() -> None:
    async with harness(patient) as running:
        with pytest.raises(ValueError, match="the first passage is 1"):
            running.crash_at("settle.before_write", passage=0)


async def test_a_misspelled_task_type_is_refused_with_the_nearest_one() -> None:
    every_minute = {"task_type": "report", "cron": "* * * * *", "parameters": "x"}
    with pytest.raises(UnknownTaskTypeError, match="reports"):
        async with harness(reports, schedules={"hourly": every_minute}):
            pass
    async with harness(reports) as running:
        running.assert_submitted("reports", times=0)
        with pytest.raises(UnknownTaskTypeError, match="reports"):
            running.assert_submitted("report", times=0)
