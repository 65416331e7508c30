from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from taskframework.errors import NonRetryableError
from taskframework.tasks.stages import EXECUTE
from taskframework.testing.eventually import eventually
from taskframework.worker import pooled_process
from taskframework.worker.pooled_process import ExecutionFailedError, ProcessDiedError
from taskframework.worker.processes import ProcessPool
from tests.support.process import is_running
from tests.unit.worker.process_tasks import (
    Binds,
    Complain,
    Control,
    Deaf,
    Die,
    Echo,
    EchoLater,
    Fail,
    Hang,
    ImportSlowly,
    Interrupted,
    PlansObjects,
    Report,
    context_of,
    logger,
)

# Starting a child takes about a second: tests that leave it alive share the pool, and with it the loop.
pytestmark = pytest.mark.asyncio(loop_scope="module")


async def is_gone(*pids: int) -> None:
    async def are_gone() -> bool:
        return not await asyncio.to_thread(lambda: any(is_running(pid) for pid in pids))

    await eventually(are_gone, what=f"{pids} end")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def pool() -> AsyncIterator[ProcessPool]:
    pool = ProcessPool(1, grace=60)
    yield pool
    await pool.close()


@pytest_asyncio.fixture(loop_scope="module")
async def own_pool() -> AsyncIterator[ProcessPool]:
    """For tests that kill: no patience, and children of their own."""
    pool = ProcessPool(2, grace=0)
    yield pool
    await pool.close()


async def fail(pool: ProcessPool, how: str) -> ExecutionFailedError:
    with pytest.raises(ExecutionFailedError) as caught:
        await pool.run(Fail(), EXECUTE, context_of(how))
    return caught.value


async def test_a_process_pool_returns_results_from_one_child_that_stays(pool: ProcessPool) -> None:
    first = await pool.run(Echo(), EXECUTE, context_of({"text": "ä" * 500_000}))
    second = await pool.run(Echo(), EXECUTE, context_of([1, None]))
    assert first["parameters"] == {"text": "ä" * 500_000}
    assert first["attempt"] == 2
    assert second["parameters"] == [1, None]
    assert first["pid"] == second["pid"] != os.getpid()


async def test_sub_tasks_of_a_process_are_accepted_as_those_of_a_thread(pool: ProcessPool) -> None:
    control = Control()
    await pool.run(PlansObjects(), EXECUTE, context_of(False, control))
    planned = [wanted.parameters for wanted in control.family.planned]
    assert planned == [(["2026-01-01", "2026-01-02"],), ({"a": 1},)]
    with pytest.raises(ExecutionFailedError) as failed:
        await pool.run(PlansObjects(), EXECUTE, context_of(True, Control()))
    assert "b of Sub would be lost" in failed.value.outcome.error.message


async def test_what_an_attempt_binds_does_not_reach_the_next_one(pool: ProcessPool) -> None:
    for _ in range(2):
        assert await pool.run(Binds(), EXECUTE, context_of(None)) == "nothing"


async def test_a_process_pool_runs_a_coroutine_that_execute_returned(pool: ProcessPool) -> None:
    control = Control()
    assert await pool.run(EchoLater(), EXECUTE, context_of("x", control)) == "x"
    assert control.reported == ["in a coroutine"]


async def test_an_exception_comes_back_classified_with_its_place(pool: ProcessPool) -> None:
    failed = (await fail(pool, "value")).outcome
    assert (failed.error.type, failed.error.message, failed.retryable) == ("ValueError", "not a number", False)
    assert failed.error.traceback is not None
    assert "process_tasks.py" in failed.error.traceback
    assert failed.error.fingerprint != (await fail(pool, "quota")).outcome.error.fingerprint


async def test_a_retryable_error_keeps_its_delay(pool: ProcessPool) -> None:
    failed = (await fail(pool, "later")).outcome
    assert (failed.retryable, failed.delay) == (True, timedelta(seconds=7))


@pytest.mark.parametrize("how", ["quota", "honest"])
async def test_an_exception_that_does_not_pickle_keeps_name_text_and_retryable(pool: ProcessPool, how: str) -> None:
    error = await fail(pool, how)
    assert error.outcome.error.type.endswith({"quota": "QuotaExceededError", "honest": "HonestError"}[how])
    assert error.outcome.error.message == "11 of 10 used"
    assert error.outcome.retryable
    assert error.retryable


async def test_sys_exit_in_task_code_ends_the_attempt_only(pool: ProcessPool) -> None:
    before = await pool.run(Echo(), EXECUTE, context_of(None))
    assert (await fail(pool, "exit")).outcome.error.type == "SystemExit"
    assert (await pool.run(Echo(), EXECUTE, context_of(None)))["pid"] == before["pid"]


@pytest.mark.parametrize("how", ["result", "large"])
async def test_a_result_that_cannot_be_brought_back_is_a_bad_result(pool: ProcessPool, how: str) -> None:
    failed = (await fail(pool, how)).outcome
    assert (failed.error.code, failed.retryable) == ("bad_result", False)


async def test_progress_that_cannot_be_stored_is_refused_in_the_child(pool: ProcessPool) -> None:
    assert (await fail(pool, "progress")).outcome.error.type.endswith("ValueNotStorableError")


async def test_parameters_that_cannot_be_sent_are_explained(pool: ProcessPool) -> None:
    with pytest.raises(NonRetryableError, match="'some-type' cannot run in a process"):
        await pool.run(Echo(), EXECUTE, context_of(threading.Lock()))


class _Ghost:
    """Becomes a call of something that only a child would find."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (pickle.loads, (b"cno.such.module\nthing\n.",))


async def test_parameters_that_cannot_be_read_in_the_child_fail_the_attempt(pool: ProcessPool) -> None:
    with pytest.raises(ExecutionFailedError, match="ModuleNotFoundError"):
        await pool.run(Echo(), EXECUTE, context_of(_Ghost()))
    assert (await pool.run(Echo(), EXECUTE, context_of("next")))["parameters"] == "next"


async def test_progress_arrives_in_order_before_the_result(pool: ProcessPool) -> None:
    control = Control()
    await pool.run(Report(), EXECUTE, context_of(500, control))
    assert control.reported == [{"done": number} for number in range(500)]


async def test_a_log_line_keeps_its_parts(pool: ProcessPool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    await pool.run(Complain(), EXECUTE, context_of(None))
    (record,) = caplog.records
    assert (record.getMessage(), vars(record)["bank"]) == ("no luck", "b7")
    formatted = logging.Formatter().format(record)
    assert formatted.startswith("no luck\nTraceback (most recent call last):\n")
    assert formatted.endswith("ValueError: a bug")
    assert formatted.count("no luck") == formatted.count("Traceback") == 1


async def test_log_lines_appear_here_in_the_context_of_the_attempt(pool: ProcessPool) -> None:
    task_id = contextvars.ContextVar("task_id", default="")
    seen: list[tuple[str, str]] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append((task_id.get(), record.getMessage()))

    handler = Handler()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        task_id.set("01K")
        await pool.run(Report(), EXECUTE, context_of(0))
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    pid = (await pool.run(Echo(), EXECUTE, context_of(None)))["pid"]
    assert seen == [("01K", f"halfway {pid}")]


async def test_a_late_cancel_does_not_reach_the_next_attempt(pool: ProcessPool) -> None:
    [child] = pool._idle
    child.cancel()
    control = Control()
    run = asyncio.create_task(pool.run(Hang(), EXECUTE, context_of("until cancelled", control)))
    await control.find("pid")
    done, _ = await asyncio.wait([run], timeout=0.1)
    assert not done
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run


async def test_a_child_leaves_the_parents_signals_alone(pool: ProcessPool) -> None:
    result = await pool.run(Interrupted(), EXECUTE, context_of(None))
    assert result["group"] != os.getpgrp()


async def test_code_that_looks_for_a_cancel_ends_by_itself_and_its_child_stays(pool: ProcessPool) -> None:
    control = Control()
    run = asyncio.create_task(pool.run(Hang(), EXECUTE, context_of("until cancelled", control)))
    pid = await control.find("pid")
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert (await pool.run(Echo(), EXECUTE, context_of(None)))["pid"] == pid


async def test_process_code_that_finishes_within_the_grace_has_its_result(pool: ProcessPool, tmp_path: Path) -> None:
    assert await _stopped(pool, tmp_path / "finishes") == "finished"


async def test_process_code_that_fails_within_the_grace_is_a_failure(pool: ProcessPool, tmp_path: Path) -> None:
    with pytest.raises(ExecutionFailedError, match="bad input"):
        await _stopped(pool, tmp_path / "fails")


async def _stopped(pool: ProcessPool, gate: Path) -> Any:
    """The result of code that does not look at the request to stop, and ends a moment after it."""
    control = Control()
    run = asyncio.create_task(pool.run(Deaf(), EXECUTE, context_of(str(gate), control)))
    await control.find("pid")
    run.cancel()
    await asyncio.sleep(0)
    gate.touch()
    return await run


async def test_a_second_cancellation_does_not_wait_for_the_grace() -> None:
    pool = ProcessPool(1, grace=1_000)
    control = Control()
    run = asyncio.create_task(pool.run(Hang(), EXECUTE, context_of("loop", control)))
    pid = await control.find("pid")
    run.cancel()
    await asyncio.sleep(0)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    await is_gone(pid)
    await pool.close()


@pytest.mark.parametrize("where", ["loop", "in C", "with a program"])
async def test_code_that_never_ends_is_killed_with_what_it_started(own_pool: ProcessPool, where: str) -> None:
    control = Control()
    run = asyncio.create_task(own_pool.run(Hang(), EXECUTE, context_of(where, control)))
    pids = [await control.find("pid")]
    if where == "with a program":
        pids.append(await control.find("program"))
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    await is_gone(*pids)
    assert (await own_pool.run(Echo(), EXECUTE, context_of("next")))["parameters"] == "next"


async def test_an_attempt_starts_when_its_modules_are_imported(pool: ProcessPool, tmp_path: Path) -> None:
    slow, started = ImportSlowly(tmp_path / "gate"), asyncio.Event()
    run = asyncio.create_task(pool.run(slow, EXECUTE, context_of("late"), on_start=started.set))
    await eventually(lambda: asyncio.to_thread(slow.is_importing.exists), what="imports")
    assert not started.is_set()
    await asyncio.to_thread(slow.gate.touch)
    assert (await run)["parameters"] == "late"
    assert started.is_set()


async def test_a_child_that_never_ends_importing_is_replaced(
    own_pool: ProcessPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(pooled_process, "_IMPORT_TIMEOUT_SECONDS", 0.05)
        with pytest.raises(ProcessDiedError, match="still importing") as caught:
            await own_pool.run(ImportSlowly(tmp_path / "gate"), EXECUTE, context_of(None))
    assert caught.value.retryable
    assert (await own_pool.run(Echo(), EXECUTE, context_of("next")))["parameters"] == "next"


@pytest.mark.parametrize(
    ("how", "told"), [("exit", "exit code 3"), ("crash", "SIGSEGV"), ("real-time", r"signal \d\d\.")]
)
async def test_a_child_that_dies_is_replaced(own_pool: ProcessPool, how: str, told: str) -> None:
    with pytest.raises(ProcessDiedError, match=told) as caught:
        await own_pool.run(Die(), EXECUTE, context_of(how))
    assert caught.value.retryable
    assert (await own_pool.run(Echo(), EXECUTE, context_of("next")))["parameters"] == "next"


async def test_a_program_that_a_child_cannot_import_is_named_as_the_cause(
    own_pool: ProcessPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("taskframework.worker.process_child.main", sys.exit)
    with pytest.raises(ProcessDiedError, match=r"while it imported the program\. .* `if __name__"):
        await own_pool.run(Echo(), EXECUTE, context_of(None))


@pytest.mark.parametrize("worker", [True, False])
async def test_a_program_that_a_child_imports_starts_no_framework(tmp_path: Path, worker: bool) -> None:
    """Otherwise each process would submit the tasks of the program once more."""
    program = tmp_path / "program.py"
    program.write_text(
        "import asyncio, multiprocessing\n"
        "from taskframework import Settings, TaskFramework\n"
        "async def main():\n"
        f"    settings = Settings.model_validate({{'store': {{'url': 'sqlite:///{tmp_path}/tasks.db'}}}})\n"
        f"    async with TaskFramework(settings).running(worker={worker}):\n"
        "        print('started', flush=True)\n"
        "        child = multiprocessing.get_context('spawn').Process(target=print)\n"
        "        child.start()\n"
        "        await asyncio.to_thread(child.join)\n"
        "        print('exit code', child.exitcode)\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, str(program)]
    ran = await asyncio.to_thread(
        lambda: subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    )
    assert ran.stdout.splitlines() == ["started", "exit code 1"]
    assert "began to start the framework once more" in ran.stderr


async def test_a_child_that_died_idle_is_not_used(own_pool: ProcessPool) -> None:
    pid = (await own_pool.run(Echo(), EXECUTE, context_of(None)))["pid"]
    os.kill(pid, signal.SIGKILL)
    # Not `is_gone`: a process of several threads counts as a zombie while the last of them still holds the connection.
    await eventually(lambda: not own_pool._idle[0].is_free, what="hears of the death")
    assert (await own_pool.run(Echo(), EXECUTE, context_of(None)))["pid"] != pid


async def test_children_are_started_when_needed_and_never_more_than_the_size() -> None:
    pool = ProcessPool(2, grace=60)
    controls = [Control(), Control(), Control()]
    runs = [
        asyncio.create_task(pool.run(Hang(), EXECUTE, context_of("until cancelled", control)))
        for control in controls[:2]
    ]
    pids = {await control.find("pid") for control in controls[:2]}
    third = asyncio.create_task(pool.run(Hang(), EXECUTE, context_of("until cancelled", controls[2])))
    runs[0].cancel()
    assert await controls[2].find("pid") in pids
    assert len(pids) == 2
    await pool.close()
    assert not any(is_running(pid) for pid in pids)
    outcomes = await asyncio.gather(*runs, third, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError, ProcessDiedError, ProcessDiedError]


async def test_close_leaves_nothing_not_even_a_zombie() -> None:
    pool = ProcessPool(2)
    control = Control()
    idle = (await pool.run(Echo(), EXECUTE, context_of(None)))["pid"]
    run = asyncio.create_task(pool.run(Hang(), EXECUTE, context_of("loop", control)))
    assert await control.find("pid") == idle
    other = (await pool.run(Echo(), EXECUTE, context_of(None)))["pid"]
    await pool.close()
    for pid in (idle, other):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    with pytest.raises(ProcessDiedError):
        await run
    with pytest.raises(ProcessDiedError, match="closed"):
        await pool.run(Echo(), EXECUTE, context_of(None))


async def test_a_caller_that_leaves_while_the_child_starts_leaves_nothing_behind() -> None:
    pool = ProcessPool(1)
    run = asyncio.create_task(pool.run(Echo(), EXECUTE, context_of(None)))
    await asyncio.sleep(0)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert (await pool.run(Echo(), EXECUTE, context_of(1)))["parameters"] == 1
    await pool.close()


PARENT = """
import asyncio, sys
from taskframework.tasks.stages import EXECUTE
from taskframework.worker.processes import ProcessPool
from tests.unit.worker.process_tasks import Control, Echo, Hang, context_of

async def main():
    pool = ProcessPool(3)
    controls = {"loop": Control(), "in C": Control()}
    hanging = [asyncio.create_task(pool.run(Hang(), EXECUTE, context_of(*item))) for item in controls.items()]
    print((await pool.run(Echo(), EXECUTE, context_of(None)))["pid"], flush=True)
    for control in controls.values():
        print(await control.find("pid"), flush=True)
    if sys.argv[1] == "wait":
        await asyncio.Event().wait()
    sys.exit(0)

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.parametrize("end", ["killed", "forgetful"])
async def test_children_end_with_a_parent_that_does_not_close_the_pool(tmp_path: Path, end: str) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = await asyncio.create_subprocess_exec(
        sys.executable,
        str(script),
        "wait" if end == "killed" else "leave",
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert parent.stdout is not None
    try:
        pids = [int(await parent.stdout.readline()) for _ in range(3)]
        if end == "killed":
            parent.kill()
        assert await parent.wait() == (-signal.SIGKILL if end == "killed" else 0)
    finally:
        if parent.returncode is None:
            parent.kill()
    await is_gone(*pids)
