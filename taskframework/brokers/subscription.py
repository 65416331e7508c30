"""A subscriber of the events exchange, for every broker: one message at a time, in order, acknowledged when handled."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_random_exponential

from taskframework.background import end, is_failure
from taskframework.brokers.base import Consumption, Delivery, ExternalMessage, OnExternalMessage, log_event_failure

logger = logging.getLogger(__name__)

#: Seconds that a stop waits for a running handler, so that its message is acknowledged. After that RabbitMQ delivers it
#: again: it puts messages back in order only with the end of their channel, and other subscribers wait for them.
_HANDLER_SECONDS = 1.0
#: Seconds that a handler has to end after it was cancelled. A handler that swallows cancellations may never end.
_CANCELLED_HANDLER_SECONDS = 5.0
#: Longest pause before a message that could not be handled is handed over again, in seconds.
_MAX_RETRY_PAUSE_SECONDS = 5.0


class EventDelivery(Delivery, Protocol):
    """A message of the events exchange that a subscriber holds."""

    @property
    def content_type(self) -> str: ...

    @property
    def is_void(self) -> bool:
        """Whether the connection of this delivery is gone, so that the broker delivers the message again."""
        ...


class Subscription:
    """A running subscriber, the `Consumption` of the port."""

    def __init__(
        self,
        on_message: OnExternalMessage,
        consume: Callable[[Callable[[EventDelivery], None]], Consumption],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Begin to consume.

        Args:
            on_message: as in `Broker.subscribe`.
            consume: starts to consume the subscriber's queue, with a callback for deliveries.
            sleep: for the pauses before a message that failed is handed over again.
        """
        self._on_message = on_message
        self._sleep = sleep
        self._deliveries: asyncio.Queue[EventDelivery] = asyncio.Queue()
        self._consumption = consume(self._deliveries.put_nowait)
        self.is_stopped = False
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        #: The message that was handed over last, until it is handled or put back.
        self._in_hand: EventDelivery | None = None
        self._has_stopped_consuming = False
        self._worker = asyncio.create_task(self._work())

    @property
    def is_live(self) -> bool:
        return self._consumption.is_live

    async def stop(self) -> None:
        """Stop consuming. After this returns no more messages are handed over, and the broker has those in hand back.

        A running handler may still end. Its message is then acknowledged, or comes again if that takes too long.
        """
        self.is_stopped = True
        if asyncio.current_task() is not self._worker:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_HANDLER_SECONDS):
                    await self._is_idle.wait()
        await self._consumption.stop()
        self._has_stopped_consuming = True
        if self._is_idle.is_set():
            await end(self._worker)
            await self._put_back_in_hand()
        while not self._deliveries.empty():
            await self._deliveries.get_nowait().put_back()

    async def close(self) -> None:
        """Stop, and cancel the handler if it is running, unless it is the handler that calls this."""
        await self.stop()
        if asyncio.current_task() is not self._worker:
            try:
                async with asyncio.timeout(_CANCELLED_HANDLER_SECONDS):
                    await end(self._worker)
            except TimeoutError:
                logger.warning("a handler of events ignores its cancellation and is left behind")

    async def _work(self) -> None:
        while not self.is_stopped:
            self._in_hand = await self._deliveries.get()
            try:
                await self._handle_until_done(self._in_hand)
                self._in_hand = None
            except BaseException as error:
                await self._put_back_in_hand()
                if not is_failure(error):
                    raise

    async def _put_back_in_hand(self) -> None:
        """Put the message in hand back if no more come. Before, it would come here again, behind the others."""
        if self._has_stopped_consuming and self._in_hand is not None:
            delivery, self._in_hand = self._in_hand, None
            await delivery.put_back()  # no effect if its channel is gone: then the broker delivers it again anyway

    async def _handle_until_done(self, delivery: EventDelivery) -> None:
        """Repeat until the message is handled. It is not put back, because then other messages would overtake it."""
        if delivery.is_void:
            return
        message = ExternalMessage(delivery.body, delivery.content_type, delivery.headers)
        retrying = AsyncRetrying(
            sleep=self._sleep,
            wait=wait_random_exponential(multiplier=0.1, max=_MAX_RETRY_PAUSE_SECONDS),
            retry=retry_if_exception(lambda error: is_failure(error) and not self.is_stopped and not delivery.is_void),
            before_sleep=_log_failure,
            reraise=True,
        )
        await retrying(self._handle, message)
        await delivery.ack()

    async def _handle(self, message: ExternalMessage) -> None:
        self._is_idle.clear()
        try:
            await self._on_message(message)
        finally:
            self._is_idle.set()


def _log_failure(state: RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome is not None else None
    log_event_failure(logger, f", attempt {state.attempt_number}", error)
