"""Trace context and log context, for the parts that pass them on. Their set-up is in `observability`.

Both cost almost nothing when they are not used: without a tracer provider no span is made.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import Context, ContextVar
from dataclasses import dataclass
from typing import Any

import structlog
from opentelemetry import propagate, trace
from opentelemetry.context import Context as TraceContext
from opentelemetry.trace import Span, SpanKind, StatusCode
from opentelemetry.util.types import AttributeValue
from structlog.typing import EventDict

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class AttemptCode:
    """The code of one attempt. All asyncio tasks and threads that the code starts inherit this."""

    task_type: str
    task_id: str
    is_over: bool = False
    #: Whether the code tried to end asyncio tasks that are not its own, and this was logged.
    was_refused: bool = False


#: The attempt whose code runs here; all asyncio tasks that this code starts inherit the value.
running_code: ContextVar[AttemptCode | None] = ContextVar("running_code", default=None)

#: Names that `logging` reserves: it refuses a field of such a name with a KeyError.
_RESERVED_LOG_FIELDS = {*vars(logging.makeLogRecord({})), "message", "asctime"} - {"exc_info", "stack_info"}
#: The most characters of a trace context. Ours have 55; in a later version of the W3C format they may have more.
_MAX_TRACEPARENT_CHARACTERS = 200
_NO_SPAN: AbstractContextManager[None] = nullcontext()
_tracer = trace.get_tracer("taskframework")


@contextmanager
def running_as(code: AttemptCode) -> Iterator[None]:
    """Mark the code inside the block, and everything that it starts, as the code of this attempt."""
    before = running_code.set(code)
    try:
        yield
    finally:
        running_code.reset(before)


def context_of(task: asyncio.Task[Any]) -> Context:
    """Return the context in which an asyncio task runs."""
    if sys.version_info >= (3, 12):
        return task.get_context()
    held = (held for held in gc.get_referents(task) if isinstance(held, Context))
    return next(held, Context())


def is_tracing() -> bool:
    """Return whether there is a tracer provider; without it no span would be recorded."""
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def current_traceparent() -> str | None:
    """Return the W3C trace context of the span that is active here, if any."""
    if trace.get_current_span() is trace.INVALID_SPAN:
        return None  # asking the propagators would cost five percent of a submission
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier.get("traceparent")


def current_trace_id() -> str | None:
    """Return the active trace id, 32 hexadecimal digits; None if no trace is active."""
    context = trace.get_current_span().get_span_context()
    return f"{context.trace_id:032x}" if context.is_valid else None


def trace_named(traceparent: str) -> TraceContext:
    """Return the trace to which a caller or a message says that it belongs. An invalid value gives a new trace, without
    a warning: the propagator would warn of each value that is too long, so that anybody could fill the log.
    """
    return propagate.extract({"traceparent": traceparent} if len(traceparent) <= _MAX_TRACEPARENT_CHARACTERS else {})


def span(
    name: str, kind: SpanKind, traceparent: str | None, attributes: Mapping[str, AttributeValue]
) -> AbstractContextManager[Span | None]:
    """Begin a span that continues the trace of `traceparent`; without a tracer provider do nothing and give None."""
    if not is_tracing():
        return _NO_SPAN
    parent = trace_named(traceparent) if traceparent else None
    return _tracer.start_as_current_span(name, context=parent, kind=kind, attributes=dict(attributes))


def mark_failed(active: Span, kind: str, message: str, stacktrace: str | None) -> None:
    """Mark a span as failed, with an exception in the form of OpenTelemetry's conventions. The exception object is not
    used: it may be in another process, and its traceback has many frames of the framework.
    """
    exception = {"exception.type": kind, "exception.message": message, "exception.stacktrace": stacktrace}
    active.add_event("exception", {name: value for name, value in exception.items() if value is not None})
    active.set_attribute("error.type", kind)
    active.set_status(StatusCode.ERROR, f"{kind}: {message}")


def log_context(**values: str | int | None) -> AbstractContextManager[None]:
    """Add these values to every log line inside the block."""
    return structlog.contextvars.bound_contextvars(**_with_trace(values))


def log_with(**values: str | int | None) -> None:
    """Add these values to every log line of the present asyncio task from here on."""
    structlog.contextvars.bind_contextvars(**_with_trace(values))


def _with_trace(values: dict[str, str | int | None]) -> dict[str, str | int | None]:
    if is_tracing() and (trace_id := current_trace_id()) is not None:
        values["trace_id"] = trace_id
    return values


def log_threads() -> None:
    """Log errors that end a thread of task code, and errors that no code can catch, for example in `__del__`. Without
    this, Python prints both between lines that programs read.
    """
    threading.excepthook = _log_thread
    sys.unraisablehook = _log_unraisable


def _log_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
        name = None if args.thread is None else args.thread.name
        logger.error("the thread %s failed", name, exc_info=args.exc_value)


def _log_unraisable(args: sys.UnraisableHookArgs) -> None:
    where = getattr(args.object, "__qualname__", type(args.object).__name__)
    logger.error("%s: %s", args.err_msg or "Exception ignored in", where, exc_info=args.exc_value)


def log_structlog_by_logging() -> None:
    """Let structlog write through `logging`, unless the program has set structlog up itself.

    Without a set-up, structlog prints to standard output, and with an exception it prints the variables of every frame.
    """
    if not structlog.is_configured():
        structlog.configure(
            processors=[
                structlog.stdlib.filter_by_level,
                structlog.stdlib.PositionalArgumentsFormatter(),
                structlog.contextvars.merge_contextvars,
                _rename_reserved_fields,
                structlog.stdlib.render_to_log_kwargs,
            ],
            wrapper_class=structlog.stdlib.BoundLogger,
            logger_factory=structlog.stdlib.LoggerFactory(),
        )


def _rename_reserved_fields(_: object, __: str, line: EventDict) -> EventDict:
    return {f"{name}_" if name in _RESERVED_LOG_FIELDS else name: value for name, value in line.items()}
