"""What the log says about a stop that takes long."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import pytest

from taskframework.background import end
from taskframework.cli import slow_stop
from taskframework.testing.eventually import eventually


class Connection:
    async def close(self) -> None:
        await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def opened() -> AsyncIterator[None]:
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(Connection().close)
        yield


async def test_a_stop_that_takes_long_says_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def serve() -> None:
        async with opened():
            await stop_requested.wait()

    async def pump() -> None:
        await asyncio.Event().wait()

    names = ["serve", "opened", "close"]
    monkeypatch.setattr(slow_stop, "_LONG_STOP_SECONDS", 0.01)
    stop_requested = asyncio.Event()
    main, beside = asyncio.create_task(serve()), asyncio.create_task(pump())
    watch = asyncio.create_task(slow_stop.tell_what_stop_waits_for(stop_requested, main, 0.0))
    try:
        await asyncio.sleep(0.05)
        assert caplog.records == []  # nobody has asked for a stop
        stop_requested.set()
        await eventually(lambda: len(caplog.records) > 1)
    finally:
        await end(watch, main, beside)
    shown, *_ = caplog.records
    assert shown.levelno == logging.WARNING
    _, _, waits = shown.getMessage().partition(": ")
    assert [place.rpartition(":")[0] for place in waits.split(" > ")] == [f"{__name__}.{name}" for name in names]
    assert f"1 {__name__}.pump:" in " ".join(vars(shown)["beside"])
