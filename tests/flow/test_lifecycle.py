"""A task's life from submission to its end, and what its document tells of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from taskframework import (
    BackgroundTaskExecutable,
    IdempotencyConflictError,
    InvalidParametersError,
    NotRunningError,
    RegistrationError,
    TaskContext,
    TaskFailedError,
    TaskFramework,
    TaskHandle,
    TaskNotFoundError,
    TaskStatus,
)
from taskframework.errors import TransitionRefusedError
from taskframework.model.query import TaskFilter
from taskframework.model.scope import EVERYONE
from taskframework.model.task import Task
from taskframework.operations.dead_letters import AlreadyReplayedError
from taskframework.testing.eventually import eventually
from tests.flow.conftest import Run
from tests.support.kitchen_sink import Counts, Text, Waits, WaitsInThread


def story(task: Task) -> list[tuple[str, int]]:
    """Event and attempt of each history entry."""
    assert [entry.sequence for entry in task.history] == list(range(1, task.sequence + 1))
    return [(entry.type, entry.attempt) for entry in task.history]


async def running(framework: TaskFramework, task_id: str) -> Task:
    async def look() -> Task | None:
        task = await framework.get(task_id)
        return task if task.status is TaskStatus.RUNNING else None

    return await eventually(look)


async def test_a_task_completes_and_its_document_tells_the_story(run: Run) -> None:
    async with run() as framework:
        handle = await framework.submit("count-words", Text(text="one two three"), user_id="ada")
        assert await handle.result(timeout=60) == {"words": 3}
        task = await handle.task()
    assert story(task) == [("submitted", 0), ("started", 1), ("completed", 1)]
    assert (task.user_id, task.attempts, task.fencing_token, task.progress) == ("ada", 1, 1, {"percent": 50})
    assert task.error is None
    assert task.lease is None
    assert task.next_dispatch_at is None
    assert task.created_at <= (task.started_at or task.created_at) <= (task.finished_at or task.created_at)


@pytest.mark.parametrize("urls", ["embedded"], indirect=True)
async def test_a_task_that_a_last_look_makes_claimable_has_its_message_and_its_event(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted: list[str] = []
    async with run() as framework:
        finish = framework.services.looks.finished

        async def finished() -> None:
            await finish()
            if not submitted:
                handle = await framework.submit("count-words", Text(text="one"))
                submitted.append(handle.task_id)

        monkeypatch.setattr(framework.services.looks, "finished", finished)
    async with framework.store_only():
        task = await framework.get(submitted[0])
    assert (task.dispatches, task.published_sequence) == (1, 1), "both are written as sent"


class TooLate(BackgroundTaskExecutable[None, None]):
    task_type = "too-late"

    async def execute(self, context: TaskContext[None]) -> None: ...


async def test_registering_while_running_and_reading_after_the_stop_are_refused(run: Run) -> None:
    async with run() as framework:
        with pytest.raises(RegistrationError, match="'too-late' is registered while a worker is running"):
            framework.register(TooLate)
        handle = await framework.submit("count-words", Text(text="one"))
    with pytest.raises(NotRunningError, match="has stopped"):
        await handle.task()
    framework.register(TooLate)


async def test_a_call_on_another_event_loop_is_refused_and_disturbs_nothing(run: Run) -> None:
    async with run() as framework:
        handle = await framework.submit("flaky", {"succeed_at": 2, "delay": 60})

        async def take_handle() -> object:
            return framework.handle(handle.task_id)

        calls: list[Callable[[], Coroutine[Any, Any, object]]] = [
            take_handle,
            lambda: framework.submit("count-words", Text(text="one")),
            handle.cancel,
        ]
        for call in calls:
            with pytest.raises(NotRunningError, match="another event loop"):
                await asyncio.to_thread(lambda: asyncio.run(call()))  # noqa: B023 - awaited before the next one

        assert (await handle.task()).cancel is None
        page = await framework.services.store.list_tasks(EVERYONE, TaskFilter(), limit=10)
        assert [task.task_id for task in page.items] == [handle.task_id], "the refused submission stored nothing"
        await (await framework.submit("count-words", Text(text="one"))).result(timeout=60)


async def test_a_thread_hands_its_call_to_the_event_loop_of_the_framework(run: Run) -> None:
    async with run() as framework:
        loop = asyncio.get_running_loop()

        def from_thread() -> TaskHandle[Any]:
            work = framework.submit("count-words", Text(text="one two"))
            return asyncio.run_coroutine_threadsafe(work, loop).result(60)

        handle = await asyncio.to_thread(from_thread)
        assert await handle.result(timeout=60) == {"words": 2}


async def test_a_retryable_failure_is_repeated_not_before_its_delay(run: Run) -> None:
    delay = timedelta(milliseconds=300)
    async with run() as framework:
        handle = await framework.submit("flaky", {"succeed_at": 3, "delay": delay.total_seconds()})
        assert await handle.result(timeout=60) == 3
        task = await handle.task()
    attempts = [("started", 1), ("retrying", 1), ("started", 2), ("retrying", 2), ("started", 3), ("completed", 3)]
    assert story(task) == [("submitted", 0), *attempts]
    times = {(entry.type, entry.attempt): entry.at for entry in task.history}
    for attempt in (1, 2):
        assert times["started", attempt + 1] - times["retrying", attempt] >= delay
    assert [error.attempt for error in task.errors] == [1, 2]
    assert task.error is None, "a success leaves no error"


async def test_a_retry_that_an_operator_asks_for_need_not_wait_and_is_made_once(run: Run) -> None:
    async with run() as framework:
        handle = await framework.submit("flaky", {"succeed_at": 2, "delay": 3600})

        async def is_retried() -> bool:
            return (await handle.task()).status is TaskStatus.RETRYING

        await eventually(is_retried)
        tasks = framework.services.tasks
        asked = [tasks.retry(handle.task_id, EVERYONE, by="ada", reason="the provider is back") for _ in range(3)]
        done = await asyncio.gather(*asked, return_exceptions=True)
        assert any(isinstance(task, Task) for task in done)
        assert all(isinstance(it, (Task, TransitionRefusedError)) for it in done), "refused once it runs"
        assert await handle.result(timeout=60) == 2
        task = await handle.task()
    told = [("submitted", 0), ("started", 1), ("retrying", 1), ("retry_requested", 1), ("started", 2), ("completed", 2)]
    assert story(task) == told
    assert task.history[3].data == {"by": "ada", "reason": "the provider is back"}
    assert (task.generation, task.attempts) == (0, 2)


@pytest.mark.parametrize(
    ("task_type", "parameters", "status", "code", "attempts"),
    [
        ("broken", None, "FAILED", "execution_error", 1),
        ("refuses", None, "FAILED", "execution_error", 1),
        ("flaky", {"succeed_at": 99, "delay": 0.01}, "DEAD_LETTER", "execution_error", 5),
        ("too-slow", None, "DEAD_LETTER", "timeout", 2),
        ("returns", "huge", "FAILED", "bad_result", 1),
        ("returns", "not-a-number", "FAILED", "bad_result", 1),
        ("returns", "big-integer", "FAILED", "bad_result", 1),
        ("returns", "surrogate", "FAILED", "bad_result", 1),
        ("returns", "object", "FAILED", "bad_result", 1),
    ],
)
async def test_failures_end_where_they_should(
    run: Run, task_type: str, parameters: object, status: str, code: str, attempts: int
) -> None:
    async with run() as framework:
        handle = await framework.submit(task_type, parameters)
        with pytest.raises(TaskFailedError) as failure:
            await handle.result(timeout=60)
        task = await handle.task()
        letters = await framework.services.dead_letters.list_letters(EVERYONE, limit=10)
    assert failure.value.status == status
    assert task.error is not None
    assert task.error.code == code
    assert task.attempts == attempts
    assert [letter.id for letter in letters.items] == [task.task_id]


async def test_a_dead_letter_is_replayed_with_a_new_budget_and_a_growing_token(run: Run) -> None:
    async with run() as framework:
        handle = await framework.submit("flaky", {"succeed_at": 2}, max_attempts=1)
        dead = await handle.finished(timeout=60)
        assert dead.status is TaskStatus.DEAD_LETTER
        outcome = await framework.services.dead_letters.replay([dead.task_id, "missing"], EVERYONE, by="operator")
        assert outcome[0].problem is None
        assert outcome[1].problem is not None
        again = await handle.finished(timeout=60)
        assert (again.generation, again.attempts, again.fencing_token) == (1, 1, 2)
        with pytest.raises(TransitionRefusedError):
            await framework.services.tasks.retry(
                (await framework.submit("count-words", {"text": ""})).task_id, EVERYONE, by="x"
            )


async def test_a_dead_letter_replayed_twice_is_queued_only_once(run: Run) -> None:
    async with run(worker=False) as framework:
        letters = framework.services.dead_letters
        handle = await framework.submit("count-words", {"text": "a"}, deadline=datetime.now(UTC) + timedelta(seconds=1))
        dead = await handle.finished(timeout=60)
        assert dead.status is TaskStatus.FAILED
        rivals = await asyncio.gather(*(letters.replay([dead.task_id], EVERYONE, by="operator") for _ in range(5)))
        late = [
            await letters.replay([dead.task_id], EVERYONE, by="operator", dry_run=dry_run) for dry_run in (True, False)
        ]
        [task, stranger] = [await handle.task(), await framework.submit("count-words", {"text": "a"})]
        [unknown] = await letters.replay([stranger.task_id], EVERYONE, by="operator")
    refused = [outcome.problem for [outcome] in [*rivals, *late] if outcome.problem is not None]
    assert len(refused) == 6, "one of them queued it"
    assert {type(problem) for problem in refused} == {AlreadyReplayedError}
    assert "was already queued again; the task is QUEUED now" in str(refused[0])
    assert (task.generation, task.status) == (1, TaskStatus.QUEUED)
    assert isinstance(unknown.problem, TaskNotFoundError), "it never was a dead letter"


async def test_a_submission_with_the_same_key_is_the_same_task(run: Run) -> None:
    async with run() as framework:
        first = await framework.submit("count-words", {"text": "a"}, idempotency_key="k")
        second = await framework.submit("count-words", {"text": "a"}, idempotency_key="k")
        other = await framework.submit("count-words", {"text": "a"}, idempotency_key="k", user_id="bob")
        assert (second.task_id, second.is_new) == (first.task_id, False)
        assert other.task_id != first.task_id
        with pytest.raises(IdempotencyConflictError):
            await framework.submit("count-words", {"text": "b"}, idempotency_key="k")
        with pytest.raises(InvalidParametersError, match="text"):
            await framework.submit("count-words", {"txt": "b"})


async def test_a_future_task_waits_for_its_time(run: Run) -> None:
    async with run() as framework:
        due = datetime.now(UTC) + timedelta(milliseconds=700)
        handle = await framework.submit("count-words", {"text": "a"}, not_before=due)
        assert (await handle.task()).status is TaskStatus.QUEUED
        task = await handle.finished(timeout=60)
    assert task.started_at is not None
    assert task.started_at >= task.not_before


async def test_a_waiting_and_a_running_task_are_cancelled(run: Run) -> None:
    async with run() as framework:
        later = await framework.submit("counts", None, not_before=datetime.now(UTC) + timedelta(hours=1))
        now = await framework.submit("waits")
        await running(framework, now.task_id)
        cancelled = await framework.services.tasks.cancel(later.task_id, EVERYONE, by="ada", reason="changed my mind")
        assert cancelled.status is TaskStatus.CANCELLED
        asked = await framework.services.tasks.cancel(now.task_id, EVERYONE, by="ada")
        assert asked.status is TaskStatus.RUNNING
        assert asked.cancel is not None
        ended = await now.finished(timeout=60)
        assert ended.status is TaskStatus.CANCELLED
        assert story(ended)[-2:] == [("cancel_requested", 1), ("cancelled", 1)]
        with pytest.raises(
            TransitionRefusedError, match="Only a task that is QUEUED or RUNNING or RETRYING or WAITING or BLOCKED"
        ):
            await framework.services.tasks.cancel(now.task_id, EVERYONE, by="ada")
    assert later.task_id not in Counts.executions


async def test_a_task_in_a_plain_function_is_cancelled(run: Run) -> None:
    async with run() as framework:
        WaitsInThread.started.clear()
        handle = await framework.submit("waits-in-thread")
        await asyncio.to_thread(WaitsInThread.started.wait, 20)
        await framework.services.tasks.cancel(handle.task_id, EVERYONE, by="ada")
        assert (await handle.finished(timeout=60)).status is TaskStatus.CANCELLED


async def test_a_deadline_ends_what_waits_and_what_runs(run: Run) -> None:
    async with run() as framework:
        deadline = datetime.now(UTC) + timedelta(seconds=1)
        running_task = await framework.submit("waits", deadline=deadline)
        ended = await running_task.finished(timeout=60)
    assert (ended.status, ended.error and ended.error.code) == (TaskStatus.FAILED, "deadline")
    async with run(worker=False) as framework:
        soon = datetime.now(UTC) + timedelta(seconds=0.3)
        waiting = await framework.submit("count-words", {"text": ""}, deadline=soon)
        ended = await waiting.finished(timeout=60)
    assert (ended.status, ended.error and ended.error.code) == (TaskStatus.FAILED, "deadline")


async def test_a_stopping_worker_hands_back_without_counting(run: Run) -> None:
    async with run() as framework:
        handle = await framework.submit("waits")
        await running(framework, handle.task_id)
    async with run(worker=False) as framework:
        task = await framework.get(handle.task_id)
        assert story(task)[-1] == ("released", 1)
        assert (task.status, task.attempts, task.releases) == (TaskStatus.QUEUED, 0, 1)
    async with run() as framework:
        Waits.gate.set()
        assert await framework.handle(handle.task_id).result(timeout=60) == "done"


async def test_a_process_executes_elsewhere(run: Run) -> None:
    async with run() as framework:
        result = await (await framework.submit("in-process", 1000)).result(timeout=60)
    assert result["sum"] == 499500
    assert result["process"] != os.getpid()


async def test_many_tasks_each_run_once(run: Run) -> None:
    Counts.executions.clear()
    async with run() as framework:
        handles = await asyncio.gather(*(framework.submit("counts") for _ in range(300)))
        assert [await handle.result(timeout=60) for handle in handles] == [1] * 300
        assert await framework.services.store.undriven(10) == []
    assert sorted(Counts.executions) == sorted(handle.task_id for handle in handles)
