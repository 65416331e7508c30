"""Suspects: who may run beside whom after lost leases."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from typing import cast

import pytest

from taskframework.model.message import TaskMessage
from taskframework.model.scope import Scope
from taskframework.model.task import Task
from taskframework.stores.base import TaskStore
from taskframework.testing.eventually import eventually
from taskframework.testing.factories import new_task
from taskframework.worker import suspects as suspects_module
from taskframework.worker.admission import Candidate
from taskframework.worker.suspects import Suspects

HOUR = timedelta(hours=1)


class Store:
    """Has the tasks that the messages name."""

    def __init__(self) -> None:
        self.tasks: dict[str, Task] = {}

    async def get_many(self, task_ids: Sequence[str], scope: Scope) -> Mapping[str, Task]:
        return {task_id: self.tasks[task_id] for task_id in task_ids}


STORE = Store()


def new_suspects(max_crashes: int = 3, probation: timedelta = HOUR) -> Suspects:
    return Suspects(cast(TaskStore, STORE), max_crashes, probation)


@contextlib.asynccontextmanager
async def turn(
    suspects: Suspects, crashes: int = 2, *, attempts: int = 0, headers: dict[str, str] | None = None
) -> AsyncIterator[bool]:
    """Whether a task that lost so many leases is admitted, and all that follows for it."""
    async with contextlib.AsyncExitStack() as holding:
        task = new_task(task_id=f"t{len(STORE.tasks)}", crashes=crashes, attempts=attempts, max_attempts=5)
        STORE.tasks[task.task_id] = task
        message = TaskMessage.for_task(task)
        given = headers or {name: str(value) for name, value in (message.headers or {}).items()}
        yield await suspects.admit(Candidate(message, given, None, "claim", holding)) is None


@pytest.mark.parametrize(("crashes", "runs_together"), [(0, True), (1, True), (2, False), (3, False)])
async def test_only_tasks_before_their_last_crash_run_one_at_a_time(
    crashes: int, runs_together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspects_module, "_MAX_WAIT_SECONDS", 0.01)
    suspects = new_suspects()
    async with turn(suspects), turn(suspects, crashes) as is_its_turn:
        assert is_its_turn is runs_together


@pytest.mark.parametrize(("crashes", "attempts", "runs_together"), [(1, 3, True), (1, 4, False), (0, 4, True)])
async def test_a_task_that_crashed_runs_alone_in_its_last_attempt(
    crashes: int, attempts: int, runs_together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspects_module, "_MAX_WAIT_SECONDS", 0.01)
    suspects = new_suspects()
    async with turn(suspects), turn(suspects, crashes, attempts=attempts) as is_its_turn:
        assert is_its_turn is runs_together


async def test_the_next_suspect_runs_when_the_one_before_is_done() -> None:
    suspects = new_suspects()
    order: list[str] = []

    async def run(name: str) -> None:
        async with turn(suspects) as is_its_turn:
            assert is_its_turn
            order.append(f"{name} begins")
            await asyncio.sleep(0)
            order.append(f"{name} ends")

    await asyncio.gather(run("one"), run("other"))
    assert order == ["one begins", "one ends", "other begins", "other ends"]


async def test_a_turn_ends_with_an_error() -> None:
    suspects = new_suspects()
    with contextlib.suppress(RuntimeError):
        async with turn(suspects):
            raise RuntimeError
    async with turn(suspects) as is_its_turn:
        assert is_its_turn


async def test_with_a_single_crash_allowed_nobody_is_suspected_before_it() -> None:
    suspects = new_suspects(1)
    async with turn(suspects, 0), turn(suspects, 0) as is_its_turn:
        assert is_its_turn


async def test_an_unreadable_crash_header_makes_no_suspect() -> None:
    suspects = new_suspects()
    async with turn(suspects), turn(suspects, headers={"x-crashes": "many"}) as is_its_turn:
        assert is_its_turn


async def test_a_suspect_that_survives_its_probation_is_not_waited_for() -> None:
    suspects = new_suspects(probation=timedelta(milliseconds=20))
    async with turn(suspects) as first, turn(suspects) as second:
        assert (first, second) == (True, True)
    async with turn(suspects) as third:
        assert third, "a turn that ended with its probation does not end again"


async def test_only_a_few_suspects_wait_in_a_slot() -> None:
    suspects = new_suspects()

    async def ask() -> bool:
        async with turn(suspects) as is_its_turn:
            return is_its_turn

    async with turn(suspects):
        asking = [asyncio.create_task(ask()) for _ in range(10)]
        await eventually(lambda: sum(task.done() for task in asking) == 6)
    assert [await task for task in asking] == [True] * 4 + [False] * 6
