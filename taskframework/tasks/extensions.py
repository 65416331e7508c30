"""What a program adds to its workers: middleware around every attempt, and lifespan hooks that open resources."""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from taskframework.errors import ConfigurationError, RegistrationError, TaskframeworkError
from taskframework.frames import place_in_source
from taskframework.tasks.context import TaskContext
from taskframework.tasks.registry import TaskRegistry
from taskframework.tasks.resources import NO_RESOURCES, Resources, wanted_resources

logger = logging.getLogger(__name__)


class CallNext(Protocol):
    """Continues an attempt: calls the next middleware, or at the end the task's code, and returns its result."""

    def __call__(self, context: TaskContext[Any], /) -> Awaitable[Any]: ...


Middleware = Callable[[TaskContext[Any], CallNext], Awaitable[Any]]
Lifespan = Callable[[], AbstractAsyncContextManager[Any]]
AnyMiddleware = TypeVar("AnyMiddleware", bound=Middleware)
AnyLifespan = TypeVar("AnyLifespan", bound=Lifespan)


class LifespanError(TaskframeworkError):
    """A lifespan hook failed, so the worker does not start."""

    hint = "Fix the hook, or what it needs."


@dataclass(frozen=True, slots=True)
class WorkerExtensions:
    """The middleware and the resources of one running worker."""

    middleware: Sequence[Middleware] = ()
    resources: Resources = NO_RESOURCES

    def around(self, code: CallNext) -> CallNext:
        """The code with the middleware around it; the first middleware is outermost."""
        for each in reversed(self.middleware):
            code = _wrap(each, code)
        return code


NO_EXTENSIONS = WorkerExtensions()


class Extensible:
    """The base of objects to which a program can add middleware and lifespan hooks before its worker starts."""

    def __init__(self) -> None:
        self._middleware: list[Middleware] = []
        self._lifespans: list[Lifespan] = []

    @property
    def is_extended(self) -> bool:
        """Whether anything was added."""
        return bool(self._middleware or self._lifespans)

    def use(self, middleware: AnyMiddleware) -> AnyMiddleware:
        """Put middleware around every attempt of this program's worker; can be used as a decorator.

        ::

            @framework.use
            async def tell(context: TaskContext[Any], call_next: CallNext) -> Any:
                try:
                    return await call_next(context)
                except Exception as error:
                    report(error, context.task_type)
                    raise

        It sees the result or the error of the code, and its own result or error replaces it. The middleware that was
        added first is outermost. It always runs on the event loop, also for plain functions in a thread or process.

        Raises:
            RegistrationError: if it is not a coroutine function, does not take these two arguments, or asks for a
                resource.
        """
        is_async = any(map(inspect.iscoroutinefunction, (middleware, getattr(middleware, "__call__", None))))  # noqa: B004
        if not is_async or not accepts_arguments(middleware, 2):
            raise RegistrationError(
                f"{_qualified_name(middleware)}{place_in_source(middleware)} is not a middleware.",
                hint="Write async def middleware(context, call_next): return await call_next(context).",
            )
        _refuse_resources(middleware)
        self._middleware.append(middleware)
        return middleware

    def lifespan(self, hook: AnyLifespan) -> AnyLifespan:
        """Run a hook for the lifetime of the worker, in each worker process, on its event loop; can be used as a
        decorator.

        ::

            @framework.lifespan
            @asynccontextmanager
            async def open_pool() -> AsyncIterator[Pool]:
                async with Pool("postgresql://db/shop") as pool:
                    yield pool

        The hook is entered before the first task and left after the last task. Several hooks are entered in their
        order and left in reverse order. Code that asks for it by `resource(Pool)` gets the object that the hook yields.

        Args:
            hook: a function that returns an asynchronous context manager.

        Raises:
            RegistrationError: if it does not, or asks for a resource.
        """
        if inspect.isasyncgenfunction(hook) or inspect.iscoroutinefunction(hook):
            raise RegistrationError(
                f"{_qualified_name(hook)}{place_in_source(hook)} is not a lifespan hook.",
                hint="Write an async def with one yield, and @contextlib.asynccontextmanager right above it.",
            )
        _refuse_resources(hook)
        self._lifespans.append(hook)
        return hook

    @contextlib.asynccontextmanager
    async def _enter_lifespans(self, registry: TaskRegistry, *own: object) -> AsyncIterator[WorkerExtensions]:
        """Enter the hooks in order, and leave them in reverse.

        Args:
            registry: the task types, which may ask for resources.
            own: resources that need no hook.

        Raises:
            LifespanError: if a hook fails.
            ConfigurationError: if a task type wants a resource that does not exist.
        """
        async with contextlib.AsyncExitStack() as stack:
            products = [await stack.enter_async_context(_entered_hook(hook)) for hook in self._lifespans]
            resources = Resources([*products, *own])
            for registration in registry:
                for wanted in registration.resources.values():
                    try:
                        resources.given(wanted)
                    except ConfigurationError as error:
                        message = f"Task type {registration.task_type!r} cannot run here. {error.message}"
                        raise ConfigurationError(message, hint=error.hint) from None
            yield WorkerExtensions(tuple(self._middleware), resources)


def accepts_arguments(function: Callable[..., Any], arguments: int) -> bool:
    """Return whether a function can be called with this many arguments; True if its signature is unknown."""
    try:
        inspect.signature(function).bind(*[None] * arguments)
    except TypeError:
        return False
    except ValueError:  # the function has no readable signature
        pass
    return True


def _refuse_resources(function: Callable[..., Any]) -> None:
    """Refuse middleware, or a hook, with a `resource(...)` as default: only the code of tasks gets resources."""
    try:
        wanted = wanted_resources(function)
    except (TypeError, ValueError):  # it has no readable signature
        return
    if wanted:
        name, kind = next(iter(wanted.items()))
        raise RegistrationError(
            f"{_qualified_name(function)}{place_in_source(function)} asks for {kind.__name__} as {name!r}, but only "
            "the code of tasks gets resources.",
            hint="Let the lifespan hook put the object where this code finds it, such as a variable of the module.",
        )


def _wrap(middleware: Middleware, code: CallNext) -> CallNext:
    return lambda context: middleware(context, code)


@contextlib.asynccontextmanager
async def _entered_hook(hook: Lifespan) -> AsyncIterator[object]:
    """Run one hook. An error at its start ends the worker; after an error at its stop, the other hooks still stop."""
    try:
        manager = hook()
        if not isinstance(manager, AbstractAsyncContextManager):
            raise TypeError(
                f"it returned a {type(manager).__name__}, not an asynchronous context manager. "
                "Write an async def with one yield, and @contextlib.asynccontextmanager right above it"
            )
        product = await manager.__aenter__()
    except Exception as error:
        what = f"The lifespan hook {_qualified_name(hook)}{place_in_source(hook)} failed at the start"
        raise LifespanError(f"{what}: {type(error).__name__}: {error}.") from error
    try:
        yield product
    finally:
        try:
            await manager.__aexit__(None, None, None)
        except Exception:
            logger.exception("the lifespan hook %s failed at the stop", _qualified_name(hook))


def _qualified_name(function: object) -> str:
    named = function if inspect.isroutine(function) or isinstance(function, type) else type(function)
    return f"{named.__module__}.{named.__qualname__}"
