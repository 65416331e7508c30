"""Follows a task and everything below it: each event of each task once and in order, even if a connection breaks.

A heard event is sent at once if it is the next event of an open task. Any other heard event is a reason to look: the
store is read, and the reader gets the events that it does not have.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Collection
from typing import Any, ClassVar

from taskframework.api import following
from taskframework.api.feed import Feed, Heard, Watcher, event_frame, frame
from taskframework.api.following import FINAL_TYPES, HEARTBEAT, RESYNC, missed_events
from taskframework.api.open_tasks import OpenTasks
from taskframework.api.places import KnownRound, KnownTask, place_text
from taskframework.errors import StoreError
from taskframework.events.external import PREFIX, ExternalEvent
from taskframework.model.scope import Scope
from taskframework.model.status import TaskStatus
from taskframework.model.task import HistoryEntry, Task
from taskframework.model.view import public_view
from taskframework.stores.base import TaskStore

logger = logging.getLogger(__name__)

#: How many sub-tasks are read together.
_PAGE = 100
#: The most sub-tasks that had ended, were queued again, and wait for room to be shown again. With more of them, the
#: reader has to begin again.
_MOST_RETURNED = 10_000
#: Seconds until a store that was unavailable is asked again.
_PAUSE = 1.0
#: Events after which an ended task is live again.
_RETURNS = frozenset({PREFIX + "replayed", PREFIX + "reopened"})


class TreeFollower:
    """The place of one stream in the events of a task and of all tasks below it."""

    #: The name of the stream in its ids.
    kind: ClassVar[str] = "tree"
    #: How many sub-tasks may be open at a time: shown, but not to their end. A few more are let in, so that the
    #: first tasks in the plan always go on.
    most_open: ClassVar[int] = 256
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
            feed: lets the watcher hear sub-tasks.
            watcher: hears all events from now on; it has joined for the task.
            store: is asked at the beginning and if events were missed.
            scope: the tasks that the client may see.
            source: the installation, as the events name it.
            view: makes the snapshot of the task that is followed.
        """
        self._top = followed
        self._is_new = followed.sequence == 0
        self._feed = feed
        self._watcher = watcher
        self._store = store
        self._scope = scope
        self._source = source
        self._view = view
        self._open = OpenTasks(self._top, self.most_open)
        #: Open tasks to read from the store, in this order.
        self._due = dict.fromkeys(known.task_id for known in self._open)
        #: Sub-tasks that had ended and are live again, with the sequence of the event that did this.
        self._returned: dict[str, int] = {}
        self._frames: list[bytes] = []
        self._is_ended = False
        self._is_store_away = False
        for known in self._open:
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
        while self._due and not self._frames and not self._is_ended:
            await self._look_at(next(iter(self._due)))

    @property
    def has_nothing(self) -> bool:
        """Whether the client has everything, and nothing more will come."""
        return self._is_ended and not self._frames

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """The bytes to send, until the task and all below it are final, the watcher is over, or the task is gone."""
        yield self._flushed() or HEARTBEAT
        while not self._is_ended:
            heard = await self._watcher.take(self._patience())
            if not heard and self._watcher.is_over:
                break
            for one in heard:
                self._hear(one)
            is_silent = not heard and not self._has_work
            if not self._is_ended:
                await self._look(is_silent)
            if told := self._flushed() or (HEARTBEAT if is_silent or self._is_store_away else b""):
                yield told
        if self._watcher.is_behind and not self._is_ended:
            yield RESYNC

    def _flushed(self) -> bytes:
        frames, self._frames = self._frames, []
        return b"".join(frames)

    def _patience(self) -> float:
        if not self._has_work:
            return following.HEARTBEAT_SECONDS
        return _PAUSE if self._is_store_away else 0

    @property
    def _has_work(self) -> bool:
        return bool(self._due or (self._returned and self._open.is_roomy))

    # Heard events

    def _hear(self, heard: Heard) -> None:
        event = heard.event
        if not self._is_ended and (known := self._open.get(event.task_id) or self._newcomer(event)) is not None:
            self._tell_heard(known, heard)

    def _tell_heard(self, known: KnownTask, heard: Heard) -> None:
        """Send a heard event of an open task if it comes next."""
        event = heard.event
        if event.sequence > known.sequence + (event.progress_revision is None):
            self._due[known.task_id] = None
        elif event.progress_revision is None:
            if event.sequence > known.sequence:
                is_end = event.type in FINAL_TYPES
                self._tell(known, event, heard.frame, is_end=is_end, has_subtasks=bool(event.data.get("subtasks")))
        elif event.sequence == known.sequence and event.progress_revision > known.progress:
            known.progress = event.progress_revision
            self._send(heard.frame)

    def _newcomer(self, event: ExternalEvent) -> KnownTask | None:
        """The sub-task of an open task that begins with this event; None if it is too early or too late for it."""
        parent = self._open.get(str(event.data.get("parent_task_id")))
        if parent is None or not self._matters(event):
            return None
        if not parent.rounds:
            self._due[parent.task_id] = None
            return None
        newest = parent.rounds[-1]
        slot = newest.slot_ahead(event.task_id, self.most_open)
        if slot is not None and self._is_first_news(event) and self._open.fits(newest, slot):
            return self._open.begin(newest, slot)
        if slot is None and event.type in _RETURNS:
            self._returned.setdefault(event.task_id, event.sequence)
            if len(self._returned) > _MOST_RETURNED:
                self._resync()
        elif not self._open.holds(newest) and not newest.is_whole:
            self._due[parent.task_id] = None
        return None

    def _matters(self, event: ExternalEvent) -> bool:
        """Return whether the reader gets this event of a sub-task."""
        return True

    def _is_first_news(self, event: ExternalEvent) -> bool:
        """Return whether a sub-task can begin with this event."""
        return event.sequence == 1 and event.progress_revision is None

    # Answers of the store

    async def _look(self, is_silent: bool) -> None:
        try:
            if is_silent:
                await self._look_around()
            elif self._due:
                await self._look_at(next(iter(self._due)))
            elif self._has_work:
                await self._return(next(iter(self._returned)))
            self._is_store_away = False
        except StoreError as error:
            self._is_store_away = True
            logger.debug("task %s: %s", self._top.task_id, error.message)

    async def _look_around(self) -> None:
        """Ask the store when nothing is heard, so that the stream ends even if an event was lost on its way here."""
        resting = [known.task_id for known in self._open if not known.rounds]
        ended = await self._store.finished_at(resting) if resting else {}
        self._due |= dict.fromkeys(known.task_id for known in self._open if known.rounds or known is self._top)
        self._due |= dict.fromkeys(task_id for task_id, at in ended.items() if at is not None)

    async def _look_at(self, task_id: str) -> None:
        """Send the events of a due task that the reader does not have."""
        task = await self._store.get(task_id, self._scope)
        known = self._open[task_id]
        if task is None:
            self._gone(known)
        elif not self._tell_missed(known, task):
            self._due.pop(task_id, None)
        else:
            self._enter(known, task)
            for round in tuple(known.rounds):
                await self._list(round, task)
            known.is_final = task.status.is_final and task.sequence == known.sequence
            if known.is_final and not known.has_open and all(round.is_over for round in known.rounds):
                self._close(known)
            # Not earlier: if the store fails before this, the task stays due. It also stays due while there are more
            # pages.
            if all(round.is_listed or self._open.holds(round) for round in known.rounds):
                self._due.pop(task_id, None)
            known.forget_rounds()
        self._is_new = self._is_new and bool(self._due)

    def _enter(self, known: KnownTask, task: Task) -> None:
        if task.subtasks is not None:
            known.enter(task.generation, task.subtasks.round)
            known.rounds[-1].planned = task.subtasks.planned
            self._feed.watch_subtasks(self._watcher, known.task_id)

    async def _list(self, round: KnownRound, task: Task) -> None:
        """Show sub-tasks that were not shown yet, as far as one page and the room allow."""
        now_in = (task.generation, task.subtasks.round) if task.subtasks is not None else None
        is_left = now_in != (round.generation, round.number) or task.status is not TaskStatus.WAITING
        if is_left and task.cascade_at is None:
            self._leave(round)
        if round.is_whole:
            round.is_listed = True
            self._open.let_in(round)
            return
        # In a round that was left, sub-tasks that are still live are waited for, in every status.
        statuses = None if round.is_left else self.statuses
        found = await self._store.list_subtasks(round.key, limit=_PAGE, after_slot=round.told - 1, statuses=statuses)
        round.is_listed = len(found) < _PAGE
        self._open.let_in(round)
        for subtask in found:
            assert subtask.parent is not None, "it was found by its parent"
            if round.is_left:
                round.told = max(round.told, subtask.parent.slot)  # the sub-tasks between were never stored
            if not self._open.fits(round, subtask.parent.slot):
                self._open.hold(round, subtask.parent.slot)
                round.is_listed = False
                return
            self._tell_missed(self._open.begin(round, subtask.parent.slot), subtask)

    def _leave(self, round: KnownRound) -> None:
        """Note that no more sub-tasks of this round will be stored; passed-over slots without a task stay empty."""
        if not round.is_left:
            round.is_left = True
            self._due |= dict.fromkeys(known.task_id for known in round.open.values() if known.sequence == 0)

    def _gone(self, known: KnownTask) -> None:
        self._due.pop(known.task_id)
        if known.within is None:
            self._resync()
        elif known.sequence or known.within.is_left:
            self._close(known)

    async def _return(self, task_id: str) -> None:
        """Show again a sub-task that had ended, beginning with the event that made it live again."""
        task = await self._store.get(task_id, self._scope)
        sequence, link = self._returned.pop(task_id), task.parent if task is not None else None
        parent = self._open.get(link.task_id) if link is not None else None
        for round in parent.rounds if parent is not None else ():
            if task and link and round.is_of(link) and link.slot < round.told and link.slot not in round.open:
                known = self._open.reopen(round, link.slot, sequence - 1)
                if task.subtasks is not None and any(_is_reopening(entry, sequence) for entry in task.history):
                    known.pass_over(task.generation, task.subtasks.round)
                self._tell_missed(known, task)
        self._due[self._top.task_id] = None  # the stream may have waited only for this to end

    def _resync(self) -> None:
        self._frames.append(RESYNC)
        self._is_ended = True

    # Sent events

    def _tell_missed(self, known: KnownTask, task: Task) -> bool:
        """Send the events of a task, as it was read, that the reader lacks. Return whether sub-tasks may have to
        follow.
        """
        missed = None
        if known.sequence or not self._is_new:
            missed = missed_events(task, known.sequence, known.progress, self._source)
        if missed is None:
            known.sequence, known.progress = task.sequence, task.progress_revision
            self._note(known, is_end=task.status.is_final, has_subtasks=task.subtasks is not None)
            self._send(frame("snapshot", self._view(task) if known is self._top else public_view(task)))
        for event in missed or ():
            if event.progress_revision is not None:
                known.progress = event.progress_revision
                self._send(event_frame(event))
            else:
                is_end = task.status.is_final and event.sequence == task.sequence
                self._tell(known, event, event_frame(event), is_end=is_end, has_subtasks=task.subtasks is not None)
        return self._open.get(known.task_id) is not None

    def _tell(self, known: KnownTask, event: ExternalEvent, sent: bytes, *, is_end: bool, has_subtasks: bool) -> None:
        known.sequence, known.progress = event.sequence, 0
        self._note(known, is_end=is_end, has_subtasks=has_subtasks)
        self._send(sent)

    def _note(self, known: KnownTask, *, is_end: bool, has_subtasks: bool) -> None:
        """Note what the next frame says about a task."""
        known.is_final = is_end
        if has_subtasks or known.rounds:
            self._due[known.task_id] = None
        elif is_end:
            self._close(known)

    def _send(self, sent: bytes) -> None:
        """Send an event under an id with the place of the reader after it."""
        place = self.id_of(self._top.task_id, place_text(self._top))
        self._frames.append(f"id: {place}\nevent: ".encode() + sent.partition(b"event: ")[2])

    def _close(self, known: KnownTask) -> None:
        """Note that a task and all tasks below it were shown to the end."""
        if known.within is None:
            self._is_ended = not self._returned
            return
        for parent in self._open.close(known):
            self._due[parent.task_id] = None
        self._due.pop(known.task_id, None)
        if known.rounds:
            self._feed.forget_subtasks(self._watcher, known.task_id)
        parent = known.within.parent
        if parent.is_final and not parent.has_open:
            self._due[parent.task_id] = None


def _is_reopening(entry: HistoryEntry, sequence: int) -> bool:
    return entry.sequence == sequence and entry.type == "reopened"
