"""Finds tasks whose events have waited for long: the broker is away, or it refuses messages."""

from __future__ import annotations

import contextlib
from datetime import timedelta

from taskframework.clock import Clock
from taskframework.errors import TaskUnreadableError
from taskframework.model.drivers import OUTBOX
from taskframework.model.scope import EVERYONE
from taskframework.stores.base import TaskStore

#: Relays publish within a second or two. After the broker is back they may need some seconds more.
PUBLISHED_WITHIN = timedelta(minutes=1)


async def find_unpublished(store: TaskStore, clock: Clock, limit: int) -> list[str]:
    """Return the ids of tasks with an event that has waited for more than a minute.

    The time of the outbox alone does not show it, because each relay that tries in vain moves it on. So this looks at
    the events of the `limit` tasks that are due for longest, and of the `limit` tasks that relays tried last.
    """
    oldest = clock.now() - PUBLISHED_WITHIN
    found: list[str] = []
    for waiting in [*await store.due(OUTBOX, limit), *await store.upcoming(OUTBOX, limit)]:
        with contextlib.suppress(TaskUnreadableError):
            task = await store.get(waiting.task_id, EVERYONE)
            if task is not None and any(event.at < oldest for event in task.unpublished):
                found.append(task.task_id)
    return found
