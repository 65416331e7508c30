"""Chunks: `execute` for several items of a batch, one after the other, in one attempt."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from taskframework.tasks.context import TaskContext


def called_for_each(method: Callable[[TaskContext[Any]], Any], context: TaskContext[Any]) -> Any:
    """Call a method for each item; a coroutine function gives a coroutine, as always.

    Args:
        method: of the executable.
        context: of the chunk; its parameters are a list.

    Returns:
        The results as a list, or a coroutine that gives it. The first item that raises ends the chunk.
    """
    if inspect.iscoroutinefunction(method):
        return _awaited_for_each(method, context)
    return [_result(method(item)) for item in _items(context)]


async def _awaited_for_each(method: Callable[[TaskContext[Any]], Any], context: TaskContext[Any]) -> list[Any]:
    return [await method(item) for item in _items(context)]


def _items(context: TaskContext[Any]) -> Iterator[TaskContext[Any]]:
    """A context for each item, with its own parameters, idempotency key and steps."""
    for number, parameters in enumerate(context.parameters):
        key = f"{context.idempotency_key}/{number}"
        yield replace(context, parameters=parameters, idempotency_key=key, item=number)


def _result(returned: Any) -> Any:
    """The result of a plain function. If it gives a coroutine, that is run here: no event loop runs in this thread."""
    return asyncio.run(returned) if inspect.iscoroutine(returned) else returned
