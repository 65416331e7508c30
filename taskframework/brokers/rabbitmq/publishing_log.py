"""The log of a publisher: one line when publishing begins to fail, one when it works again, none for each message."""

from __future__ import annotations

import logging

from taskframework.errors import BrokerError
from taskframework.model.wording import duration_text

logger = logging.getLogger(__name__)

#: Seconds without a failure after which publishing works again. If a part of the messages fails, failures and confirms
#: alternate, and there would be two lines for each of them.
_CALM_SECONDS = 2.0


class PublishingLog:
    """Remembers whether publishing fails. Times are seconds of the event loop's clock."""

    def __init__(self) -> None:
        self.is_failing = False
        self._failing_since = 0.0
        self._last_failure_at = 0.0

    def note_failure(self, error: BrokerError, now: float) -> None:
        """Log a failure, unless publishing is failing already."""
        self._last_failure_at = now
        if self.is_failing:
            return
        self.is_failing, self._failing_since = True, now
        logger.warning(
            "publishing to RabbitMQ fails: %s Nothing is lost: tasks and events are in the store, and their messages "
            "are sent again automatically.",
            error,
        )

    def note_confirmed(self, begun_at: float, now: float) -> None:
        """Log that publishing works again, if it was failing and this publication began after the last failures."""
        if self.is_failing and begun_at >= self._last_failure_at + _CALM_SECONDS:
            self.is_failing = False
            logger.info("publishing to RabbitMQ works again after %s", duration_text(now - self._failing_since))
