"""Chunks: what the code of an item forgets is noticed, as it is for a task of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from taskframework import TaskContext
from taskframework.tasks.chunks import call_for_each_item
from taskframework.tasks.context import has_forgotten_wait
from tests.unit.worker.process_tasks import context_of


def _forgets(context: TaskContext[int]) -> Any:
    wait = context.wait_for(signal="go") if context.parameters == 2 else None
    return str(wait is None)


def _returns(context: TaskContext[int]) -> Any:
    return context.wait_for(signal="go")


@pytest.mark.parametrize(("code", "is_forgotten"), [(_forgets, True), (_returns, False)])
@pytest.mark.parametrize("is_coroutine", [False, True])
async def test_a_wait_that_an_item_does_not_return_is_noticed(
    code: Callable[[TaskContext[Any]], Any], is_forgotten: bool, is_coroutine: bool
) -> None:
    async def later(context: TaskContext[Any]) -> Any:
        return code(context)

    context = context_of([1, 2])
    returned = await call_for_each_item(later, context) if is_coroutine else call_for_each_item(code, context)
    assert has_forgotten_wait(context, returned) == is_forgotten
