"""`SyncTaskFramework`: its calls, from many threads, before and after forks, and to the end of a program."""

from __future__ import annotations

import asyncio
import contextvars
import errno
import gc
import os
import signal
import subprocess
import sys
import threading
import types
import weakref
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

# Read before a loop runs: what a process needs is imported when it opens, and reading a module blocks.
import taskframework.brokers.embedded
import taskframework.stores.sqlite
import taskframework.wiring.process
import taskframework.worker.containment  # noqa: F401
from taskframework import (
    BackgroundTaskExecutable,
    BatchItemError,
    ConfigurationError,
    InvalidParametersError,
    Settings,
    Signal,
    SubmitRequest,
    SyncTaskFramework,
    TaskContext,
    TaskFailedError,
    TaskFramework,
    TaskNotFoundError,
    TaskStatus,
    UnknownTaskTypeError,
    resource,
    task,
)
from taskframework.blocking import running as running_threads
from taskframework.blocking.program_end import ProgramEndsError
from taskframework.blocking.running import BeingClosedError, ClosedMeanwhileError, _Loop
from taskframework.errors import NotRunningError, StoreClosedError, StoreMisconfiguredError

PATIENCE = 60


@task("double")
def double(parameters: int) -> int:
    if parameters < 0:
        raise ValueError("below zero")
    return parameters * 2


class Pay(BackgroundTaskExecutable[int, str]):
    task_type = "pay"

    def execute(self, context: TaskContext[int]) -> Any:
        return "free" if context.parameters == 0 else context.wait_for(signal="approved")

    def on_signal(self, context: TaskContext[int], signal: Signal) -> str:
        return f"{context.parameters}, by {signal.payload}"


def settings_in(path: Path) -> Settings:
    return Settings.model_validate(
        {"store": {"url": f"sqlite:///{path / 'tasks.db'}"}, "shutdown": {"await_termination_timeout": "0s"}}
    )


@pytest.fixture
def tasks(tmp_path: Path) -> Iterator[SyncTaskFramework]:
    """One that executes, too."""
    made = SyncTaskFramework(settings_in(tmp_path), worker=True)
    for each in (double, Pay):
        made.register(each)
    with made:
        yield made


def test_a_task_from_its_submission_to_its_result(tasks: SyncTaskFramework) -> None:
    handle = tasks.submit(double, 4, idempotency_key="four", user_id="ann")
    assert handle.result(timeout=PATIENCE) == 8
    assert handle.task().user_id == "ann"
    assert (handle.finished().status, handle.is_new) == (TaskStatus.COMPLETED, True)
    again = tasks.submit("double", 4, idempotency_key="four", user_id="ann")
    assert (again.task_id, again.is_new) == (handle.task_id, False)
    assert tasks.get(handle.task_id).result == 8
    assert tasks.handle(handle.task_id, double).result() == 8
    with pytest.raises(TaskFailedError, match="below zero"):
        tasks.submit(double, -1).result(timeout=PATIENCE)


def test_a_wrong_submission_raises_its_error_where_it_is_submitted(tasks: SyncTaskFramework) -> None:
    with pytest.raises(InvalidParametersError):
        tasks.submit("double", "four")
    with pytest.raises(UnknownTaskTypeError):
        tasks.submit("doubel", 4)
    with pytest.raises(TaskNotFoundError):
        tasks.handle("nothing").task()


def test_a_task_gets_a_signal_and_another_is_cancelled(tasks: SyncTaskFramework) -> None:
    paid, given_up = tasks.submit(Pay, 5), tasks.submit(Pay, 6)
    paid.signal("approved", "ann")
    assert paid.result(timeout=PATIENCE) == "5, by ann"
    assert given_up.cancel("too late").cancel is not None
    assert given_up.finished(timeout=PATIENCE).status is TaskStatus.CANCELLED
    assert given_up.retry().generation == 1
    given_up.signal("approved", "bob")
    assert given_up.result(timeout=PATIENCE) == "6, by bob"


def test_each_of_many_submissions_in_one_call_has_its_outcome(tasks: SyncTaskFramework) -> None:
    good, bad = tasks.submit_many([SubmitRequest(task_type="double", parameters=each) for each in (1, "one")])
    assert isinstance(bad, InvalidParametersError)
    assert not isinstance(good, Exception)
    assert good.result(timeout=PATIENCE) == 2
    as_for_the_client: Any = {"task_type": "double", "parameters": 1}
    with pytest.raises(TypeError, match=r"Item 0 of submit_many is a dict, not a SubmitRequest; write SubmitRequest\("):
        tasks.submit_many([as_for_the_client])
    one: Any = SubmitRequest(task_type="double", parameters=1)
    with pytest.raises(TypeError, match="submit_many takes a list of SubmitRequest, not a NoneType"):
        tasks.submit_many(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"submit_many takes a list: write submit_many\(\[request\]\)"):
        tasks.submit_many(one)


def test_items_of_a_batch_are_made_in_the_thread_that_calls(tasks: SyncTaskFramework) -> None:
    threads: set[threading.Thread] = set()

    def numbers() -> Generator[int, None, None]:
        for number in range(700):
            threads.add(threading.current_thread())
            yield number

    batch = tasks.submit_batch(double, numbers(), chunk_size=100)
    assert threads == {threading.current_thread()}
    assert [found.result for found in batch.results()] == [2 * number for number in range(700)]
    assert batch.finished(timeout=PATIENCE).ended.succeeded == 700
    assert tasks.batch(batch.batch_id, double).status().ended.succeeded == 700
    some = batch.results(first=600)
    assert next(some).result == 1200
    some.close()


def test_an_error_while_items_are_made_is_raised_and_the_batch_is_cancelled(tasks: SyncTaskFramework) -> None:
    def numbers() -> Generator[int, None, None]:
        yield 1
        raise LookupError("the cursor is closed")

    with pytest.raises(LookupError, match="the cursor is closed"):
        tasks.submit_batch("double", numbers())
    with pytest.raises(BatchItemError, match="Item 0"):
        tasks.submit_batch("double", iter(["one"]))
    batch = tasks.submit_batch("double", [-1])
    assert batch.is_new
    assert batch.finished(timeout=PATIENCE).ended.failed == 1
    batch.retry_failed()
    assert batch.finished(timeout=PATIENCE).ended.failed == 1


@pytest.mark.parametrize("items", [3, {"text": "a"}, "a text"], ids=["a number", "one object", "a text"])
def test_a_value_that_holds_no_items_is_refused(tasks: SyncTaskFramework, items: Any) -> None:
    with pytest.raises(TypeError, match="for a single task write a list of one"):
        tasks.submit_batch("double", items)


def test_items_that_cannot_be_iterated_begin_nothing(tasks: SyncTaskFramework) -> None:
    class Closed:
        def __iter__(self) -> Iterator[Any]:
            raise ValueError("the cursor is closed")

    with pytest.raises(ValueError, match="the cursor is closed"):
        tasks.submit_batch("double", Closed())
    running = [it for it in tasks.run(_all_asyncio_tasks) if "_in_timely_parts" in it]
    assert running == []


async def _all_asyncio_tasks() -> list[str]:
    return [str(it.get_coro()) for it in asyncio.all_tasks()]


def test_many_threads_share_one_blocking_framework(tasks: SyncTaskFramework) -> None:
    with ThreadPoolExecutor(20) as threads:
        results = threads.map(lambda number: tasks.submit(double, number).result(timeout=PATIENCE), range(40))
        assert list(results) == [2 * number for number in range(40)]


@task("hand-on")
def hand_on(parameters: int, tasks: SyncTaskFramework = resource(SyncTaskFramework)) -> str:
    return tasks.submit(double, parameters).task_id


def test_a_task_in_a_thread_submits_by_a_framework_that_a_lifespan_hook_yields(tmp_path: Path) -> None:
    framework = TaskFramework(settings_in(tmp_path))
    for each in (double, hand_on):
        framework.register(each)

    @framework.lifespan
    @asynccontextmanager
    async def with_tasks() -> AsyncIterator[SyncTaskFramework]:
        tasks = SyncTaskFramework(settings_in(tmp_path))
        yield tasks
        await asyncio.to_thread(tasks.close)

    with SyncTaskFramework(framework=framework, worker=True) as tasks:
        task_id = tasks.submit(hand_on, 4).result(timeout=PATIENCE)
        assert tasks.handle(task_id).result(timeout=PATIENCE) == 8


def test_a_coroutine_in_place_of_a_function_is_refused(tasks: SyncTaskFramework) -> None:
    async def look() -> None: ...

    for wrong in (look(), 5):
        with pytest.raises(TypeError, match="give a function that returns the coroutine"):
            tasks.run(wrong)  # type: ignore[arg-type]


def test_a_coroutine_function_without_its_own_call_is_run(tasks: SyncTaskFramework) -> None:
    tenant = contextvars.ContextVar("tenant", default="nobody")

    async def look() -> tuple[str, str]:
        assert tasks.framework.is_running
        return tenant.get(), threading.current_thread().name

    tenant.set("ann")
    assert tasks.run(look) == ("ann", "taskframework-sync")


@pytest.mark.parametrize(
    "call",
    [lambda tasks: tasks.submit("double", 4), lambda tasks: tasks.handle("t-1"), lambda tasks: tasks.batch("b-1")],
)
async def test_a_blocking_call_on_an_event_loop_is_refused(
    tasks: SyncTaskFramework, call: Callable[[SyncTaskFramework], object]
) -> None:
    with pytest.raises(RuntimeError, match="would block the event loop"):
        call(tasks)


def test_a_program_that_only_submits_needs_no_task_types(tmp_path: Path, tasks: SyncTaskFramework) -> None:
    """The types that a worker has declared are in the store."""
    with SyncTaskFramework(framework=TaskFramework(settings_in(tmp_path))) as beside:
        with pytest.raises(InvalidParametersError):
            beside.submit("double", "four")
        assert beside.submit("double", 4).result(timeout=PATIENCE) == 8


def test_a_closed_framework_is_opened_again_by_the_next_call(tasks: SyncTaskFramework) -> None:
    handle = tasks.submit(double, 4)
    tasks.close()
    tasks.close()
    assert not tasks.framework.is_running
    assert tasks.get(handle.task_id).parameters == 4


def test_a_handle_from_before_a_close_works_afterwards(tasks: SyncTaskFramework) -> None:
    handle, batch = tasks.submit(double, 4), tasks.submit_batch(double, [1, 2])
    tasks.close()
    assert handle.result(timeout=PATIENCE) == 8
    assert (handle.task().status, handle.finished().status) == (TaskStatus.COMPLETED, TaskStatus.COMPLETED)
    tasks.close()
    assert [item.result for item in batch.results()] == [2, 4]
    assert batch.finished(timeout=PATIENCE).status == batch.status().status == TaskStatus.COMPLETED


def test_a_call_that_finds_the_store_closed_already_is_told_of_the_close(tasks: SyncTaskFramework) -> None:
    tasks.open()
    running = tasks._thread._running
    assert running is not None
    stop = running._stop

    async def find_it_closed() -> None:
        raise StoreClosedError

    async def find_it_closed_by_close() -> None:
        stop.set()
        raise StoreClosedError

    with pytest.raises(StoreClosedError):
        tasks.run(find_it_closed)
    with pytest.raises(ClosedMeanwhileError):
        tasks.run(find_it_closed_by_close)


def test_an_iterator_opens_no_framework_that_was_closed(tasks: SyncTaskFramework) -> None:
    """Neither in its thread, which is told that the framework was closed, nor when Python collects it."""
    batch = tasks.submit_batch(Pay, [0, 1])
    waits, left = batch.results(), batch.results()
    assert next(left).result == "free"
    began = threading.Event()

    def read() -> None:
        for _ in waits:
            began.set()

    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(read)
        assert began.wait(PATIENCE)
        tasks.close()
        with pytest.raises(ClosedMeanwhileError):
            reading.result(PATIENCE)
    del left
    gc.collect()
    assert not tasks.framework.is_running
    assert tasks._thread._running is None


def test_a_call_while_another_thread_closes_the_framework_is_refused(
    tasks: SyncTaskFramework, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, refused = tasks.submit(double, 4), list[Exception]()
    close = _Loop.close

    def call_during_close(loop: _Loop) -> None:
        def call() -> None:
            with pytest.raises(BeingClosedError) as error:
                tasks.submit(double, 5)
            refused.append(error.value)

        calling = threading.Thread(target=call)
        calling.start()
        calling.join(PATIENCE)
        close(loop)

    with monkeypatch.context() as patched:
        patched.setattr(_Loop, "close", call_during_close)
        tasks.close()
    assert [str(error) for error in refused] == [str(BeingClosedError())]
    assert tasks.get(handle.task_id).parameters == 4, "it is opened again when close() has returned"


def test_closing_the_framework_starts_no_thread(tasks: SyncTaskFramework, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.12 starts none while the program ends, which closes a framework that was left open."""
    tasks.run(lambda: asyncio.to_thread(int))
    started: list[threading.Thread] = []
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", started.append)
        tasks.close()
    assert started == []


def test_a_call_under_way_fails_when_the_framework_is_closed(tasks: SyncTaskFramework) -> None:
    begun = threading.Event()

    async def wait() -> None:
        begun.set()
        await asyncio.Event().wait()

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(tasks.run, wait)
        assert begun.wait(PATIENCE)
        tasks.close()
        with pytest.raises(ClosedMeanwhileError):
            waiting.result(PATIENCE)


def test_a_call_that_comes_while_the_loop_ends_does_not_wait_for_ever(
    tasks: SyncTaskFramework, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that found the framework open hands its work over when the loop does no more work."""
    late: list[Future[None]] = []
    tasks.open()
    running, close = tasks._thread._running, _Loop.close
    monkeypatch.setattr(tasks._thread, "_open", lambda: running)

    async def work() -> None: ...

    def close_late(loop: _Loop) -> None:
        late.append(tasks._thread._start(work))
        close(loop)

    monkeypatch.setattr(_Loop, "close", close_late)
    tasks.close()
    [future] = late
    with pytest.raises(ClosedMeanwhileError):
        future.result(0)
    with pytest.raises(ClosedMeanwhileError):
        tasks.run(work)


def test_a_call_that_the_end_did_not_see_does_not_wait_for_ever(
    tasks: SyncTaskFramework, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop took the work just before its end, and the thread ended before the caller noted the work."""
    tasks.open()

    async def work() -> None: ...

    def taken_just_before_the_end(call: object, loop: asyncio.AbstractEventLoop) -> Future[None]:
        tasks.close()
        return Future()

    with monkeypatch.context() as patched:
        patched.setattr(asyncio, "run_coroutine_threadsafe", taken_just_before_the_end)
        future = tasks._thread._start(work)
    with pytest.raises(ClosedMeanwhileError):
        future.result(0)


def test_a_framework_that_cannot_be_opened_is_tried_again_by_the_next_call(tmp_path: Path) -> None:
    (file := tmp_path / "tasks.db").write_text("no database at all, and long enough to be none" * 100)
    tasks = SyncTaskFramework(settings_in(tmp_path))
    for _ in range(2):
        with pytest.raises(StoreMisconfiguredError):
            tasks.open()
    file.unlink()
    with tasks, pytest.raises(UnknownTaskTypeError, match=f"This store is {file}."):
        tasks.submit("double", 4)


@pytest.mark.parametrize(
    ("reason", "kind"),
    [("can't start new thread", RuntimeError), ("can't create new thread at interpreter shutdown", ProgramEndsError)],
)
def test_a_thread_that_cannot_be_started_is_told_with_its_reason(
    tasks: SyncTaskFramework, monkeypatch: pytest.MonkeyPatch, reason: str, kind: type[Exception]
) -> None:
    """A system without threads left is no end of the program, and the next call tries again."""

    def fails(_: object) -> None:
        raise RuntimeError(reason)

    tasks.close()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fails)
        with pytest.raises(kind) as refused:
            tasks.submit(double, 4)
    assert type(refused.value) is kind
    assert tasks.submit(double, 4).result(timeout=PATIENCE) == 8


def test_a_loop_that_cannot_be_made_keeps_no_caller_waiting(
    tasks: SyncTaskFramework, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> Any:
        raise OSError(errno.EMFILE, "too many open files")

    tasks.close()
    with monkeypatch.context() as patch:
        patch.setattr(running_threads, "_Loop", fail)
        with pytest.raises(OSError, match="too many open files"):
            tasks.open()
    assert tasks.submit("double", 4).result(timeout=30) == 8


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="there are no such signals")
def test_a_signal_handler_submits_while_the_framework_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    framework, handles, has_begun = TaskFramework(settings_in(tmp_path)), [], threading.Event()
    framework.register(double)
    tasks, here, really = SyncTaskFramework(framework=framework), threading.get_ident(), framework.running

    @asynccontextmanager
    async def running(**options: Any) -> AsyncIterator[TaskFramework]:
        await asyncio.to_thread(interrupt)
        async with really(**options) as opened:
            yield opened

    def interrupt() -> None:
        # A signal just before the thread waits for a lock is seen only after the lock is free.
        while not has_begun.is_set():
            signal.pthread_kill(here, signal.SIGUSR1)
            has_begun.wait(0.1)

    def submit(*_: object) -> None:
        if not has_begun.is_set():
            has_begun.set()
            handles.append(tasks.submit(double, 2))

    monkeypatch.setattr(framework, "running", running)
    before = signal.signal(signal.SIGUSR1, submit)
    try:
        with tasks:
            handles.append(tasks.submit(double, 1))
            assert [handle.task().parameters for handle in handles] == [2, 1]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_only_one_process_executes_the_tasks_of_a_file(tmp_path: Path, tasks: SyncTaskFramework) -> None:
    with pytest.raises(ConfigurationError, match="process"):
        SyncTaskFramework(settings_in(tmp_path), worker=True).open()


_PROGRAM = """
import os, sys
from taskframework import SyncTaskFramework, task

@task("double")
def double(parameters: int) -> int:
    return parameters * 2

tasks = SyncTaskFramework()
tasks.register(double)
"""
_FORKED_BEFORE = """
children = []
for number in range(2):
    if (child := os.fork()) == 0:
        print("stored", tasks.submit(double, number).task().status, flush=True)
        sys.exit()
    children.append(child)
print([os.waitpid(child, 0)[1] for child in children])
"""
_FORKED_AFTER = """
tasks.submit(double, 1)
if (child := os.fork()) == 0:
    try:
        tasks.submit(double, 2)
    except Exception as error:
        print(type(error).__name__, error, flush=True)
    sys.exit()
os.waitpid(child, 0)
print("stored", tasks.submit(double, 3).task().status)
"""


def run_program(path: Path, program: str) -> str:
    command = [sys.executable, "-W", "error", "-c", _PROGRAM + program]
    done = subprocess.run(command, cwd=path, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_process_forked_before_the_first_call_opens_its_own_framework(tmp_path: Path) -> None:
    said = run_program(tmp_path, _FORKED_BEFORE).splitlines()
    assert said == ["stored QUEUED", "stored QUEUED", "[0, 0]"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
def test_a_process_forked_after_the_first_call_gets_an_error(tmp_path: Path) -> None:
    program = "import warnings; warnings.simplefilter('ignore', DeprecationWarning)" + _FORKED_AFTER
    [told, parent] = run_program(tmp_path, program).splitlines()
    assert told.startswith("OpenedBeforeForkError The framework was opened before this process was forked")
    assert parent == "stored QUEUED"


_COUNT = """
import contextlib, sqlite3
with contextlib.closing(sqlite3.connect("taskframework.db")) as stored:
    print(stored.execute("SELECT count(*) FROM tasks").fetchone()[0])
"""
_POOL = """
import concurrent.futures
pool = concurrent.futures.ThreadPoolExecutor(4)
for number in range(100):
    pool.submit(tasks.submit, double, number)
"""
_LATE_THREAD = """
import threading, time
main_is_done = threading.Event()

def submit_late():
    main_is_done.wait()
    for number in range(3):
        tasks.submit(double, number)
        time.sleep(0.05)

threading.Thread(target=submit_late).start()
main_is_done.set()
"""
_WAITS_FOR_MAIN = """
import threading
tasks.submit(double, 1)
threading.Thread(target=threading.main_thread().join).start()
"""
_ENDLESS_DAEMON = """
import threading
handle = tasks.submit(double, 1)
waiting = threading.Event()

def wait():
    waiting.set()
    try:
        handle.result()
    except Exception:
        pass

threading.Thread(target=wait, daemon=True).start()
waiting.wait()
"""


@pytest.mark.parametrize(
    ("program", "stored"),
    [(_POOL, 100), ("tasks.open()" + _POOL, 100), ("tasks.open()" + _LATE_THREAD, 3), (_ENDLESS_DAEMON, 1)],
    ids=[
        "an executor that opens it",
        "an executor",
        "a thread after the main thread",
        "a daemon thread is not awaited",
    ],
)
def test_work_of_other_threads_is_done_when_the_program_ends(tmp_path: Path, program: str, stored: int) -> None:
    if sys.version_info[:2] == (3, 12) and program == _POOL:
        pytest.skip("Python 3.12 starts no thread after the main thread has ended")
    run_program(tmp_path, program)
    assert run_program(tmp_path, _COUNT) == f"{stored}\n"


_EXECUTING = """
import concurrent.futures, time
executing = SyncTaskFramework(worker=True)
executing.register(double)
executing.open()

def wait_for_close():
    while executing.framework.is_running:
        time.sleep(0.01)
    print("closed")

pool = concurrent.futures.ThreadPoolExecutor(1)
pool.submit(wait_for_close)
"""


def test_a_framework_that_executes_does_not_wait_for_executors_which_its_tasks_keep_busy(tmp_path: Path) -> None:
    assert run_program(tmp_path, _EXECUTING) == "closed\n"


_AT_EXIT = """
import atexit

def submit():
    try:
        tasks.submit(double, 1)
    except Exception as error:
        print(type(error).__name__, error)

atexit.register(submit)
"""
_FINALIZED = """
class Submits:
    def __del__(self):
        try:
            tasks.submit(double, 1)
        except Exception as error:
            print(type(error).__name__, error)

submits = Submits()
"""


@pytest.mark.parametrize("program", [_AT_EXIT, "tasks.open()" + _AT_EXIT, "tasks.open()" + _FINALIZED])
def test_a_call_after_the_end_of_the_program_is_refused_at_once(tmp_path: Path, program: str) -> None:
    said = run_program(tmp_path, "import logging, sys; logging.basicConfig(stream=sys.stdout)\n" + program)
    assert said.startswith("WARNING:taskframework.blocking.program_end:The program is ending")
    assert said.splitlines()[1].startswith("ProgramEndsError The program is ending, so the framework is closed.")


def test_a_forked_child_does_not_wait_for_a_call_of_its_parent(
    tasks: SyncTaskFramework, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks.open()
    opened = tasks._thread
    assert opened.last_use() is not None
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    assert opened.last_use() is None
    monkeypatch.undo()


def test_frameworks_that_were_closed_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with SyncTaskFramework() as closed:
        pass
    forgotten = weakref.ref(closed.framework)
    del closed
    gc.collect()
    assert forgotten() is None


@pytest.mark.parametrize(
    ("module", "check", "library"),
    [("gevent.monkey", "is_module_patched", "gevent"), ("eventlet.patcher", "is_monkey_patched", "eventlet")],
)
def test_threads_that_are_no_threads_of_the_system_are_refused_before_anything_is_stored(
    tasks: SyncTaskFramework, monkeypatch: pytest.MonkeyPatch, module: str, check: str, library: str
) -> None:
    monkeypatch.setitem(sys.modules, module, types.SimpleNamespace(**{check: lambda name: True}))
    tasks.close()
    with pytest.raises(NotRunningError, match=f"{library} has replaced the threads.*SyncTaskClient"):
        tasks.submit("double", 4)
