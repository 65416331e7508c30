"""How long a handle waits."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from taskframework import ResultTimeoutError, Task
from taskframework.operations.handle import until_final
from taskframework.testing.factories import new_task


async def running() -> Task:
    return new_task(task_id="t-1")


@pytest.mark.parametrize("timeout", [0, 0.0, timedelta(0)])
async def test_seconds_and_timedeltas_are_times_to_wait(timeout: timedelta | float) -> None:
    with pytest.raises(ResultTimeoutError):
        await until_final(running, timeout)


@pytest.mark.parametrize("timeout", ["5s", "5", b"5", [5], float("nan")])
async def test_a_wrong_waiting_time_is_refused_with_the_right_form(timeout: Any) -> None:
    with pytest.raises(TypeError, match="is no length of time: use a timedelta or a number of seconds, such as 5"):
        await until_final(running, timeout)
