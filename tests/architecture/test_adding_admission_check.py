"""What `docs/adding/admission-check.md` promises: a check is one class and one entry of the list."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from taskframework import BackgroundTaskExecutable, Settings, TaskContext, TaskFramework, TaskStatus
from taskframework.testing.clock import FakeClock
from taskframework.testing.eventually import eventually
from taskframework.worker.admission import Admission, AdmissionCheck, Candidate, PutOff

HOUR = timedelta(hours=1)


class OfficeHours:
    """A throw-away check: nothing of this type starts before the office opens."""

    def __init__(self, clock: FakeClock, task_type: str, opens: datetime | timedelta) -> None:
        self._clock = clock
        self._task_type = task_type
        self._first = clock.now()
        self._opens = opens
        self.asked = 0

    async def admit(self, candidate: Candidate) -> PutOff | None:
        if candidate.message.task_type != self._task_type:
            return None
        self.asked += 1
        return None if self._clock.now() >= self._first + HOUR else PutOff(self._opens)


class Counts(BackgroundTaskExecutable[None, int]):
    task_type = "counts"

    async def execute(self, context: TaskContext[None]) -> int:
        return context.attempt


class CountsInTheOffice(Counts):
    task_type = "counts-in-the-office"


@asynccontextmanager
async def running(
    folder: Path, clock: FakeClock, check: AdmissionCheck, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[TaskFramework]:
    """A worker with one slot, whose wiring has the check in its list."""
    build = Admission.__init__

    def build_with_check(self: Admission, checks: Sequence[AdmissionCheck]) -> None:
        build(self, [*checks, check])

    monkeypatch.setattr(Admission, "__init__", build_with_check)
    settings = Settings.model_validate(
        {"store": {"url": f"sqlite:///{folder / 'tasks.db'}"}, "worker": {"concurrency": 1, "lease": "10m"}}
    )
    framework = TaskFramework(settings, clock=clock)
    framework.register(Counts)
    framework.register(CountsInTheOffice)
    async with framework.running():
        yield framework


async def passes(clock: FakeClock, time: timedelta) -> None:
    """Let time pass in steps of minutes, and everybody work in between."""
    for _ in range(int(time / timedelta(minutes=1))):
        clock.advance(60)
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("is_moment", [False, True], ids=["delay", "time"])
async def test_a_task_that_is_put_off_for_an_hour_runs_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_moment: bool
) -> None:
    clock = FakeClock()
    start = clock.now()
    check = OfficeHours(clock, "counts-in-the-office", start + HOUR if is_moment else HOUR)
    async with running(tmp_path, clock, check, monkeypatch) as framework:
        put_off = await framework.submit("counts-in-the-office")
        await eventually(lambda: check.asked)

        async def is_due_in_an_hour() -> bool:
            return (await put_off.task()).next_dispatch_at == start + HOUR

        await eventually(is_due_in_an_hour)
        other = await framework.submit("counts")
        assert await other.result(timeout=30) == 1, "the slot is not free for others"
        await passes(clock, 55 * timedelta(minutes=1))
        task = await put_off.task()
        assert (task.status, task.attempts, check.asked) == (TaskStatus.QUEUED, 0, 1)
        assert task.next_dispatch_at == start + HOUR
        await passes(clock, 5 * timedelta(minutes=1))

        async def has_ended() -> bool:
            clock.advance(1)
            return (await put_off.task()).status.is_final

        await eventually(has_ended)
        assert await put_off.result(timeout=30) == 1, "an attempt was counted"
        assert check.asked == 2
