"""The loop watch: what blocks the loop is named while it blocks, and nothing else is."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import uvloop

from taskframework.observability import loop_watch
from taskframework.observability.loop_watch import LoopWatch
from taskframework.telemetry import AttemptCode, running_code
from taskframework.testing.eventually import eventually
from tests.support.process import wait_until

LIMIT = timedelta(milliseconds=200)
#: Seconds of the processor for which code in C keeps the interpreter lock.
KEPT = 1.0

IsOver = Callable[[], bool]


@pytest.fixture
def counted() -> list[str]:
    return []


@pytest.fixture
def lags() -> list[float]:
    return []


@pytest.fixture
def watch(lags: list[float], counted: list[str]) -> LoopWatch:
    return LoopWatch(LIMIT, lags.append, counted.append)


async def blocks(is_over: IsOver) -> None:
    while not is_over():
        time.sleep(0.01)


async def computes(is_over: IsOver) -> None:
    while not is_over():
        sum(range(1000))


async def blocks_in_the_library(is_over: IsOver) -> None:
    while not is_over():
        subprocess.run([sys.executable, "-S", "-c", "import time; time.sleep(0.5)"], check=True)


async def keeps_the_interpreter_lock(is_over: IsOver) -> None:
    """Is in C all the time, where no other thread gets a turn: the watch sees nothing before it is over."""
    began = time.process_time()
    sum(range(1_000_000))
    sum(range(int(1_000_000 * KEPT / (time.process_time() - began))))


def of_an_attempt(code: Callable[[IsOver], Awaitable[None]], is_over: IsOver) -> asyncio.Task[None]:
    """Run code as that of a task."""

    async def attempt() -> None:
        running_code.set(AttemptCode("count-words", "01K"))
        await code(is_over)

    return asyncio.create_task(attempt())


def until(condition: Callable[[], object]) -> IsOver:
    """Block until something happened, in another thread, or the test is about to fail."""
    end = time.monotonic() + 20
    return lambda: bool(condition()) or time.monotonic() > end


def told(caplog: pytest.LogCaptureFixture, level: str = "WARNING") -> list[dict[str, Any]]:
    return [vars(record) for record in caplog.records if record.levelname == level]


def as_many_told(caplog: pytest.LogCaptureFixture, level: str, number: int) -> bool:
    return len(told(caplog, level)) == number


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("code", [blocks, computes, blocks_in_the_library])
def test_the_task_that_blocks_the_loop_is_named_once_while_it_does(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
    code: Callable[[IsOver], Coroutine[Any, Any, None]],
    watch: LoopWatch,
    counted: list[str],
    lags: list[float],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")

    async def main() -> None:
        watch.start()
        await of_an_attempt(code, until(lambda: told(caplog)))
        assert told(caplog), "told while it blocked"
        await eventually(lambda: told(caplog, "INFO"))
        watch.stop()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())
    (warning,), (over,) = told(caplog), told(caplog, "INFO")
    assert (warning["task_type"], warning["task_id"]) == ("count-words", "01K")
    file, _, function = warning["blocked_at"].rpartition(" in ")
    assert re.fullmatch(rf"{re.escape(__file__)}:\d+", file), "neither the library nor the loop nor what runs it"
    if code is not computes:  # else it may just look whether it is over
        assert function == code.__name__
    message = str(warning["message"])
    assert "count-words 01K" in message
    assert "make execute a plain def" in message
    assert over["blocked_seconds"] >= warning["blocked_seconds"] >= LIMIT.total_seconds()
    assert over["task_id"] == "01K"
    assert counted == ["count-words"]
    assert max(lags) >= warning["blocked_seconds"] - 0.001  # the log rounds


async def test_code_that_keeps_the_interpreter_lock_is_logged_when_it_releases_it(
    watch: LoopWatch, counted: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    watch.start()
    await of_an_attempt(keeps_the_interpreter_lock, lambda: True)
    await eventually(lambda: told(caplog))
    watch.stop()
    (warning,) = told(caplog)
    # Who gets the lock next is not ours to decide: the watch, which then sees the code, or the loop.
    assert "count-words 01K" in warning["message"] or "the cause could not be seen" in warning["message"]
    assert len(counted) == 1


async def test_an_asyncio_task_that_task_code_starts_is_named_as_that_task(
    watch: LoopWatch, counted: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    async def starts_another(is_over: IsOver) -> None:
        await asyncio.create_task(blocks(is_over))

    watch.start()
    await of_an_attempt(starts_another, until(lambda: told(caplog)))
    watch.stop()
    (warning,) = told(caplog)
    assert warning["task_id"] == "01K"
    assert "in blocks" in warning["blocked_at"]
    assert counted == ["count-words"]


@pytest.mark.parametrize("as_callback", [False, True])
async def test_code_that_belongs_to_no_task_is_named_by_its_place(
    watch: LoopWatch, counted: list[str], caplog: pytest.LogCaptureFixture, as_callback: bool
) -> None:
    is_over = until(lambda: told(caplog))

    def callback() -> None:
        while not is_over():
            time.sleep(0.01)

    watch.start()
    if as_callback:
        asyncio.get_running_loop().call_soon(callback)
        await eventually(lambda: counted)
    else:
        await asyncio.create_task(blocks(is_over))
    watch.stop()
    (warning,) = told(caplog)
    assert "callback" in warning["blocked_at"] if as_callback else "in blocks" in warning["blocked_at"]
    assert "asyncio.to_thread" in warning["message"]
    assert "task_id" not in warning
    assert counted == [""]


async def test_each_blockage_of_the_loop_is_logged(
    watch: LoopWatch, counted: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    watch.start()
    for blockages in (1, 2):
        await of_an_attempt(blocks, until(partial(as_many_told, caplog, "WARNING", blockages)))
        await eventually(partial(as_many_told, caplog, "INFO", blockages))
    watch.stop()
    assert (len(told(caplog)), counted) == (2, ["count-words"] * 2)


async def test_a_loop_that_waits_or_works_in_small_steps_is_left_alone(
    counted: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    watch = LoopWatch(timedelta(seconds=2), lambda lag: None, counted.append)
    watch.start()
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        sum(range(10_000))
        await asyncio.sleep(0)
    await asyncio.sleep(0.5)
    watch.stop()
    assert (told(caplog), counted) == ([], [])


async def test_the_turn_of_the_loop_in_which_the_watch_starts_is_not_logged(
    watch: LoopWatch, counted: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    watch.start()
    began = time.monotonic()
    await blocks(until(lambda: counted or time.monotonic() > began + 5 * LIMIT.total_seconds()))
    await asyncio.sleep(0)
    watch.stop()
    assert (told(caplog), counted) == ([], [])


async def test_zero_turns_the_warning_off_and_measures_all_the_same(
    lags: list[float], counted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_watch, "_PAUSE_WITHOUT_LIMIT_SECONDS", 0.01)
    watch = LoopWatch(timedelta(0), lags.append, counted.append)
    before = set(_threads())
    watch.start()
    assert set(_threads()) <= before
    await asyncio.sleep(0)
    began = time.monotonic()
    await blocks(until(lambda: time.monotonic() > began + 0.5))
    await eventually(lambda: max(lags, default=0) > 0.25)
    watch.stop()


@pytest.mark.parametrize("by", ["stop", "the end of its loop"])
def test_the_thread_of_the_loop_watch_ends(watch: LoopWatch, by: str) -> None:
    async def main() -> None:
        watch.start()
        if by == "stop":
            watch.stop()

    asyncio.run(main())
    wait_until(lambda: not _threads(), "the thread ends", timeout=10)


#: Seconds for which the process is stopped: long beside what a crowded machine keeps a process waiting.
STOPPED = 3.0
PAUSED = """
import asyncio, logging, sys
from datetime import timedelta
from taskframework.observability.loop_watch import LoopWatch

async def main():
    logging.basicConfig(level="INFO", stream=sys.stdout)
    LoopWatch(timedelta(seconds=0.2), lambda lag: None, print).start()
    await asyncio.sleep(0.5)  # its thread looks by then: what was before it, it cannot know
    print("watching", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    await asyncio.sleep(0.3)

asyncio.run(main())
"""


def test_a_process_that_was_stopped_is_no_blocked_loop() -> None:
    process = subprocess.Popen([sys.executable, "-c", PAUSED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "watching\n"
        os.kill(process.pid, signal.SIGSTOP)
        stopped = time.monotonic()
        wait_until(lambda: time.monotonic() > stopped + STOPPED, "it is stopped", timeout=10)
        os.kill(process.pid, signal.SIGCONT)
        output, _ = process.communicate("go on\n", timeout=20)
    finally:
        process.kill()
        process.wait()
    # On a crowded machine the loop may really be late, for a moment; never for the time of the stop.
    assert [told for told in re.findall(r"for (\d+\.\d) s", output) if float(told) > STOPPED / 2] == []


def _threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "taskframework-loop-watch"]
