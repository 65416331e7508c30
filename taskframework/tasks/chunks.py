"""Chunks: `execute` for several items of a batch, one after the other, in one attempt."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from taskframework.tasks.context import TaskContext

T = TypeVar("T")
R = TypeVar("R")


def call_for_each_item(method: Callable[[TaskContext[Any]], Any], context: TaskContext[Any]) -> Any:
    """Call a method for each item; a coroutine function gives a coroutine, as always.

    Args:
        method: of the executable.
        context: of the chunk; its parameters are a list.

    Returns:
        The results as a list, or a coroutine that gives the list. The first item that raises ends the chunk, and its
        error says which item it was.
    """
    items = _item_contexts(context)
    if inspect.iscoroutinefunction(method):
        return _await_for_each_item(method, items)
    return for_each(partial(_call, method), items)


def for_each(function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Call a function for each item of a chunk, or for each value that belongs to an item.

    Raises:
        BaseException: the error of the function, with a note that says which item it was.
    """
    results = []
    for number, item in enumerate(items):
        with _adding_item_number(number):
            results.append(function(item))
    return results


async def _await_for_each_item(
    method: Callable[[TaskContext[Any]], Any], items: Iterable[TaskContext[Any]]
) -> list[Any]:
    results = []
    for number, item in enumerate(items):
        with _adding_item_number(number):
            results.append(await method(item))
    return results


@contextmanager
def _adding_item_number(number: int) -> Iterator[None]:
    """Add a note to an error that is raised inside: which item it is about. The error stays the same object."""
    try:
        yield
    except BaseException as error:
        with suppress(Exception):  # a frozen exception of the author accepts no notes
            error.add_note(f"(item {number} of the chunk, counted from 0)")
        raise


def _call(method: Callable[[TaskContext[Any]], Any], context: TaskContext[Any]) -> Any:
    """The result of a plain function. A coroutine that it returns is run here: no event loop runs in this thread."""
    returned = method(context)
    return asyncio.run(returned) if inspect.iscoroutine(returned) else returned


def _item_contexts(context: TaskContext[Any]) -> Iterator[TaskContext[Any]]:
    """A context for each item, with its own parameters, idempotency key and steps."""
    for number, parameters in enumerate(context.parameters):
        key = f"{context.idempotency_key}/{number}"
        yield replace(context, parameters=parameters, idempotency_key=key, item=number)
