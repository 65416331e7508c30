"""How long a write is repeated while MongoDB is away."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from taskframework.errors import StoreUnavailableError
from taskframework.stores.mongo.retrying import retry_within

TEN_SECONDS = timedelta(seconds=10)


class _Hanging:
    """Writes that take some seconds of the event loop's clock each, and fail."""

    def __init__(self, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls, self._seconds, self._passed = 0, seconds, 0.0
        loop = asyncio.get_running_loop()
        real_time = loop.time
        monkeypatch.setattr(loop, "time", lambda: real_time() + self._passed)

    async def __call__(self) -> None:
        self.calls += 1
        self._passed += self._seconds
        raise StoreUnavailableError(f"attempt {self.calls}")


async def test_the_time_of_the_first_attempt_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    write = _Hanging(5, monkeypatch)
    with pytest.raises(StoreUnavailableError, match="attempt 2"):
        await retry_within(write, TEN_SECONDS)
    assert write.calls == 2


async def test_a_write_that_fails_sooner_is_tried_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    first, write = _Hanging(1, monkeypatch), _Hanging(3, monkeypatch)
    with pytest.raises(StoreUnavailableError, match="attempt 3"):
        await retry_within(write, TEN_SECONDS, first=first)
    assert (first.calls, write.calls) == (1, 3)


async def test_no_attempt_begins_when_its_pause_would_end_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.uniform", lambda _, longest: longest)  # 50 ms, as the pause after the first attempt
    write = _Hanging(4.96, monkeypatch)
    with pytest.raises(StoreUnavailableError, match="attempt 2"):
        await retry_within(write, TEN_SECONDS)
    assert write.calls == 2
