"""Follows a task and everything below it: each event of each task once and in order, even if a connection breaks.

A live event is sent at once if it is the next event of an open task. Any other live event is a reason to look: the
store is read, and the reader gets the events that it does not have.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Collection
from typing import Any, ClassVar

from taskframework.api import task_follower
from taskframework.api.feed import Feed, FeedEvent, Watcher, event_frame, sse_frame
from taskframework.api.open_tasks import OpenTasks
from taskframework.api.places import KnownRound, KnownTask, write_place
from taskframework.api.task_follower import FINAL_TYPES, HEARTBEAT, RESYNC, missed_events
from taskframework.errors import StoreError
from taskframework.events.external import PREFIX, ExternalEvent
from taskframework.model.scope import Scope
from taskframework.model.status import TaskStatus
from taskframework.model.task import Task
from taskframework.model.task_fields import HistoryEntry
from taskframework.model.view import public_view
from taskframework.stores.base import TaskStore

logger = logging.getLogger(__name__)

#: How many sub-tasks are read together.
_PAGE_SIZE = 100
#: The most sub-tasks that had ended, were queued again, and wait for room to be shown again. With more of them, the
#: reader has to begin again.
_MAX_REVIVED_SUBTASKS = 10_000
#: Seconds until a store that was unavailable is asked again.
_STORE_RETRY_SECONDS = 1.0
#: Events after which an ended task is live again.
_REVIVING_TYPES = frozenset({PREFIX + "replayed", PREFIX + "reopened"})


class TreeFollower:
    """The place of one stream in the events of a task and of all tasks below it."""

    #: The name of the stream in its ids.
    kind: ClassVar[str] = "tree"
    #: How many sub-tasks may be open at a time: shown, but not to their end. A few more may be opened, so that the
    #: first tasks in the plan always continue.
    max_open_tasks: ClassVar[int] = 256
    #: Sub-tasks in these statuses are shown; None for all statuses.
    statuses: ClassVar[Collection[TaskStatus] | None] = None

    def __init__(
        self,
        followed: KnownTask,
        feed: Feed,
        watcher: Watcher,
        store: TaskStore,
        scope: Scope,
        source: str,
        view: Callable[[Task], dict[str, Any]] = public_view,
    ) -> None:
        """Begin to follow.

        Args:
            followed: the task, with the place of the reader.
            feed: gives the watcher the events of sub-tasks.
            watcher: gets all events from now on; it has joined for the task.
            store: is asked at the beginning and if events were missed.
            scope: the tasks that the client may see.
            source: the installation, as the events name it.
            view: makes the snapshot of the task that is followed.
        """
        self._top = followed
        self._is_new_reader = followed.sequence == 0
        self._feed = feed
        self._watcher = watcher
        self._store = store
        self._scope = scope
        self._source = source
        self._view = view
        self._open_tasks = OpenTasks(self._top, self.max_open_tasks)
        #: Open tasks to read from the store, in this order.
        self._tasks_to_read = dict.fromkeys(known.task_id for known in self._open_tasks)
        #: Sub-tasks that had ended and are live again, with the sequence of the event that did this.
        self._revived: dict[str, int] = {}
        self._frames: list[bytes] = []
        self._is_ended = False
        self._is_store_unavailable = False
        for known in self._open_tasks:
            if known.rounds:
                feed.watch_subtasks(watcher, known.task_id)

    @classmethod
    def id_of(cls, task_id: str, place: str) -> str:
        """The id of an event of this stream."""
        return f"{task_id}-{cls.kind}-{place}"

    async def begin(self) -> None:
        """Look at the store until there is an event to send, or nothing is left to look at.

        Raises:
            StoreError: if the store cannot be read.
        """
        while self._tasks_to_read and not self._frames and not self._is_ended:
            await self._read_task(next(iter(self._tasks_to_read)))

    @property
    def has_nothing_to_send(self) -> bool:
        """Whether the client has everything, and nothing more will come."""
        return self._is_ended and not self._frames

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """The bytes to send, until the task and all below it are final, the watcher is over, or the task is gone."""
        yield self._take_frames() or HEARTBEAT
        while not self._is_ended:
            events = await self._watcher.take(self._seconds_to_wait())
            if not events and self._watcher.is_over:
                break
            for event in events:
                self._handle_event(event)
            is_silent = not events and not self._has_work
            if not self._is_ended:
                await self._read_store(is_silent)
            if chunk := self._take_frames() or (HEARTBEAT if is_silent or self._is_store_unavailable else b""):
                yield chunk
        if self._watcher.has_missed_events and not self._is_ended:
            yield RESYNC

    def _take_frames(self) -> bytes:
        frames, self._frames = self._frames, []
        return b"".join(frames)

    def _seconds_to_wait(self) -> float:
        if not self._has_work:
            return task_follower.HEARTBEAT_SECONDS
        return _STORE_RETRY_SECONDS if self._is_store_unavailable else 0

    @property
    def _has_work(self) -> bool:
        return bool(self._tasks_to_read or (self._revived and self._open_tasks.has_ample_room))

    # Live events

    def _handle_event(self, feed_event: FeedEvent) -> None:
        event = feed_event.event
        if self._is_ended:
            return
        known = self._open_tasks.get(event.task_id) or self._begin_subtask(event)
        if known is not None:
            self._send_live_event(known, feed_event)

    def _send_live_event(self, known: KnownTask, feed_event: FeedEvent) -> None:
        """Send a live event of an open task if it comes next."""
        event = feed_event.event
        if event.sequence > known.sequence + (event.progress_revision is None):
            self._tasks_to_read[known.task_id] = None
        elif event.progress_revision is None:
            if event.sequence > known.sequence:
                is_end = event.type in FINAL_TYPES
                self._send_event(
                    known, event, feed_event.frame, is_end=is_end, has_subtasks=bool(event.data.get("subtasks"))
                )
        elif event.sequence == known.sequence and event.progress_revision > known.progress:
            known.progress = event.progress_revision
            self._send_frame(feed_event.frame)

    def _begin_subtask(self, event: ExternalEvent) -> KnownTask | None:
        """The sub-task of an open task that begins with this event; None if it is too early or too late for it."""
        parent = self._open_tasks.get(str(event.data.get("parent_task_id")))
        if parent is None or not self._is_relevant(event):
            return None
        if not parent.rounds:
            self._tasks_to_read[parent.task_id] = None
            return None
        newest = parent.rounds[-1]
        slot = newest.upcoming_slot(event.task_id, self.max_open_tasks)
        if slot is not None and self._can_begin_with(event) and self._open_tasks.has_room_for(newest, slot):
            return self._open_tasks.open_subtask(newest, slot)
        if slot is None and event.type in _REVIVING_TYPES:
            self._revived.setdefault(event.task_id, event.sequence)
            if len(self._revived) > _MAX_REVIVED_SUBTASKS:
                self._end_with_resync()
        elif not self._open_tasks.is_waiting(newest) and not newest.is_plan_shown:
            self._tasks_to_read[parent.task_id] = None
        return None

    def _is_relevant(self, event: ExternalEvent) -> bool:
        """Return whether the reader gets this event of a sub-task."""
        return True

    def _can_begin_with(self, event: ExternalEvent) -> bool:
        """Return whether a sub-task can begin with this event."""
        return event.sequence == 1 and event.progress_revision is None

    # Answers of the store

    async def _read_store(self, is_silent: bool) -> None:
        try:
            if is_silent:
                await self._check_for_lost_events()
            elif self._tasks_to_read:
                await self._read_task(next(iter(self._tasks_to_read)))
            elif self._has_work:
                await self._show_revived(next(iter(self._revived)))
            self._is_store_unavailable = False
        except StoreError as error:
            self._is_store_unavailable = True
            logger.debug("task %s: %s", self._top.task_id, error.message)

    async def _check_for_lost_events(self) -> None:
        """Read the store if no event comes, so that the stream ends even if an event was lost on its way here."""
        without_rounds = [known.task_id for known in self._open_tasks if not known.rounds]
        ended = await self._store.finished_at(without_rounds) if without_rounds else {}
        self._tasks_to_read |= dict.fromkeys(
            known.task_id for known in self._open_tasks if known.rounds or known is self._top
        )
        self._tasks_to_read |= dict.fromkeys(task_id for task_id, at in ended.items() if at is not None)

    async def _read_task(self, task_id: str) -> None:
        """Read a task, and send the events that the reader does not have."""
        task = await self._store.get(task_id, self._scope)
        known = self._open_tasks[task_id]
        if task is None:
            self._handle_missing_task(known)
        elif not self._send_missed_events(known, task):
            self._tasks_to_read.pop(task_id, None)
        else:
            self._enter_round(known, task)
            for round in tuple(known.rounds):
                await self._list_subtasks(round, task)
                # At once, not at the end: so the places stay small that are sent for the next of many rounds.
                if round.is_over and not round.open_subtasks and round is not known.rounds[-1]:
                    known.rounds.remove(round)
            known.is_final = task.status.is_final and task.sequence == known.sequence
            if known.is_final and not known.has_open_subtasks and all(round.is_over for round in known.rounds):
                self._close_task(known)
            # Not earlier: if the store fails before this, the task is read again. So it is while there are more pages.
            if all(round.is_listed or self._open_tasks.is_waiting(round) for round in known.rounds):
                self._tasks_to_read.pop(task_id, None)
            known.forget_shown_rounds()
        self._is_new_reader = self._is_new_reader and bool(self._tasks_to_read)

    def _enter_round(self, known: KnownTask, task: Task) -> None:
        if task.subtasks is not None:
            known.enter_round(task.generation, task.subtasks.round)
            known.rounds[-1].planned = task.subtasks.planned
            self._feed.watch_subtasks(self._watcher, known.task_id)

    async def _list_subtasks(self, round: KnownRound, task: Task) -> None:
        """Show sub-tasks that were not shown yet, as far as one page and the room allow."""
        current_round = (task.generation, task.subtasks.round) if task.subtasks is not None else None
        is_past = current_round != (round.generation, round.number) or task.status is not TaskStatus.WAITING
        if is_past and task.cascade_at is None:
            self._mark_past(round)
        if round.is_plan_shown:
            round.is_listed = True
            self._open_tasks.clear_waiting(round)
            return
        # In a round that the task has left, the reader waits for sub-tasks that are still live, in every status.
        statuses = None if round.is_past else self.statuses
        found = await self._store.list_subtasks(
            round.key, limit=_PAGE_SIZE, after_slot=round.shown_until - 1, statuses=statuses
        )
        round.is_listed = len(found) < _PAGE_SIZE
        self._open_tasks.clear_waiting(round)
        for subtask in found:
            assert subtask.parent is not None, "it was found by its parent"
            if round.is_past:
                # The sub-tasks between were never stored.
                round.shown_until = max(round.shown_until, subtask.parent.slot)
            if not self._open_tasks.has_room_for(round, subtask.parent.slot):
                self._open_tasks.mark_waiting(round, subtask.parent.slot)
                round.is_listed = False
                return
            self._send_missed_events(self._open_tasks.open_subtask(round, subtask.parent.slot), subtask)

    def _mark_past(self, round: KnownRound) -> None:
        """Note that no more sub-tasks of this round will be stored; passed-over slots without a task stay empty."""
        if not round.is_past:
            round.is_past = True
            self._tasks_to_read |= dict.fromkeys(
                known.task_id for known in round.open_subtasks.values() if known.sequence == 0
            )

    def _handle_missing_task(self, known: KnownTask) -> None:
        self._tasks_to_read.pop(known.task_id)
        if known.parent_round is None:
            self._end_with_resync()
        elif known.sequence or known.parent_round.is_past:
            self._close_task(known)

    async def _show_revived(self, task_id: str) -> None:
        """Show again a sub-task that had ended, beginning with the event that made it live again."""
        task = await self._store.get(task_id, self._scope)
        sequence, link = self._revived.pop(task_id), task.parent if task is not None else None
        parent = self._open_tasks.get(link.task_id) if link is not None else None
        for round in parent.rounds if parent is not None else ():
            if (
                task
                and link
                and round.contains(link)
                and link.slot < round.shown_until
                and link.slot not in round.open_subtasks
            ):
                known = self._open_tasks.reopen_subtask(round, link.slot, sequence - 1)
                if task.subtasks is not None and any(_is_reopening(entry, sequence) for entry in task.history):
                    known.mark_shown_through(task.generation, task.subtasks.round)
                self._send_missed_events(known, task)
        self._tasks_to_read[self._top.task_id] = None  # the stream may have waited only for this to end

    def _end_with_resync(self) -> None:
        self._frames.append(RESYNC)
        self._is_ended = True

    # Sent events

    def _send_missed_events(self, known: KnownTask, task: Task) -> bool:
        """Send the events of a task, as it was read, that the reader lacks. Return whether sub-tasks may have to
        follow.
        """
        missed = None
        if known.sequence or not self._is_new_reader:
            missed = missed_events(task, known.sequence, known.progress, self._source)
        if missed is None:
            known.sequence, known.progress = task.sequence, task.progress_revision
            self._update_known(known, is_end=task.status.is_final, has_subtasks=task.subtasks is not None)
            self._send_frame(sse_frame("snapshot", self._view(task) if known is self._top else public_view(task)))
        for event in missed or ():
            if event.progress_revision is not None:
                known.progress = event.progress_revision
                self._send_frame(event_frame(event))
            else:
                is_end = task.status.is_final and event.sequence == task.sequence
                self._send_event(
                    known, event, event_frame(event), is_end=is_end, has_subtasks=task.subtasks is not None
                )
        return self._open_tasks.get(known.task_id) is not None

    def _send_event(
        self, known: KnownTask, event: ExternalEvent, frame: bytes, *, is_end: bool, has_subtasks: bool
    ) -> None:
        known.sequence, known.progress = event.sequence, 0
        self._update_known(known, is_end=is_end, has_subtasks=has_subtasks)
        self._send_frame(frame)

    def _update_known(self, known: KnownTask, *, is_end: bool, has_subtasks: bool) -> None:
        """Note what the next frame says about a task."""
        known.is_final = is_end
        if has_subtasks or known.rounds:
            self._tasks_to_read[known.task_id] = None
        elif is_end:
            self._close_task(known)

    def _send_frame(self, frame: bytes) -> None:
        """Send an event under an id with the place of the reader after it."""
        place = self.id_of(self._top.task_id, write_place(self._top))
        self._frames.append(f"id: {place}\nevent: ".encode() + frame.partition(b"event: ")[2])

    def _close_task(self, known: KnownTask) -> None:
        """Note that a task and all tasks below it were shown to the end."""
        if known.parent_round is None:
            self._is_ended = not self._revived
            return
        for parent in self._open_tasks.close(known):
            self._tasks_to_read[parent.task_id] = None
        self._tasks_to_read.pop(known.task_id, None)
        if known.rounds:
            self._feed.unwatch_subtasks(self._watcher, known.task_id)
        parent = known.parent_round.parent
        if parent.is_final and not parent.has_open_subtasks:
            self._tasks_to_read[parent.task_id] = None


def _is_reopening(entry: HistoryEntry, sequence: int) -> bool:
    return entry.sequence == sequence and entry.type == "reopened"
