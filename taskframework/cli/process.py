"""A long-running process: signals, `ready`, and an end that does not wait for task code that hangs."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib.util
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from taskframework import failpoint
from taskframework.background import end
from taskframework.cli.ending import exit_now, start_exit_timer
from taskframework.cli.output import note, silence_thread_errors
from taskframework.cli.slow_stop import tell_what_stop_waits_for
from taskframework.cli.systemd import notify_ready, notify_stopping
from taskframework.cli.tether import Tether
from taskframework.errors import ConfigurationError, TaskframeworkError
from taskframework.observability.logs import configure_logging, writes_json
from taskframework.operations.health import Health
from taskframework.runtime import TaskFramework
from taskframework.settings import ApiSettings, Settings, redacted
from taskframework.wiring.extras import require_extra
from taskframework.worker.containment import contain_loop
from taskframework.worker.worker import Worker

logger = logging.getLogger(__name__)

#: How many new objects start the garbage collector: Python's default, and the value for our processes. Ours is more
#: than all running tasks have together.
_DEFAULT_GC_THRESHOLD = gc.get_threshold()
_GC_THRESHOLD = 20_000


def serve(
    framework: TaskFramework, *, worker: bool, api: bool, remarks: Sequence[str] = (), tether: Tether | None = None
) -> None:
    """Run until SIGTERM or SIGINT, then stop in order; a second signal ends the process at once.

    Args:
        framework: the framework to run.
        worker: whether to execute tasks.
        api: whether to serve HTTP.
        remarks: texts that are logged as warnings, before anything else.
        tether: the connection to the parent, if this is one of its processes: the parent learns that the process is
            ready, and may ask for a stop.

    Raises:
        TaskframeworkError: if the process cannot start.
    """
    configure_logging(framework.settings.observability, None if tether is None else {"pid": os.getpid()})
    for remark in remarks:
        logger.warning(remark)
    _arm_failpoints()
    close_tracing = _open_tracing(framework.settings)
    runner = asyncio.Runner(loop_factory=_create_loop)
    try:
        _run_until_done(runner.get_loop(), _serve(framework, worker=worker, api=api, tether=tether))
    except TaskframeworkError as failure:
        if writes_json(framework.settings.observability):  # a program that reads the log gets no other line of it
            logger.critical("%s", failure.message, extra={"hint": failure.hint})
        raise
    finally:
        close_tracing()
        # The event loop waits for task code that was left behind, for ever if that code swallows its cancellation.
        error = sys.exception()
        exit_timer = start_exit_timer(int(error is not None), error)
        runner.close()
        exit_timer.cancel()


async def _serve(framework: TaskFramework, *, worker: bool, api: bool, tether: Tether | None) -> None:
    asyncio.get_running_loop().set_default_executor(_UnwaitedThreadPool(thread_name_prefix="asyncio"))
    stop = StopRequest()
    _log_start(framework, [role for role, is_wanted in (("worker", worker), ("api", api)) if is_wanted])
    async with contextlib.AsyncExitStack() as stack:
        grace = framework.settings.shutdown.await_termination_timeout.total_seconds()
        slow_stop = tell_what_stop_waits_for(stop.requested, asyncio.current_task(), grace)
        stack.push_async_callback(end, asyncio.create_task(slow_stop))
        if tether is not None:
            await tether.listen(lambda: stop.request(cause="the parent"))
            stack.push_async_callback(tether.close)
        try:
            async with framework.running(worker=worker, api=api):
                stop.is_opening = False
                reduce_garbage_collection()
                if api:
                    _print_welcome(framework.settings.api)
                running = framework.process.worker
                if running is not None and not api:  # with the HTTP interface, the server logs `ready`
                    await _report_when_live(running, framework.process.health, stop.requested, tether)
                if tether is None:
                    await _notify_systemd(stop.requested)
                await stop.requested.wait()
        except (asyncio.CancelledError, TaskframeworkError):
            if not stop.came_early:
                raise
            silence_thread_errors()
    logger.info("stopped")


async def _report_when_live(worker: Worker, health: Health, stop: asyncio.Event, tether: Tether | None) -> None:
    """Log `ready` as soon as every queue is consumed; if the broker is away, that is after its return.

    Until then the worker is not ready: otherwise a rollout with a wrong password would replace all good workers.
    """
    first_time = ("consumers", lambda: worker.problem)
    health.required.append(first_time)
    while not worker.is_live and not stop.is_set():  # noqa: ASYNC110 - the port tells a state
        await asyncio.sleep(0.02)
    health.required.remove(first_time)
    if stop.is_set():
        return
    # A command logs `ready` once: of several processes the parent logs it, when all of them are ready.
    logger.info("ready" if tether is None else "serving", extra={"role": "worker", "worker_id": worker.worker_id})
    if tether is not None:
        tether.report_ready()


async def _notify_systemd(stop: asyncio.Event) -> None:
    """Tell systemd that the process serves, unless it was stopped before that, and then that it stops."""
    if not stop.is_set():
        notify_ready()
    await stop.wait()
    notify_stopping()


class StopRequest:
    """The request to stop, from signals or from other code."""

    def __init__(self, at_once: Callable[[], None] = lambda: None) -> None:
        """Listen for signals from now on; `at_once` is called before a second signal ends the process."""
        self.requested = asyncio.Event()
        #: While the process opens, a stop cancels the opening. After that a stop closes everything in order.
        self.is_opening = True
        self._at_once = at_once
        #: Whether a signal came. If a parent asks for a stop, it may have had the same signal as this process.
        self._is_signalled = False
        self._main = asyncio.current_task()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._handle_signal, number)
        # The signal of a closed terminal. Shell and kernel may both send it, so a second one ends nothing at once.
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup makes a process ignore it
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, partial(self.request, signal="SIGHUP"))

    @property
    def came_early(self) -> bool:
        """Whether the stop came before the process was open."""
        return self.is_opening and self.requested.is_set()

    def request(self, **details: str) -> None:
        """Ask for a stop; a second call changes nothing. The keywords are for the log."""
        if self.requested.is_set():
            return
        logger.info("stopping", extra=details)
        self.requested.set()
        if self.is_opening and self._main is not None:
            self._main.cancel()

    def _handle_signal(self, number: signal.Signals) -> None:
        if self._is_signalled:
            logger.warning("exiting at once", extra={"signal": number.name})
            self._at_once()
            exit_now(128 + number)
        self._is_signalled = True
        self.request(signal=number.name)


class _UnwaitedThreadPool(ThreadPoolExecutor):
    """The event loop's threads. Otherwise its end would wait for task code that hangs in `asyncio.to_thread`."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait=False, cancel_futures=True)


def _log_start(framework: TaskFramework, roles: Sequence[str]) -> None:
    settings = framework.settings
    fields = {
        "roles": roles,
        "task_types": list(framework.registry.task_types),
        "broker": redacted(settings.broker.url),
        "store": redacted(settings.store.url),
    }
    logger.info("starting", extra=fields)


def _print_welcome(settings: ApiSettings) -> None:
    """Tell a person at a terminal where to continue; programs read the log."""
    if sys.stderr.isatty() and settings.port:
        note(f"API with documentation: {settings.url}/docs. Ctrl-C stops.")


def _arm_failpoints() -> None:
    try:
        failpoint.arm_from(os.environ)
    except ValueError as error:
        raise ConfigurationError(f"TASKFRAMEWORK_FAILPOINTS is wrong: {error}.") from error


def _open_tracing(settings: Settings) -> Callable[[], None]:
    """Set up tracing and return how to end it; the exporter is imported only if there is an endpoint for spans."""
    if settings.observability.otlp_endpoint is None:
        return lambda: None
    require_extra("opentelemetry", "observability.otlp_endpoint")
    from taskframework.observability.tracing import configure_tracing

    return configure_tracing(settings)


def _create_loop() -> asyncio.AbstractEventLoop:
    if importlib.util.find_spec("uvloop") is None:
        loop = asyncio.new_event_loop()
    else:
        import uvloop

        loop = uvloop.new_event_loop()
    contain_loop(loop)
    return loop


def _run_until_done(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> None:
    """Run the loop until the work is done, even if task code stops the loop, for example with `sys.exit` in a callback.

    Ctrl-C does not stop it this way: the work gets it as a signal.
    """
    main = loop.create_task(work)
    while True:
        try:
            return loop.run_until_complete(main)
        except (SystemExit, KeyboardInterrupt, RuntimeError) as error:
            if main.done():
                raise
            place = traceback.extract_tb(error.__traceback__)[-1]
            text = "the event loop was stopped by %s in task code, at %s:%s in %s; it continues"
            logger.error(text, type(error).__name__, place.filename, place.lineno, place.name)


def reduce_garbage_collection() -> None:
    """Exclude all present objects from garbage collection: they stay to the end, and need no repeated visits.

    The collector also runs less often: at the default rate, running tasks live through several runs, each of which
    visits them. An application that has chosen its own rate keeps it.
    """
    gc.collect()
    gc.freeze()
    if gc.get_threshold() == _DEFAULT_GC_THRESHOLD:
        gc.set_threshold(_GC_THRESHOLD, *_DEFAULT_GC_THRESHOLD[1:])
