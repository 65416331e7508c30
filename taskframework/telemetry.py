"""Trace context and log context, for the parts that carry them along. Set-up lives in `observability`.

Both cost next to nothing when nobody listens: without a tracer provider no span is made.
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
    """The code of one attempt. Whatever it starts carries this along."""

    task_type: str
    task_id: str
    is_over: bool = False
    #: Whether its code tried to end asyncio tasks of others, and the log has told so.
    was_refused: bool = False


#: The attempt whose code runs here; whatever that code starts on the loop inherits it.
running_code: ContextVar[AttemptCode | None] = ContextVar("running_code", default=None)

#: Names that `logging` reserves: it refuses a field of such a name with a KeyError.
_NAMES_OF_LOGGING = {*vars(logging.makeLogRecord({})), "message", "asctime"} - {"exc_info", "stack_info"}
#: Characters. Ours have 55; those of a later version of the W3C format may have more.
_LONGEST_TRACEPARENT = 200
_NO_SPAN: AbstractContextManager[None] = nullcontext()
_tracer = trace.get_tracer("taskframework")


@contextmanager
def running_as(code: AttemptCode) -> Iterator[None]:
    """What runs inside, and what is started there, is the code of this attempt."""
    before = running_code.set(code)
    try:
        yield
    finally:
        running_code.reset(before)


def context_of(task: asyncio.Task[Any]) -> Context:
    """The context in which a task runs."""
    if sys.version_info >= (3, 12):
        return task.get_context()
    held = (held for held in gc.get_referents(task) if isinstance(held, Context))
    return next(held, Context())


def is_tracing() -> bool:
    """Whether there is a tracer provider, without which nobody would see a span."""
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def current_traceparent() -> str | None:
    """The W3C trace context of the span that is active here, if any."""
    if trace.get_current_span() is trace.INVALID_SPAN:
        return None  # to ask the propagators would cost five percent of a submission
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier.get("traceparent")


def current_trace_id() -> str | None:
    """The active trace id, 32 hexadecimal digits."""
    context = trace.get_current_span().get_span_context()
    return f"{context.trace_id:032x}" if context.is_valid else None


def trace_named(traceparent: str) -> TraceContext:
    """The trace that a caller or a message says it belongs to. What cannot be one is a trace of its own, silently: the
    propagator would warn of each that is too long, and let anybody fill the log.
    """
    return propagate.extract({"traceparent": traceparent} if len(traceparent) <= _LONGEST_TRACEPARENT else {})


def span(
    name: str, kind: SpanKind, traceparent: str | None, attributes: Mapping[str, AttributeValue]
) -> AbstractContextManager[Span | None]:
    """A span that continues the trace of `traceparent`; None, and no work, when nobody listens."""
    if not is_tracing():
        return _NO_SPAN
    parent = trace_named(traceparent) if traceparent else None
    return _tracer.start_as_current_span(name, context=parent, kind=kind, attributes=dict(attributes))


def tell_failure(active: Span, kind: str, message: str, stacktrace: str | None) -> None:
    """A span failed, with an exception as OpenTelemetry's conventions describe one. The exception itself may have been
    raised in another process, and its own traceback is full of frames of ours.
    """
    exception = {"exception.type": kind, "exception.message": message, "exception.stacktrace": stacktrace}
    active.add_event("exception", {name: value for name, value in exception.items() if value is not None})
    active.set_attribute("error.type", kind)
    active.set_status(StatusCode.ERROR, f"{kind}: {message}")


def log_context(**values: str | int | None) -> AbstractContextManager[None]:
    """Every log line inside carries these values."""
    return structlog.contextvars.bound_contextvars(**_with_trace(values))


def log_with(**values: str | int | None) -> None:
    """Every log line of the present asyncio task carries these values from here on."""
    structlog.contextvars.bind_contextvars(**_with_trace(values))


def _with_trace(values: dict[str, str | int | None]) -> dict[str, str | int | None]:
    if is_tracing() and (trace_id := current_trace_id()) is not None:
        values["trace_id"] = trace_id
    return values


def log_threads() -> None:
    """Log what ends a thread that task code started, and what fails where nobody can catch it, as in `__del__`. Python
    prints both, between lines that programs read.
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
    """Let structlog write through `logging`, unless the program set it up itself.

    By itself it prints to standard output, and the variables of every frame with an exception.
    """
    if not structlog.is_configured():
        structlog.configure(
            processors=[
                structlog.stdlib.filter_by_level,
                structlog.stdlib.PositionalArgumentsFormatter(),
                structlog.contextvars.merge_contextvars,
                _keep_names_of_logging,
                structlog.stdlib.render_to_log_kwargs,
            ],
            wrapper_class=structlog.stdlib.BoundLogger,
            logger_factory=structlog.stdlib.LoggerFactory(),
        )


def _keep_names_of_logging(_: object, __: str, line: EventDict) -> EventDict:
    return {f"{name}_" if name in _NAMES_OF_LOGGING else name: value for name, value in line.items()}
