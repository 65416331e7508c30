"""The log has one line for each attempt that failed and for each task that ended, whoever wrote that."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from taskframework import TaskFramework
from taskframework.aggregation import cascade
from taskframework.model.attempts import Claim
from taskframework.model.scope import EVERYONE
from taskframework.observability import task_log
from taskframework.testing.eventually import eventually
from tests.flow.conftest import Run
from tests.support.kitchen_sink import Waits

Told = Callable[[str], list[dict[str, Any]]]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Told:
    """The lines on a task, by its id."""
    caplog.set_level(logging.DEBUG, task_log.logger.name)
    return lambda task_id: [
        {**vars(record), "text": record.getMessage()}
        for record in caplog.records
        if record.name == task_log.logger.name and vars(record)["task_id"] == task_id
    ]


async def ended(framework: TaskFramework, task_type: str, parameters: Any = None, **options: Any) -> str:
    handle = await framework.submit(task_type, parameters, **options)
    await handle.finished(timeout=60)
    await framework.services.bus.drain()
    return handle.task_id


def short(line: dict[str, Any]) -> tuple[str, str, int]:
    return line["levelname"], line["status"], line["attempt"]


@pytest.mark.parametrize(
    ("task_type", "parameters", "lines"),
    [
        ("count-words", {"text": "a"}, [("DEBUG", "COMPLETED", 1)]),
        ("flaky", {"succeed_at": 2, "delay": 0}, [("WARNING", "RETRYING", 1), ("DEBUG", "COMPLETED", 2)]),
        ("broken", None, [("ERROR", "FAILED", 1)]),
        ("too-slow", None, [("WARNING", "RETRYING", 1), ("ERROR", "DEAD_LETTER", 2)]),
    ],
)
async def test_an_attempt_that_ends_is_logged_once(
    run: Run, told: Told, task_type: str, parameters: Any, lines: list[tuple[str, str, int]]
) -> None:
    async with run() as framework:
        task_id = await ended(framework, task_type, parameters, user_id="ada", correlation_id="order-7")
    assert [short(line) for line in told(task_id)] == lines
    for line in told(task_id):
        assert (line["task_type"], line["user_id"], line["correlation_id"]) == (task_type, "ada", "order-7")
        assert 0 <= line["duration"] < 20
        assert line["text"].startswith(f"task {task_id} ({task_type}) ")
        assert f" in attempt {line['attempt']} of " in line["text"]


async def test_a_task_that_failed_shows_where_in_its_own_code(run: Run, told: Told) -> None:
    async with run() as framework:
        task_id = await ended(framework, "broken")
    (line,) = told(task_id)
    assert line["text"].endswith(" and is not retried: ValueError: a bug")
    assert line["exc_text"].startswith("Traceback (most recent call last):\n  File ")
    assert line["exc_text"].endswith("ValueError: a bug")
    assert line["exc_text"].count("  File ") == line["exc_text"].count("kitchen_sink.py") == 1


async def test_a_cancelled_task_is_no_error(run: Run, told: Told) -> None:
    async with run() as framework:
        running = await framework.submit("waits")
        await eventually(lambda: Waits.started == 1)
        waiting = await framework.submit("waits", not_before=datetime.now(UTC) + timedelta(hours=1))
        for handle in (running, waiting):
            await framework.services.tasks.cancel(handle.task_id, EVERYONE, by="ada", reason="enough")
            await handle.finished(timeout=60)
    (line,), (unstarted,) = told(running.task_id), told(waiting.task_id)
    assert short(line) == ("INFO", "CANCELLED", 1)
    assert short(unstarted) == ("INFO", "CANCELLED", 0)
    assert unstarted["text"].endswith(") was cancelled by ada")
    assert "duration" not in unstarted


async def test_sub_tasks_that_nobody_waits_for_share_a_line(
    run: Run, told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, cascade.logger.name)
    async with run() as framework:
        batch = await framework.submit_batch("waits", [None, None], not_before=datetime.now(UTC) + timedelta(hours=1))
        await framework.services.batches.cancel(batch.batch_id, EVERYONE, by="ada", reason="enough")
        await eventually(lambda: cascade.logger.name in {record.name for record in caplog.records})
        page = await framework.services.tasks.subtasks(batch.batch_id, EVERYONE, limit=10)
        await framework.services.bus.drain()
    texts = [record.getMessage() for record in caplog.records if record.name == cascade.logger.name]
    assert texts == [f"cancelled 2 sub-tasks of task {batch.batch_id}, which does not wait for them"]
    for subtask in page.items:
        (line,) = told(subtask.task_id)
        assert (short(line), line["text"].endswith(" by parent")) == (("DEBUG", "CANCELLED", 0), True)


async def test_the_repairs_tell_of_the_ends_they_write(run: Run, told: Told) -> None:
    async with run(worker=False, recovery={"sweep_interval": "100ms"}) as framework:
        late = await framework.submit("counts", deadline=datetime.now(UTC) + timedelta(seconds=1))
        await late.finished(timeout=60)
        orphan = await framework.submit("counts")
        claim = Claim(orphan.task_id, 1, "claim-of-the-dead", "dead-worker", timedelta(seconds=0.4))
        assert await framework.services.store.apply(claim) is not None
    async with run(lease="6s") as framework:  # the reaper waits for a quarter of it
        await framework.handle(orphan.task_id).finished(timeout=60)
    (line,) = told(late.task_id)
    assert short(line) == ("ERROR", "FAILED", 0)
    assert line["text"].endswith(") failed and is not retried: The deadline passed.")
    lost, completed = told(orphan.task_id)
    assert (*short(lost), lost["crashes"]) == ("WARNING", "RETRYING", 1, 1)
    assert "The worker stopped renewing its lease" in lost["text"]
    assert short(completed) == ("DEBUG", "COMPLETED", 2)


@pytest.mark.parametrize("urls", ["servers"], indirect=True)
async def test_only_the_process_that_wrote_the_end_of_an_attempt_logs_it(run: Run, told: Told) -> None:
    async with run(worker=False) as api, run():
        task_id = await ended(api, "flaky", {"succeed_at": 2, "delay": 0})
    assert [short(line) for line in told(task_id)] == [("WARNING", "RETRYING", 1), ("DEBUG", "COMPLETED", 2)]
