"""The key of a job, and submitting until somebody takes it."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from taskframework.actors import job_key, submit_once
from taskframework.errors import ApiUnavailableError, InvalidParametersError, StoreUnavailableError
from taskframework.model.values import is_name
from taskframework.testing import FakeClock

SAME: tuple[Any, ...] = ("tenant", "session", 1, "transcribe", "en", {"a": 1, "b": [2]})


def test_the_same_job_has_the_same_key() -> None:
    assert job_key(*SAME) == job_key("tenant", "session", 1, "transcribe", "en", {"b": [2], "a": 1})
    assert job_key(*SAME).startswith("tenant:session:1:transcribe:en:")


def test_another_job_has_another_key() -> None:
    others = [
        ("tenant:session", "", 1, "transcribe", "en", {"a": 1, "b": [2]}),
        ("tenant", "session:1", 1, "transcribe", "en", {"a": 1, "b": [2]}),
        ("other", *SAME[1:]),
        (*SAME[:2], 2, *SAME[3:]),
        (*SAME[:5], {"a": 1}),
        (*SAME[:5], None),
        ("x" * 300, *SAME[1:]),
        ("x" * 301, *SAME[1:]),
        ("größe\n", *SAME[1:]),
    ]
    keys = [job_key(*SAME), *(job_key(*other) for other in others)]
    assert len(set(keys)) == len(keys)
    assert all(map(is_name, keys))


class Away:
    """Takes a submission after some have failed."""

    def __init__(self, failures: int, error: Exception) -> None:
        self.failures, self.error, self.calls = failures, error, 0

    async def submit(self) -> str:
        self.calls += 1
        if self.calls <= self.failures:
            raise self.error
        return "accepted"


async def submitted(away: Away, clock: FakeClock, **options: Any) -> str:
    submission = asyncio.create_task(submit_once(away.submit, clock=clock, **options))
    while not submission.done():
        clock.advance(1)
        await asyncio.sleep(0)
    return await submission


@pytest.mark.parametrize("error", [StoreUnavailableError(), ApiUnavailableError()])
async def test_a_job_is_submitted_again_until_it_is_accepted(error: Exception) -> None:
    away = Away(5, error)
    assert await submitted(away, FakeClock()) == "accepted"
    assert away.calls == 6


async def test_a_job_is_not_submitted_any_more_after_the_patience() -> None:
    away = Away(1_000, StoreUnavailableError())
    with pytest.raises(StoreUnavailableError):
        await submitted(away, FakeClock(), patience=timedelta(seconds=30))
    assert 5 < away.calls < 40


async def test_a_refused_job_is_not_submitted_again() -> None:
    away = Away(1, InvalidParametersError("t", []))
    with pytest.raises(InvalidParametersError):
        await submitted(away, FakeClock())
    assert away.calls == 1
