"""Suspects: who may run beside whom after lost leases."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from taskframework.model.message import TaskMessage
from taskframework.testing.factories import new_task
from taskframework.worker import suspects as suspects_module
from taskframework.worker.admission import Candidate
from taskframework.worker.suspects import Suspects

HOUR = timedelta(hours=1)


def crashed(times: int) -> dict[str, str]:
    """The headers of the message for a task that lost so many leases."""
    message = TaskMessage.for_task(new_task().evolve(crashes=times))
    return {name: str(value) for name, value in (message.headers or {}).items()}


@contextlib.asynccontextmanager
async def turn(suspects: Suspects, headers: dict[str, str]) -> AsyncIterator[bool]:
    """Whether it is admitted, and all that follows for it."""
    async with contextlib.AsyncExitStack() as holding:
        message = TaskMessage("t1", "reports", 1)
        yield await suspects.admit(Candidate(message, headers, None, "claim", holding)) is None


@pytest.mark.parametrize(("crashes", "runs_together"), [(0, True), (1, True), (2, False), (3, False)])
async def test_only_tasks_before_their_last_crash_run_one_at_a_time(
    crashes: int, runs_together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspects_module, "_MAX_WAIT_SECONDS", 0.01)
    suspects = Suspects(3, HOUR)
    async with turn(suspects, crashed(2)), turn(suspects, crashed(crashes)) as is_its_turn:
        assert is_its_turn is runs_together


async def test_the_next_suspect_runs_when_the_one_before_is_done() -> None:
    suspects = Suspects(3, HOUR)
    order: list[str] = []

    async def run(name: str) -> None:
        async with turn(suspects, crashed(2)) as is_its_turn:
            assert is_its_turn
            order.append(f"{name} begins")
            await asyncio.sleep(0)
            order.append(f"{name} ends")

    await asyncio.gather(run("one"), run("other"))
    assert order == ["one begins", "one ends", "other begins", "other ends"]


async def test_a_turn_ends_with_an_error() -> None:
    suspects = Suspects(3, HOUR)
    with contextlib.suppress(RuntimeError):
        async with turn(suspects, crashed(2)):
            raise RuntimeError
    async with turn(suspects, crashed(2)) as is_its_turn:
        assert is_its_turn


async def test_with_a_single_crash_allowed_nobody_is_suspected_before_it() -> None:
    suspects = Suspects(1, HOUR)
    async with turn(suspects, crashed(0)), turn(suspects, crashed(0)) as is_its_turn:
        assert is_its_turn


async def test_an_unreadable_crash_header_makes_no_suspect() -> None:
    suspects = Suspects(3, HOUR)
    async with turn(suspects, crashed(2)), turn(suspects, {"x-crashes": "many"}) as is_its_turn:
        assert is_its_turn


async def test_a_suspect_that_survives_its_probation_is_not_waited_for() -> None:
    suspects = Suspects(3, timedelta(milliseconds=20))
    async with turn(suspects, crashed(2)) as first, turn(suspects, crashed(2)) as second:
        assert (first, second) == (True, True)
    async with turn(suspects, crashed(2)) as third:
        assert third, "a turn that ended with its probation does not end again"


async def test_only_a_few_suspects_wait_in_a_slot() -> None:
    suspects = Suspects(3, HOUR)

    async def ask() -> bool:
        async with turn(suspects, crashed(2)) as is_its_turn:
            return is_its_turn

    async with turn(suspects, crashed(2)):
        asking = [asyncio.create_task(ask()) for _ in range(10)]
        await asyncio.sleep(0)
        done, _ = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result() for task in done] == [False] * 6
    assert [await task for task in asking] == [True] * 4 + [False] * 6
