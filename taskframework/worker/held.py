"""A delivery of a running attempt: acknowledged once, and early when the attempt outlives the broker's patience."""

from __future__ import annotations

import asyncio

from taskframework.brokers.base import Delivery


class HeldDelivery:
    """Acknowledges a delivery after half the broker's consumer timeout.

    The broker would take it back at the full timeout, close the channel and deliver it again. The attempt does not
    need its message: the lease carries on.
    """

    def __init__(self, delivery: Delivery, early_after: float) -> None:
        self._delivery = delivery
        self._timer = asyncio.get_running_loop().call_later(early_after, self._acknowledge_early)
        self._early: asyncio.Task[None] | None = None
        self._is_answered = False

    async def ack(self) -> None:
        if self._answer():
            await self._delivery.ack()

    async def reject(self) -> None:
        """Dead-letter it, if it is still there: an early acknowledgement leaves the document as the only record."""
        if self._answer():
            await self._delivery.reject()

    def close(self) -> None:
        self._timer.cancel()

    def _answer(self) -> bool:
        first = not self._is_answered
        self._is_answered = True
        return first

    def _acknowledge_early(self) -> None:
        self._early = asyncio.create_task(self.ack())
