"""Follows one task: first the events so far, then the new ones, each event once and in order."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from typing import Any

from taskframework.api.feed import FeedEvent, Watcher, event_frame, sse_frame
from taskframework.errors import StoreError
from taskframework.events.external import PREFIX, ExternalEvent, lifecycle_events, progress_event
from taskframework.model.scope import Scope
from taskframework.model.status import FINAL
from taskframework.model.task import Task
from taskframework.model.view import public_view
from taskframework.stores.base import TaskStore

logger = logging.getLogger(__name__)

#: Seconds of silence after which a comment is sent. Proxies cut streams that are silent for long, and the client sees
#: that the process lives.
HEARTBEAT_SECONDS = 10.0
HEARTBEAT = b": heartbeat\n\n"
#: The last event of a stream whose reader was too slow, or that cannot know what the reader missed: look again.
RESYNC = sse_frame("resync", {"reason": "events were missed; read the current state"})

FINAL_TYPES = frozenset(PREFIX + status.value.lower() for status in FINAL)


def missed_events(task: Task, sequence: int, progress: int | None, source: str) -> list[ExternalEvent] | None:
    """The events of a task that a reader does not have.

    Args:
        task: the task as it is now.
        sequence: the sequence of the last event that the reader has.
        progress: the last progress revision that the reader has; None if it is unknown.
        source: the installation, as the events name it.

    Returns:
        The missing events in order, and then the progress reported since. None if the first of them are no longer kept.
    """
    if task.history and task.history[0].sequence > sequence + 1:
        return None
    events = lifecycle_events(task, sequence, source)
    is_newest = not task.history or task.updated_at > task.history[-1].at
    if is_newest and not task.status.is_final and task.progress_revision > (progress or 0):
        events.append(progress_event(task, source))
    return events


class TaskFollower:
    """The place of one stream in the events of its task."""

    def __init__(
        self,
        task: Task,
        watcher: Watcher,
        store: TaskStore,
        scope: Scope,
        source: str,
        after: tuple[int, int | None] | None,
        view: Callable[[Task], dict[str, Any]] = public_view,
    ) -> None:
        """Begin to follow.

        Args:
            task: the task, read after the watcher joined, so that no event is missed between the two.
            watcher: gets the events of the task from now on.
            store: is asked if events were missed.
            scope: the tasks that the client may see.
            source: the installation, as the events name it.
            after: the last sequence that the client has, and the last progress revision if the client names it; None
                for a client that has nothing.
            view: makes the snapshot of the task.
        """
        self._task = task
        self._watcher = watcher
        self._store = store
        self._scope = scope
        self._source = source
        self._view = view
        self._sequence: int | None
        self._progress: int | None
        self._sequence, self._progress = after or (None, None)
        self._is_ended = False

    @property
    def has_nothing_to_send(self) -> bool:
        """Whether the client has everything, and nothing more will come."""
        return self._task.status.is_final and self._sequence is not None and self._sequence >= self._task.sequence

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """The bytes to send, until the task is final, the watcher is over, or the task is gone."""
        yield self._catch_up(self._task) or HEARTBEAT
        while not self._is_ended:
            events = await self._watcher.take(HEARTBEAT_SECONDS)
            if not events and self._watcher.is_over:
                break
            # If no event comes, read the store: so the stream ends even if an event was lost on its way here.
            yield (
                b"".join([await self._handle_event(event) for event in events]) if events else await self._read_store()
            ) or HEARTBEAT
        if self._watcher.has_missed_events and not self._is_ended:
            yield RESYNC

    async def _handle_event(self, feed_event: FeedEvent) -> bytes:
        event, known_sequence = feed_event.event, self._sequence or 0
        if self._is_ended:
            return b""
        is_progress = event.progress_revision is not None
        # Progress carries the sequence of the last event. Sent before that event, it would make the event look known.
        if event.sequence > known_sequence + (not is_progress):
            return await self._read_store()
        if event.progress_revision is not None:
            return self._handle_progress(feed_event, event.progress_revision)
        if event.sequence <= known_sequence:
            return b""
        self._sequence = event.sequence
        self._is_ended = event.type in FINAL_TYPES
        return feed_event.frame

    def _handle_progress(self, feed_event: FeedEvent, revision: int) -> bytes:
        if revision <= (self._progress or 0):
            return b""
        self._progress = revision
        return feed_event.frame

    async def _read_store(self) -> bytes:
        try:
            task = await self._store.get(self._task.task_id, self._scope)
        except StoreError as error:
            logger.debug("task %s: %s", self._task.task_id, error.message)
            return b""
        if task is None:
            self._is_ended = True
            return RESYNC
        return self._catch_up(task)

    def _catch_up(self, task: Task) -> bytes:
        """All events that the client does not have; the whole task if it has none, or if the first of them are gone."""
        events = None
        if self._sequence is not None:
            events = missed_events(task, self._sequence, self._progress, self._source)
        self._sequence, self._progress = task.sequence, task.progress_revision
        self._is_ended = task.status.is_final
        if events is None:
            return sse_frame("snapshot", self._view(task), f"{task.task_id}-{task.sequence}")
        return b"".join(map(event_frame, events))
