"""Uploads that meet the items of another upload under the same key, on each pair of broker and store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest

from taskframework import BatchConflictError, Settings, TaskFramework
from taskframework.model.query import RoundOfSubtasks
from taskframework.submission.batches import BatchSubmission
from taskframework.submission.options import BatchOptions
from taskframework.submission.requests import BatchRequest
from tests.flow.conftest import BOTH
from tests.support.kitchen_sink import CountWords

pytestmark = pytest.mark.parametrize("urls", BOTH, indirect=True)


@pytest.fixture
async def framework(settings: Callable[..., Settings]) -> AsyncIterator[TaskFramework]:
    """A process that stores batches; nothing stores the plan of a small batch, or dispatches its tasks."""
    framework = TaskFramework(settings())
    framework.register(CountWords)
    async with framework.store_only():
        yield framework


def words(of: str, number: int) -> list[dict[str, str]]:
    return [{"text": f"{of} {n}"} for n in range(number)]


async def upload(
    framework: TaskFramework, *parts: Sequence[Any], chunk_size: int = 1, breaks_off: bool = False
) -> BatchSubmission:
    async def come() -> AsyncIterator[Sequence[Any]]:
        for part in parts:
            yield part
        if breaks_off:
            raise ConnectionError

    request = BatchRequest(task_type="count-words", idempotency_key="k", chunk_size=chunk_size)
    return await framework.services.batch_submission.upload(request, come())


async def stored_items(framework: TaskFramework, batch_id: str) -> list[Any]:
    round = RoundOfSubtasks(batch_id, 0, 1)
    return [task.parameters for task in await framework.services.store.list_subtasks(round, limit=1_000)]


@pytest.mark.parametrize("is_list", [False, True], ids=["upload", "list"])
async def test_a_refused_upload_stores_none_of_its_items_in_the_other_batch(
    framework: TaskFramework, is_list: bool
) -> None:
    right, other = words("right", 500), words("other", 400)
    with pytest.raises(ConnectionError):
        await upload(framework, right[:150], breaks_off=True)
    with pytest.raises(BatchConflictError, match="Item 0 ") as refused:
        await (
            framework.submit_batch("count-words", other, idempotency_key="k") if is_list else upload(framework, other)
        )
    assert await stored_items(framework, refused.value.batch_id) == right[:150]
    whole = await upload(framework, right)
    assert (whole.batch.task_id, whole.is_new) == (refused.value.batch_id, True)
    assert await stored_items(framework, whole.batch.task_id) == right


@pytest.mark.parametrize("chunk_size", [1, 2])
async def test_items_are_compared_with_the_plan_of_a_batch_whose_tasks_are_not_stored_yet(
    framework: TaskFramework, chunk_size: int
) -> None:
    right, other = words("right", 5), [*words("right", 3), *words("other", 5)[3:]]
    options: BatchOptions = {"idempotency_key": "k", "chunk_size": chunk_size}
    first = await framework.submit_batch("count-words", right, **options)
    again = await framework.submit_batch("count-words", right, **options)
    assert (again.batch_id, again.is_new) == (first.batch_id, False)
    with pytest.raises(BatchConflictError, match="Item 3 "):
        await framework.submit_batch("count-words", other, **options)
    with pytest.raises(BatchConflictError, match="Item 4 "):
        await framework.submit_batch("count-words", iter([*right[:4], {"text": "other"}]), **options)
    assert not (await upload(framework, right[:2], right[2:], chunk_size=chunk_size)).is_new
    assert await stored_items(framework, first.batch_id) == []
