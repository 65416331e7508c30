"""Follows a batch and its items: the end of each item, once, even if the reader's connection breaks."""

from __future__ import annotations

from taskframework.api.feed import FeedEvent, sse_frame
from taskframework.api.places import KnownTask
from taskframework.api.task_follower import FINAL_TYPES
from taskframework.api.tree_follower import TreeFollower
from taskframework.events.external import ExternalEvent
from taskframework.model.batch_status import results_of
from taskframework.model.batches import parts_of
from taskframework.model.status import FINAL
from taskframework.model.task import Task

_FINAL_NAMES = frozenset(status.value for status in FINAL)


class ItemsFollower(TreeFollower):
    """The place of one stream in a batch: its own events, and the outcome of each item, as the items end.

    A sub-task is open if it has not ended although a later sub-task of the plan was already shown. The sequence of a
    chunk is the number of its items that were shown.
    """

    kind = "items"
    max_open_tasks = 1000
    statuses = FINAL
    _chunk_size = 1

    def _is_relevant(self, event: ExternalEvent) -> bool:
        return event.type in FINAL_TYPES

    def _can_begin_with(self, event: ExternalEvent) -> bool:
        return _has_ended(event)

    def _send_live_event(self, known: KnownTask, feed_event: FeedEvent) -> None:
        event = feed_event.event
        if known is self._top:
            super()._send_live_event(known, feed_event)
        elif _has_ended(event):
            if self._chunk_size > 1:  # if it failed, the event does not say how many items it has
                self._tasks_to_read[known.task_id] = None
            else:
                item = {name: event.data.get(name) for name in ("task_id", "status", "result", "error")}
                self._close_task(known)
                self._send_frame(sse_frame("item", {"index": known.slot, **item}))

    def _send_missed_events(self, known: KnownTask, task: Task) -> bool:
        if known is self._top:
            self._chunk_size = parts_of(task)[0].chunk_size
            return super()._send_missed_events(known, task)
        if task.status.is_final:
            results = results_of(task, self._chunk_size)
            for result in results[known.sequence : -1]:
                known.sequence += 1
                self._send_frame(sse_frame("item", result.view()))
            self._close_task(known)
            self._send_frame(sse_frame("item", results[-1].view()))
        return False


def _has_ended(event: ExternalEvent) -> bool:
    """Return whether this is the end of a task that has not been queued again meanwhile."""
    return event.type in FINAL_TYPES and event.data.get("status") in _FINAL_NAMES
