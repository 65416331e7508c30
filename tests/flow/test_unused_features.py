"""A type without limits, streams or keys pays nothing for those of other types.

Counted in calls of Python functions, which a busy machine does not change.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from taskframework import (
    BackgroundTaskExecutable,
    ConcurrencyLimit,
    RateLimit,
    Settings,
    SubmissionOptions,
    TaskContext,
    TaskFramework,
    TaskOptions,
)

_WARM_UP, _COUNTED = 30, 100
_MAX_ROUNDS = 8
_USER = {"user": "ann"}


class Plain(BackgroundTaskExecutable[dict[str, str], int]):
    task_type = "plain"
    #: Who waits for a result asks the store now and then, a little more often or less; this event needs no such calls.
    has_run = asyncio.Event()

    async def execute(self, context: TaskContext[dict[str, str]]) -> int:
        self.has_run.set()
        return 1


class Rated(Plain):
    task_type = "rated"
    options = TaskOptions(rate_limit="openai")


class Keyed(Plain):
    task_type = "keyed"
    options = TaskOptions(rate_limit=RateLimit("openai", key="user"), concurrency_limit=ConcurrencyLimit(3, key="user"))


class Slotted(Plain):
    task_type = "slotted"
    options = TaskOptions(concurrency_limit=3)


#: One submission for each feature, beside which plain tasks run.
_FEATURES: Sequence[tuple[type[Plain], SubmissionOptions]] = (
    (Rated, {}),
    (Keyed, {}),
    (Slotted, {}),
    (Plain, {"stream": {"key": "s"}}),
    (Plain, {"unique": {"key": "u", "version": 1}}),
    (Plain, {"throttle": {"key": "t", "every": "1h"}}),
    (Plain, {"priority": "low"}),
)


async def test_a_plain_task_makes_no_more_calls_beside_types_with_limits_streams_and_keys(tmp_path: Path) -> None:
    # The fewest of some rounds: where they take long, because the machine is busy, more repairs are counted with them.
    alone = beside = math.inf
    for number in range(_MAX_ROUNDS):
        alone = min(alone, await calls_per_task(tmp_path / f"alone {number}", ()))
        beside = min(beside, await calls_per_task(tmp_path / f"beside {number}", _FEATURES))
        if beside <= 1.02 * alone:
            break
    assert beside <= 1.02 * alone, (alone, beside)


async def calls_per_task(folder: Path, features: Sequence[tuple[type[Plain], SubmissionOptions]]) -> float:
    """How many Python functions are called for a plain task, from one submission to the next."""
    folder.mkdir()
    limiter = {"providers": {"openai": {"rate": 1_000, "burst_capacity": 1_000}}}
    # Repairs come by time: on a busy machine there would be more of them for a task.
    repairs = {"sweep_interval": "1h", "relay_interval": "1h"}
    sections = {"store": {"url": f"sqlite:///{folder}/tasks.db"}, "rate_limiter": limiter, "recovery": repairs}
    framework = TaskFramework(Settings.model_validate(sections))
    types: set[type[Plain]] = {Plain, *(executable for executable, _ in features)}
    for each in types:
        framework.register(each)
    async with framework.running():

        async def do(executable: type[Plain] = Plain, **options: Any) -> None:
            Plain.has_run.clear()
            await framework.submit(executable, _USER, **options)
            await asyncio.wait_for(Plain.has_run.wait(), 30)

        for executable, options in features:
            await do(executable, **options)
        for _ in range(_WARM_UP):
            await do()
        before = sys.getprofile()
        count, counted = counting()
        sys.setprofile(count)
        try:
            for _ in range(_COUNTED):
                await do()
        finally:
            sys.setprofile(before)
    return counted() / _COUNTED


def counting() -> tuple[Callable[[FrameType, str, Any], None], Callable[[], int]]:
    """A profile function that counts calls of Python functions, and the count."""
    calls = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    return count, lambda: calls
