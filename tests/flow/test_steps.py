"""`context.once`: what an attempt did, the next one does not do again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from taskframework import BackgroundTaskExecutable, TaskFramework, TaskStatus, failpoint
from taskframework.model.scope import EVERYONE
from tests.flow.conftest import BOTH, Run
from tests.support.step_tasks import EVERY, NAMES, STEADY, Charges

# The fast path carries the same messages for these as for the tests of the lifecycle, which run without it too.
pytestmark = pytest.mark.parametrize("urls", BOTH, indirect=True)


@pytest.fixture
async def framework(run: Run) -> AsyncIterator[TaskFramework]:
    async with run(extra=EVERY) as framework:
        yield framework


@pytest.fixture
def _disarmed() -> Iterator[None]:
    yield
    failpoint.disarm()


@pytest.mark.parametrize("executable", STEADY, ids=lambda executable: executable.task_type)
async def test_a_later_attempt_repeats_no_step_and_sees_the_same(
    framework: TaskFramework, executable: type[BackgroundTaskExecutable[Any, Any]]
) -> None:
    handle = await framework.submit(executable.task_type)
    result = await handle.result(timeout=60)
    task = await handle.task()
    assert result["calls"] == 0, "the second attempt did not do what the first one had done"
    assert result["first"] == result["second"] == [entry.outcome for entry in task.steps[:-1]]
    assert len({outcome[0]["number"] for outcome in result["first"][:-1]}) == len(NAMES), "each had its own"
    assert [entry.step for entry in task.steps[:-2]] == list(NAMES)
    assert task.attempts == 2


@pytest.mark.usefixtures("_disarmed")
@pytest.mark.parametrize(
    ("fault", "attempts", "times"),
    [
        # As if the process died before the record: at least once, not exactly once.
        ("step.before_write@1=raise", 2, 2),
        ("step.after_write@1=raise", 2, 1),
        ("step.reply@1=drop", 1, 1),
    ],
)
async def test_a_step_is_done_again_only_if_it_was_not_recorded(
    framework: TaskFramework, fault: str, attempts: int, times: int
) -> None:
    failpoint.arm_from({"TASKFRAMEWORK_FAILPOINTS": fault})
    handle = await framework.submit("charges")
    assert await handle.result(timeout=60) == times
    task = await handle.task()
    assert (task.attempts, Charges.charged[task.task_id]) == (attempts, times)
    assert [entry.outcome for entry in task.steps] == [times]


async def test_a_replay_keeps_what_was_done(framework: TaskFramework) -> None:
    handle = await framework.submit("charges", "breaks")
    assert (await handle.finished(timeout=60)).status is TaskStatus.FAILED
    await framework.services.tasks.retry(handle.task_id, EVERYONE, by="operator")
    assert await handle.result(timeout=60) == 1
    assert (await handle.task()).generation == 1


@pytest.mark.parametrize("parameters", ["bad name", "bad outcome"])
async def test_a_step_outcome_that_cannot_be_stored_fails_the_task_for_good(
    framework: TaskFramework, parameters: str
) -> None:
    handle = await framework.submit("charges", parameters)
    ended = await handle.finished(timeout=60)
    assert (ended.status, ended.attempts) == (TaskStatus.FAILED, 1)
    assert ended.error is not None
    assert ended.error.type.endswith("ValueNotStorableError")
    assert [entry.step for entry in ended.steps] == ["charge"]
    assert "never" not in Charges.charged
