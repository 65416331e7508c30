"""What cannot be read is left out: one task or record that is damaged, or that a newer release wrote, must not make a
list, a group of writes or a repair fail for all others.
"""

from __future__ import annotations

import logging
from functools import lru_cache

from taskframework.errors import TaskframeworkError, TaskUnreadableError

logger = logging.getLogger(__name__)


def leave_out(error: TaskframeworkError) -> None:
    """Log what is left out and why, unless it was logged before: repairs look at the same entries every few seconds."""
    _warn_once(f"{error.message} {error.reason}" if isinstance(error, TaskUnreadableError) else str(error))


@lru_cache(maxsize=1000)
def _warn_once(text: str) -> None:
    logger.warning("left out: %s", text)
