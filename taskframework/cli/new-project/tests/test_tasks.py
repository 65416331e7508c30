"""Tests without servers and without waiting: `run` makes one attempt, the harness a whole life in virtual time."""

import pytest
from tasks import ChargeCard, Order, Receipt, count_words

from taskframework import NonRetryableError, TaskFailedError
from taskframework.testing import harness, run

ORDER = Order(order_id="A-1", amount=9.5)


async def test_words_are_counted() -> None:
    assert (await run(count_words, "one two three")).result == 3


async def test_nothing_is_not_charged() -> None:
    with pytest.raises(NonRetryableError, match="nothing to charge"):
        await run(ChargeCard, Order(order_id="A-1", amount=0))


async def test_a_busy_bank_is_asked_again() -> None:
    async with harness(ChargeCard) as running:
        handle = await running.framework.submit(ChargeCard, ORDER)
        assert await running.result(handle) == Receipt(order_id="A-1", attempts=2)
        assert await running.story(handle) == ["submitted", "started", "retrying", "started", "completed"]


async def test_an_order_that_cannot_be_charged_fails_at_once() -> None:
    async with harness(ChargeCard) as running:
        handle = await running.framework.submit(ChargeCard, Order(order_id="A-2", amount=-1))
        with pytest.raises(TaskFailedError, match="nothing to charge"):
            await running.result(handle)
        assert (await running.finished(handle)).attempts == 1
