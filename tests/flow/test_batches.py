"""Batches from the submission to the last result, on each pair of broker and store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from taskframework import (
    BatchConflictError,
    BatchHandle,
    BatchItemError,
    InvalidRequestError,
    SubmissionError,
    TaskFramework,
)
from taskframework.model.batch_status import BatchStatus
from taskframework.model.batches import parts_of
from taskframework.model.query import TaskFilter
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.operations.batches import BatchNotRetriedError
from taskframework.submission.options import BatchOptions
from taskframework.testing.eventually import eventually
from tests.flow.conftest import BOTH, Run
from tests.support.batch_tasks import ALL as EXTRA
from tests.support.batch_tasks import Charges, Lingers
from tests.support.kitchen_sink import Waits

# The fast path carries the same messages for these as for the tests of the lifecycle, which run without it too.
pytestmark = pytest.mark.parametrize("urls", BOTH, indirect=True)

_ALL = (EVERYONE, TaskFilter())
WORDS = [{"text": "one " * n} for n in range(1, 31)]


async def words(number: int) -> AsyncIterator[dict[str, str]]:
    for n in range(number):
        yield {"text": f"word {n}"}


async def test_a_batch_of_a_list_is_stored_in_one_write_and_executed(run: Run) -> None:
    async with run() as framework:
        handle = await framework.submit_batch("count-words", WORDS, priority="high", correlation_id="all of them")
        results = [result async for result in handle.results()]
        assert [(one.index, one.result) for one in results] == [(n, {"words": n + 1}) for n in range(30)]
        status = await handle.finished(timeout=60)
        assert (status.status, status.ended.succeeded, status.percent) == (TaskStatus.COMPLETED, 30, 100.0)
        assert status.batch.batch is not None
        assert status.batch.batch.first_result_at is not None
        first = await framework.get(results[0].task_id)
        assert (first.lane, first.correlation_id) == ("high", "all of them")
        text = framework.process.metrics.exposition().decode()
        assert 'batch_first_response_seconds_count{task_type="count-words"} 1.0' in text


async def test_items_that_come_bit_by_bit_are_stored_as_they_come(run: Run) -> None:
    gate = asyncio.Event()

    async def slowly() -> AsyncIterator[dict[str, str]]:
        async for item in words(600):
            yield item
        await gate.wait()
        yield {"text": "the last"}

    async with run() as framework:
        upload = asyncio.create_task(framework.submit_batch("count-words", slowly(), idempotency_key="k"))

        async def has_done_some() -> BatchStatus | None:
            found = (await framework.services.batches.list_batches(*_ALL, limit=1)).items
            status = await framework.batch(found[0].batch_id).status() if found else None
            return status if status is not None and status.ended.succeeded >= 500 else None

        running = await eventually(has_done_some, timeout=60)
        assert not running.is_sealed
        gate.set()
        handle = await upload
        assert handle.batch_id == running.batch_id
        status = await handle.finished(timeout=60)
        assert (status.status, status.total, status.ended.succeeded) == (TaskStatus.COMPLETED, 601, 601)


async def test_an_upload_that_failed_is_continued_with_its_key(run: Run) -> None:
    async def breaks_off() -> AsyncIterator[dict[str, str]]:
        async for item in words(700):
            yield item
        raise ConnectionError

    async with run() as framework:
        with pytest.raises(ConnectionError):
            await framework.submit_batch("count-words", breaks_off(), idempotency_key="k")
        handle = await framework.submit_batch("count-words", words(1_000), idempotency_key="k")
        assert handle.is_new
        status = await handle.finished(timeout=60)
        assert status.counts == {TaskStatus.COMPLETED: 1_000}
        again = await framework.submit_batch("count-words", words(1_000), idempotency_key="k")
        assert (again.batch_id, again.is_new) == (handle.batch_id, False)
        with pytest.raises(BatchConflictError, match="Item 999 "):
            await framework.submit_batch("count-words", words(999), idempotency_key="k")


async def test_an_interrupted_upload_without_a_key_is_cancelled(run: Run) -> None:
    stored = asyncio.Event()

    async def goes_on_for_ever() -> AsyncIterator[dict[str, str]]:
        async for item in words(1_000):
            yield item
        stored.set()
        await asyncio.Event().wait()

    async with run() as framework:
        uploading = asyncio.create_task(framework.submit_batch("count-words", goes_on_for_ever()))
        await stored.wait()
        uploading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await uploading
        [batch] = (await framework.services.batches.list_batches(*_ALL, limit=9)).items
        assert batch.status is TaskStatus.CANCELLED


async def test_a_wrong_item_is_named(run: Run) -> None:
    async with run() as framework:
        with pytest.raises(BatchItemError, match="Item 3: "):
            await framework.submit_batch("count-words", [*WORDS[:3], {}])
        assert (await framework.services.batches.list_batches(*_ALL, limit=1)).items == ()


async def test_failed_items_are_retried_in_the_background(run: Run) -> None:
    async with run() as framework:
        items = [{"succeed_at": n % 2 + 1, "delay": 0} for n in range(40)]
        handle = await framework.submit_batch("flaky", items, max_attempts=1)
        status = await handle.finished(timeout=60)
        assert (status.status, status.ended.failed) == (TaskStatus.COMPLETED_WITH_ERRORS, 20)
        await handle.retry_failed()
        status = await handle.finished(timeout=60)
        assert (status.status, status.ended.failed) == (TaskStatus.COMPLETED_WITH_ERRORS, 20)
        generations = [(await framework.get(one.task_id)).generation async for one in handle.results()]
        assert generations == [0, 1] * 20


async def test_a_cancel_of_a_batch_reaches_its_running_and_waiting_items(run: Run) -> None:
    async with run(worker=True) as framework:
        handle = await framework.submit_batch("waits", [None] * 5)
        await eventually(lambda: Waits.started >= 5)
        assert (await handle.cancel("not needed")).status is TaskStatus.CANCELLED
        assert [one.status async for one in handle.results()] == [TaskStatus.CANCELLED] * 5


async def test_a_batch_is_not_retried_while_one_of_its_tasks_still_runs(run: Run) -> None:
    Lingers.gate, Lingers.is_asked = asyncio.Event(), asyncio.Event()
    async with run(extra=EXTRA) as framework:
        handle = await framework.submit_batch("lingers", [None])
        await eventually(lambda: is_running(handle))
        await handle.cancel()
        await Lingers.is_asked.wait()
        await eventually(lambda: has_asked_all(framework, handle.batch_id))
        with pytest.raises(BatchNotRetriedError, match="still being cancelled; try again"):
            await handle.retry_failed()
        Lingers.gate.set()

        async def is_retried() -> bool:
            with suppress(BatchNotRetriedError):
                await handle.retry_failed()
                return True
            return False

        await eventually(is_retried)
        await eventually(lambda: is_running(handle))
        await handle.cancel()


async def is_running(handle: BatchHandle[None]) -> bool:
    return TaskStatus.RUNNING in ((await handle.status()).counts or {})


async def has_asked_all(framework: TaskFramework, batch_id: str) -> bool:
    return (await framework.get(batch_id)).cascade_at is None


async def test_a_batch_that_has_no_item_left_ends_with_its_seal(run: Run) -> None:
    """All of them ended, and were counted, before anybody knew that they were all."""
    done = asyncio.Event()

    async def waits_for_their_end() -> AsyncIterator[dict[str, str]]:
        async for item in words(500):
            yield item
        await done.wait()

    async with run() as framework:
        upload = asyncio.create_task(framework.submit_batch("count-words", waits_for_their_end()))

        async def are_counted() -> bool:
            [*found] = (await framework.services.batches.list_batches(*_ALL, limit=1)).items
            return bool(found and found[0].ended.succeeded == 500)

        await eventually(are_counted, timeout=60)
        done.set()
        assert (await (await upload).finished(timeout=60)).status is TaskStatus.COMPLETED


async def test_a_chunk_does_its_items_one_after_the_other(run: Run) -> None:
    async with run(extra=EXTRA) as framework:
        for task_type in ("squares", "squares-in-process"):
            handle = await framework.submit_batch(task_type, list(range(10)), chunk_size=4)
            results = [result async for result in handle.results()]
            assert [(one.index, one.result) for one in results] == [(n, n * n) for n in range(10)]
            assert len({one.task_id for one in results}) == 3
            status = await handle.finished(timeout=60)
            assert (status.total, status.counts) == (10, {TaskStatus.COMPLETED: 10})


async def test_an_item_that_fails_fails_its_chunk_and_no_step_of_another_is_repeated(run: Run) -> None:
    Charges.charged.clear()
    async with run(extra=EXTRA) as framework:
        items = ["a", "flaky", "c", "d", "broken"]
        handle = await framework.submit_batch("charges", items, chunk_size=3)
        results = [result async for result in handle.results()]
        assert [(one.status, one.result) for one in results[:3]] == [
            (TaskStatus.COMPLETED, f"charged {item}") for item in items[:3]
        ]
        assert [(one.status, one.result) for one in results[3:]] == [(TaskStatus.FAILED, None)] * 2
        told = "a bug\n(item 1 of the chunk, counted from 0)"
        assert all(one.error is not None and one.error["message"] == told for one in results[3:])
        assert sorted(charged for charged, _ in Charges.charged) == sorted(items)
        assert len({key for _, key in Charges.charged}) == 5, "each item has a key of its own"
        status = await handle.finished(timeout=60)
        assert (status.ended.succeeded, status.ended.failed) == (3, 2)


async def test_the_error_of_a_chunk_says_which_item_it_is_about(run: Run) -> None:
    async with run(extra=EXTRA) as framework:
        for task_type in ("squares", "squares-in-process"):
            for raises_or_gives_a_wrong_result in (-1, 2**40):
                items = [1, 2, raises_or_gives_a_wrong_result, 3]
                handle = await framework.submit_batch(task_type, items, chunk_size=4)
                [error, *_] = [result.error async for result in handle.results()]
                assert error is not None
                assert error["message"].endswith("(item 2 of the chunk, counted from 0)")


async def test_a_policy_counts_chunks(run: Run) -> None:
    async with run(extra=EXTRA) as framework:
        handle = await framework.submit_batch("charges", ["a", "b", "c", "d"], chunk_size=2, policy="at_least(2)")
        assert (await handle.finished(timeout=60)).status is TaskStatus.COMPLETED
        with pytest.raises(InvalidRequestError, match=r"at_least\(3\) cannot be met with 2 chunks of 2 items"):
            await framework.submit_batch("charges", ["a", "b", "c", "d"], chunk_size=2, policy="at_least(3)")


@pytest.mark.parametrize(
    ("items", "options", "refused"),
    [
        (["a" * 600] * 1000, {"policy": "at_least(1001)"}, r"at_least\(1001\) cannot be met with 1,000 sub-tasks"),
        (["a"] * 600 + ["a" * 300_000] * 5, {"chunk_size": 5}, "5 items together have more than"),
        (["a"] * 100_001, {}, "more than 100,000 items"),
    ],
    ids=["policy", "chunk", "items"],
)
async def test_nothing_of_a_large_batch_is_stored_if_it_is_refused(
    run: Run, items: list[Any], options: BatchOptions, refused: str
) -> None:
    async with run(extra=EXTRA) as framework:
        with pytest.raises(SubmissionError, match=refused):
            await framework.submit_batch("charges", items, **options)
        assert (await framework.services.store.list_tasks(EVERYONE, TaskFilter(), limit=1)).items == ()


async def test_a_chunk_is_no_larger_than_its_type_wants_it(run: Run) -> None:
    async with run(extra=EXTRA) as framework:
        with pytest.raises(InvalidRequestError, match="accepts at most 5 items"):
            await framework.submit_batch("charges", ["a"] * 6, chunk_size=6)


async def test_an_item_of_a_chunk_cannot_wait(run: Run) -> None:
    async with run(extra=EXTRA) as framework:
        handle = await framework.submit_batch("waiting", [None] * 2, chunk_size=2)
        [first, _] = [result async for result in handle.results()]
        assert first.error is not None
        assert "can neither submit sub-tasks nor wait" in first.error["message"]


async def test_a_batch_has_the_result_that_its_type_gives_it(run: Run) -> None:
    async with run(extra=EXTRA) as framework:
        handle = await framework.submit_batch("summed", [1, 2, -3, 4])
        status = await handle.finished(timeout=60)
        assert (status.status, status.batch.result) == (TaskStatus.COMPLETED, {"sum": 7, "failed": 1})
        assert parts_of(status.batch)[0].not_before == status.batch.created_at, "not when its method was due"
        other = await framework.submit_batch("summed", [-1], policy="all_must_succeed")
        status = await other.finished(timeout=60)
        assert (status.status, status.batch.result) == (TaskStatus.FAILED, None)
