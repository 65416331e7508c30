"""Follows a batch and its items: the end of each item, once, even if the reader's connection breaks."""

from __future__ import annotations

from taskframework.api.feed import Heard, frame
from taskframework.api.following import FINAL_TYPES
from taskframework.api.places import KnownTask
from taskframework.api.tree import TreeFollower
from taskframework.events.external import ExternalEvent
from taskframework.model.batch_status import results_of
from taskframework.model.batches import parts_of
from taskframework.model.status import FINAL
from taskframework.model.task import Task

_FINAL_NAMES = frozenset(status.value for status in FINAL)


class ItemsFollower(TreeFollower):
    """The place of one stream in a batch: its own events, and the outcome of each item, as the items end.

    A sub-task is open if it has not ended, and a later one in the plan was already shown. The sequence of a chunk is
    the number of its items that were shown.
    """

    kind = "items"
    most_open = 1000
    statuses = FINAL
    _chunk_size = 1

    def _matters(self, event: ExternalEvent) -> bool:
        return event.type in FINAL_TYPES

    def _is_first_news(self, event: ExternalEvent) -> bool:
        return _has_ended(event)

    def _tell_heard(self, known: KnownTask, heard: Heard) -> None:
        event = heard.event
        if known is self._top:
            super()._tell_heard(known, heard)
        elif _has_ended(event):
            if self._chunk_size > 1:  # if it failed, the event does not say how many items it has
                self._due[known.task_id] = None
            else:
                item = {name: event.data.get(name) for name in ("task_id", "status", "result", "error")}
                self._close(known)
                self._send(frame("item", {"index": known.slot, **item}))

    def _tell_missed(self, known: KnownTask, task: Task) -> bool:
        if known is self._top:
            self._chunk_size = parts_of(task)[0].chunk_size
            return super()._tell_missed(known, task)
        if task.status.is_final:
            results = results_of(task, self._chunk_size)
            for result in results[known.sequence : -1]:
                known.sequence += 1
                self._send(frame("item", result.view()))
            self._close(known)
            self._send(frame("item", results[-1].view()))
        return False


def _has_ended(event: ExternalEvent) -> bool:
    """Return whether this is the end of a task that has not been queued again meanwhile."""
    return event.type in FINAL_TYPES and event.data.get("status") in _FINAL_NAMES
