"""Following a task and everything below it: of each task each event once and in order, wherever the reader was cut.

What is heard is told as it comes if it is the next of a task that is open. Whatever else is heard is a reason to look:
the store is read, and the reader is told what it does not have.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Collection
from typing import Any, ClassVar

from taskframework.api import following
from taskframework.api.feed import Feed, Heard, Watcher, event_frame, frame
from taskframework.api.following import FINAL_TYPES, HEARTBEAT, RESYNC, missed_events
from taskframework.api.places import KnownRound, KnownTask, place_text
from taskframework.errors import StoreError
from taskframework.events.external import PREFIX, ExternalEvent
from taskframework.model.scope import Scope
from taskframework.model.status import TaskStatus
from taskframework.model.task import Task
from taskframework.model.view import public_view
from taskframework.stores.base import TaskStore

logger = logging.getLogger(__name__)

#: Sub-tasks that are read together.
_PAGE = 100
#: Seconds until a store that was away is asked again.
_PAUSE = 1.0
#: What leads a task out of its end.
_RETURNS = frozenset({PREFIX + "replayed", PREFIX + "reopened"})


class TreeFollower:
    """Where one stream is in the life of a task and of all below it."""

    #: Names the stream in its ids.
    kind: ClassVar[str] = "tree"
    #: Sub-tasks that are told of at a time and not to their end. Some are let in beyond that, so that the first in the
    #: plan always go on.
    most_open: ClassVar[int] = 256
    #: Sub-tasks in these statuses are told of; None: in any.
    statuses: ClassVar[Collection[TaskStatus] | None] = None

    def __init__(
        self,
        followed: str | KnownTask,
        feed: Feed,
        watcher: Watcher,
        store: TaskStore,
        scope: Scope,
        source: str,
        view: Callable[[Task], dict[str, Any]] = public_view,
    ) -> None:
        """Begin to follow.

        Args:
            followed: what the reader knows of the task; of one that knows nothing only the task's id.
            feed: lets the watcher hear sub-tasks.
            watcher: what is heard from now on; it has joined for the task.
            store: asked at first and when something was missed.
            scope: whose tasks the client may see.
            source: the installation, as the events name it.
            view: what a snapshot shows of the task that is followed.
        """
        self._top = KnownTask(followed) if isinstance(followed, str) else followed
        self._is_new = isinstance(followed, str)
        self._feed = feed
        self._watcher = watcher
        self._store = store
        self._scope = scope
        self._source = source
        self._view = view
        #: The tasks that are open, by id.
        self._known = {known.task_id: known for known in self._top.all()}
        #: Tasks to look at in the store, in that order; with the event that was heard of one that is not open.
        self._due: dict[str, int] = dict.fromkeys(self._known, 0)
        #: Rounds with a sub-task, in this slot, for which there was no room.
        self._held: dict[KnownRound, int] = {}
        self._frames: list[bytes] = []
        self._is_ended = False
        self._is_store_away = False
        for known in self._known.values():
            if known.rounds:
                feed.watch_subtasks(watcher, known.task_id)

    @classmethod
    def id_of(cls, task_id: str, place: str) -> str:
        """The id of an event of this stream."""
        return f"{task_id}-{cls.kind}-{place}"

    async def begin(self) -> None:
        """Look at the store until there is something to tell, or everything was looked at.

        Raises:
            StoreError: if the store cannot tell.
        """
        while self._due and not self._frames and not self._is_ended:
            await self._look_at(next(iter(self._due)))

    @property
    def has_nothing(self) -> bool:
        """Whether the client knows all there is, and nothing more will come."""
        return self._is_ended and not self._frames

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """What to send, until the task and all below it are final, the watcher is over, or the task is gone."""
        yield self._taken() or HEARTBEAT
        while not self._is_ended:
            heard = await self._watcher.take(self._patience())
            if not heard and self._watcher.is_over:
                break
            for one in heard:
                self._hear(one)
            is_silent = not heard and not self._due
            await self._look(is_silent)
            if told := self._taken() or (HEARTBEAT if is_silent or self._is_store_away else b""):
                yield told
        if self._watcher.is_behind and not self._is_ended:
            yield RESYNC

    def _taken(self) -> bytes:
        frames, self._frames = self._frames, []
        return b"".join(frames)

    def _patience(self) -> float:
        if not self._due:
            return following.HEARTBEAT_SECONDS
        return _PAUSE if self._is_store_away else 0

    # What is heard

    def _hear(self, heard: Heard) -> None:
        event = heard.event
        if not self._is_ended and (known := self._known.get(event.task_id) or self._newcomer(event)) is not None:
            self._take(known, heard)

    def _take(self, known: KnownTask, heard: Heard) -> None:
        """Tell what was heard of an open task if it comes next."""
        event = heard.event
        if event.sequence > known.sequence + (event.progress_revision is None):
            self._due[known.task_id] = 0
        elif event.progress_revision is None:
            if event.sequence > known.sequence:
                is_end = event.type in FINAL_TYPES
                self._tell(known, event, heard.frame, is_end=is_end, has_subtasks=bool(event.data.get("subtasks")))
        elif event.sequence == known.sequence and event.progress_revision > known.progress:
            known.progress = event.progress_revision
            self._send(heard.frame)

    def _newcomer(self, event: ExternalEvent) -> KnownTask | None:
        """The sub-task of an open task that begins with this event; None if its turn has not come, or is over."""
        parent = self._known.get(str(event.data.get("parent_task_id")))
        if parent is None or not self._matters(event):
            return None
        if not parent.rounds:
            self._due[parent.task_id] = 0
            return None
        newest = parent.rounds[-1]
        slot = newest.slot_ahead(event.task_id, self.most_open)
        if slot is not None and self._is_first_news(event) and self._fits(newest, slot):
            return self._begun(newest, slot)
        if slot is None and event.type in _RETURNS:
            self._due.setdefault(event.task_id, event.sequence)
        elif newest not in self._held and not newest.is_whole:
            self._due[parent.task_id] = 0
        return None

    def _matters(self, event: ExternalEvent) -> bool:
        """Whether the reader is to hear of this event of a sub-task."""
        return True

    def _is_first_news(self, event: ExternalEvent) -> bool:
        """Whether a sub-task can begin with this event."""
        return event.sequence == 1 and event.progress_revision is None

    # What the store says

    async def _look(self, is_silent: bool) -> None:
        try:
            if is_silent:
                await self._look_around()
            elif self._due:
                await self._look_at(next(iter(self._due)))
            self._is_store_away = False
        except StoreError as error:
            self._is_store_away = True
            logger.debug("task %s: %s", self._top.task_id, error.message)

    async def _look_around(self) -> None:
        """Silence is when the store is asked: whatever was lost on its way here, the stream still ends."""
        resting = [known.task_id for known in self._known.values() if not known.rounds]
        ended = await self._store.finished_at(resting) if resting else {}
        self._due |= {known.task_id: 0 for known in self._known.values() if known.rounds or known is self._top}
        self._due |= {task_id: 0 for task_id, at in ended.items() if at is not None}

    async def _look_at(self, task_id: str) -> None:
        """Tell what the reader does not have of a due task."""
        task = await self._store.get(task_id, self._scope)
        known = self._known.get(task_id)
        if known is None:
            self._return(task, self._due.pop(task_id))
        elif task is None:
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
            # Only now: if the store was away in between, the task is still due. So it is if there are more pages.
            if all(round.is_listed or round in self._held for round in known.rounds):
                self._due.pop(task_id, None)
            known.forget_rounds()
        self._is_new = self._is_new and bool(self._due)

    def _enter(self, known: KnownTask, task: Task) -> None:
        if task.subtasks is not None:
            known.enter(task.generation, task.subtasks.round)
            known.rounds[-1].planned = task.subtasks.planned
            self._feed.watch_subtasks(self._watcher, known.task_id)

    async def _list(self, round: KnownRound, task: Task) -> None:
        """Tell of sub-tasks of which nothing was told, as far as a page and the room go."""
        now_in = (task.generation, task.subtasks.round) if task.subtasks is not None else None
        is_left = now_in != (round.generation, round.number) or task.status is not TaskStatus.WAITING
        if is_left and task.cascade_at is None:
            self._leave(round)
        if round.is_whole:
            round.is_listed = True
            return
        found = await self._store.list_subtasks(
            round.key, limit=_PAGE, after_slot=round.told - 1, statuses=self.statuses
        )
        round.is_listed = len(found) < _PAGE
        self._held.pop(round, None)
        for subtask in found:
            assert subtask.parent is not None, "it was found by its parent"
            if round.is_left and self.statuses is None:
                round.told = max(round.told, subtask.parent.slot)  # what was to be in between never came to be
            if not self._fits(round, subtask.parent.slot):
                self._held[round], round.is_listed = subtask.parent.slot, False
                return
            self._tell_missed(self._begun(round, subtask.parent.slot), subtask)

    def _leave(self, round: KnownRound) -> None:
        """No more sub-tasks of this round come to be; those that are told of and are not there never will."""
        if not round.is_left:
            round.is_left = True
            self._due |= {known.task_id: 0 for known in round.open.values() if known.sequence == 0}

    def _gone(self, known: KnownTask) -> None:
        self._due.pop(known.task_id)
        if known.within is None:
            self._resync()
        elif known.sequence or known.within.is_left:
            self._close(known)

    def _return(self, task: Task | None, sequence: int) -> None:
        """Tell of a sub-task again that had ended, from the event on that led it out of its end."""
        link = task.parent if task is not None else None
        parent = self._known.get(link.task_id) if link is not None else None
        if task is None or link is None or parent is None:
            return
        for round in parent.rounds:
            if round.is_of(link) and link.slot < round.told and link.slot not in round.open:
                if len(self._known) > 2 * self.most_open:
                    self._resync()
                    return
                known = self._known[task.task_id] = round.reopen(link.slot, sequence - 1)
                self._tell_missed(known, task)

    def _resync(self) -> None:
        self._frames.append(RESYNC)
        self._is_ended = True

    # What is told

    def _tell_missed(self, known: KnownTask, task: Task) -> bool:
        """Tell what the reader does not have of a task as it was read; whether what is below it is to be told, too."""
        missed = None
        if known.sequence or not self._is_new:
            missed = missed_events(task, known.sequence, known.progress, self._source)
        if missed is None:
            known.sequence, known.progress = task.sequence, task.progress_revision
            self._told(known, is_end=task.status.is_final, has_subtasks=task.subtasks is not None)
            self._send(frame("snapshot", self._view(task) if known is self._top else public_view(task)))
        for event in missed or ():
            if event.progress_revision is not None:
                known.progress = event.progress_revision
                self._send(event_frame(event))
            else:
                is_end = task.status.is_final and event.sequence == task.sequence
                self._tell(known, event, event_frame(event), is_end=is_end, has_subtasks=task.subtasks is not None)
        return known.task_id in self._known

    def _tell(self, known: KnownTask, event: ExternalEvent, sent: bytes, *, is_end: bool, has_subtasks: bool) -> None:
        known.sequence, known.progress = event.sequence, 0
        self._told(known, is_end=is_end, has_subtasks=has_subtasks)
        self._send(sent)

    def _told(self, known: KnownTask, *, is_end: bool, has_subtasks: bool) -> None:
        """Take note of what the next frame tells of a task."""
        known.is_final = is_end
        if has_subtasks or known.rounds:
            self._due[known.task_id] = 0
        elif is_end:
            self._close(known)

    def _send(self, sent: bytes) -> None:
        """Send an event under an id that says what the reader has then."""
        place = self.id_of(self._top.task_id, place_text(self._top))
        self._frames.append(f"id: {place}\nevent: ".encode() + sent.partition(b"event: ")[2])

    # What is open

    def _begun(self, round: KnownRound, slot: int) -> KnownTask:
        first = round.told
        begun = round.begin(slot)
        self._known |= {round.open[one].task_id: round.open[one] for one in range(first, slot + 1)}
        return begun

    def _close(self, known: KnownTask) -> None:
        """The reader was told of a task and of all below it to the end."""
        if known.within is None:
            self._is_ended = True
            return
        known.close()
        del self._known[known.task_id]
        self._due.pop(known.task_id, None)
        if known.rounds:
            self._feed.forget_subtasks(self._watcher, known.task_id)
        parent = known.within.parent
        if parent.is_final and not parent.has_open:
            self._due[parent.task_id] = 0
        self._let_in()

    def _let_in(self) -> None:
        """Look again where there was no room, once there is much; at once for the first in the plan."""
        is_roomy = len(self._known) <= self.most_open * 3 // 4
        for round, slot in self._held.items():
            if (is_roomy or round.parent is self._first()) and self._fits(round, slot):
                self._due[round.parent.task_id] = 0

    def _fits(self, round: KnownRound, slot: int) -> bool:
        more = slot - round.told + 1
        if len(self._known) + more <= self.most_open + 1:
            return True
        return more == 1 and not round.parent.has_open and round.parent is self._first()

    def _first(self) -> KnownTask:
        """Of the tasks without an open one below, the first in the plan."""
        known = self._top
        while (begun := next((round for round in known.rounds if round.open), None)) is not None:
            known = begun.open[min(begun.open)]
        return known
