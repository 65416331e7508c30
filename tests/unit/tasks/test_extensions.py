"""Middleware, lifespan hooks and resources: what is accepted, in which order it comes, and what is said of mistakes."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from taskframework import (
    BackgroundTaskExecutable,
    CallNext,
    ConfigurationError,
    LifespanError,
    RegistrationError,
    TaskContext,
    resource,
    task,
)
from taskframework.tasks.extensions import Extensible, Lifespan
from taskframework.tasks.registry import TaskRegistry
from taskframework.tasks.resources import Resources


class Pool:
    pass


class OwnPool(Pool):
    pass


class Rows(BackgroundTaskExecutable[str, int]):
    task_type = "rows"

    async def execute(self, context: TaskContext[str], pool: Pool = resource(Pool)) -> int:
        return 1


@task("tables")
def tables(parameters: str, pool: Pool = resource(Pool), *, name: str = resource(str)) -> int:
    return 1


def hook(name: str, happened: list[str]) -> Lifespan:
    @contextlib.asynccontextmanager
    async def open_it() -> AsyncIterator[Pool]:
        happened.append(f"{name} opens")
        yield Pool()
        happened.append(f"{name} closes")

    return open_it


def test_a_registration_names_the_resources_that_its_code_needs() -> None:
    registry = TaskRegistry()
    assert registry.register(Rows).resources == {"execute": {"pool": Pool}}
    assert registry.register(tables).resources == {"execute": {"pool": Pool, "name": str}}

    @task("plain")
    def plain(parameters: str) -> int:
        return 1

    assert registry.register(plain).resources == {}
    assert list(inspect.signature(plain().execute).parameters) == ["context"]


def test_code_in_a_process_that_needs_a_resource_is_refused() -> None:
    @task("far", run_in="process")
    def far(parameters: str, pool: Pool = resource(Pool)) -> int:
        return 1

    with pytest.raises(RegistrationError, match=r"stay in the worker's process.*in a thread"):
        TaskRegistry().register(far)


def test_a_function_with_a_parameter_that_nobody_gives_is_refused() -> None:
    with pytest.raises(RegistrationError, match="takes 3 arguments"):
        task("wrong")(lambda parameters, context, pool: None)  # type: ignore[arg-type,misc]


def test_a_resource_is_found_by_its_class_or_a_base() -> None:
    pool = OwnPool()
    given = Resources([None, pool, "db"]).given({"pool": Pool, "own": OwnPool, "name": str})
    assert given == {"pool": pool, "own": pool, "name": "db"}


@pytest.mark.parametrize(("products", "found"), [(["db"], r"none of .* \(str\)"), ([Pool(), OwnPool()], "2 of ")])
def test_a_resource_that_is_missing_or_there_twice_is_an_error(products: list[object], found: str) -> None:
    with pytest.raises(ConfigurationError, match=f"pool wants one Pool, and {found}"):
        Resources(products).given({"pool": Pool})


async def test_hooks_are_entered_in_order_and_left_in_reverse() -> None:
    program, happened = Extensible(), list[str]()
    for name in ("first", "second"):
        program.lifespan(hook(name, happened))
    async with program._enter_lifespans(TaskRegistry()):
        happened.append("works")
    assert happened == ["first opens", "second opens", "works", "second closes", "first closes"]


async def test_a_lifespan_hook_that_is_no_async_context_manager_is_refused() -> None:
    program = Extensible()

    @contextlib.contextmanager
    def blocking() -> Iterator[None]:
        yield

    program.lifespan(blocking)  # type: ignore[type-var]
    with pytest.raises(LifespanError, match=r"blocking.*returned a _GeneratorContextManager.*asynccontextmanager"):
        async with program._enter_lifespans(TaskRegistry()):
            pass


async def test_a_hook_that_fails_at_the_start_leaves_those_before_it() -> None:
    program, happened = Extensible(), list[str]()
    program.lifespan(hook("first", happened))

    @program.lifespan
    @contextlib.asynccontextmanager
    async def broken() -> AsyncIterator[None]:
        raise OSError("no route")
        yield

    with pytest.raises(
        LifespanError,
        match=r"test_extensions\..*broken \(.*test_extensions\.py, line \d+\) failed at the start: OSError: no route",
    ):
        async with program._enter_lifespans(TaskRegistry()):
            happened.append("works")
    assert happened == ["first opens", "first closes"]


async def test_a_hook_that_fails_at_the_stop_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    program, happened = Extensible(), list[str]()
    program.lifespan(hook("first", happened))

    @program.lifespan
    @contextlib.asynccontextmanager
    async def broken() -> AsyncIterator[None]:
        yield
        raise OSError("gone")

    async with program._enter_lifespans(TaskRegistry()):
        pass
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert "broken" in record.getMessage()
    assert happened[-1] == "first closes"


async def test_a_resource_that_a_task_needs_must_exist_at_the_start() -> None:
    program, registry = Extensible(), TaskRegistry()
    registry.register(Rows)
    with pytest.raises(ConfigurationError, match=r"Task type 'rows' cannot run here\. .* wants one Pool.*lifespan"):
        async with program._enter_lifespans(registry):
            pass
    program.lifespan(functools.partial(contextlib.nullcontext, OwnPool()))
    async with program._enter_lifespans(registry) as extensions:
        assert isinstance(extensions.resources.given({"pool": Pool})["pool"], OwnPool)


async def test_the_first_middleware_is_outermost() -> None:
    program, happened = Extensible(), list[str]()

    def named(name: str) -> Any:
        async def middleware(context: Any, call_next: CallNext) -> Any:
            happened.append(name)
            return f"{name}({await call_next(context)})"

        return middleware

    class Third:
        async def __call__(self, context: Any, call_next: CallNext) -> Any:
            return f"third({await call_next(context)})"

    async def code(context: Any) -> Any:
        return context

    for each in (named("first"), functools.partial(named("second")), Third()):
        assert program.use(each) is each
    async with program._enter_lifespans(TaskRegistry()) as extensions:
        assert await extensions.around(code)("context") == "first(second(third(context)))"  # type: ignore[arg-type]
    assert happened == ["first", "second"]


def test_a_function_that_is_no_middleware_or_no_hook_is_refused_where_it_is_added() -> None:
    program = Extensible()

    def plain(context: Any, call_next: Any) -> Any:
        return call_next(context)

    async def without_next(context: Any) -> Any: ...

    async def generator() -> AsyncIterator[None]:
        yield

    with pytest.raises(RegistrationError, match=r"without_next \(.*line \d+\) is not a middleware"):
        program.use(without_next)  # type: ignore[type-var]
    with pytest.raises(RegistrationError, match=r"plain \(.*line \d+\) is not a middleware.*async def middleware"):
        program.use(plain)
    with pytest.raises(RegistrationError, match=r"generator .* is not a lifespan hook.*asynccontextmanager"):
        program.lifespan(generator)  # type: ignore[type-var]


def test_middleware_or_a_hook_that_asks_for_a_resource_is_refused_where_it_is_added() -> None:
    program = Extensible()

    async def counting(context: Any, call_next: Any, pool: Pool = resource(Pool)) -> Any: ...

    @contextlib.asynccontextmanager
    async def opening(pool: Pool = resource(Pool)) -> AsyncIterator[None]:
        yield

    with pytest.raises(RegistrationError, match=r"counting .* asks for Pool as 'pool', but only the code of tasks"):
        program.use(counting)
    with pytest.raises(RegistrationError, match=r"opening .* asks for Pool .* a variable of the module"):
        program.lifespan(opening)
    assert not program.is_extended
