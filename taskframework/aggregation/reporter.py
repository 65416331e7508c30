"""The reporter: counts the sub-tasks of a parent when some have ended, and writes the count into the parent.

It never adds to an old count, so no end can be counted twice or be forgotten. The order of its steps makes it reliable.
First it gets the events of ends. Then it counts, and writes the count into the parent unless another count was written
meanwhile. Only then it says that these ends are reported. Until then the published mark of a sub-task stays below its
end, so that a relay brings the sub-task here again. So a count always follows after the last end.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace

from taskframework import failpoint
from taskframework.background import Background
from taskframework.clock import Clock, happens_within
from taskframework.errors import StoreError
from taskframework.model.events import TaskEvent
from taskframework.model.marks import CountAfterEnd
from taskframework.model.query import RoundOfSubtasks
from taskframework.model.scope import EVERYONE
from taskframework.model.sequences import Sequences, identity_of
from taskframework.model.status import DEAD, TaskStatus
from taskframework.model.subtasks import Counts, Verdict, count_deleted
from taskframework.model.task import Task
from taskframework.model.task_fields import Subtasks
from taskframework.model.waiting import CountSubtasks, is_reopened
from taskframework.model.wording import error_line, pluralize
from taskframework.moves import TaskMoves
from taskframework.stores.base import TaskStore

logger = logging.getLogger(__name__)

#: The pause after a count, as a multiple of the time that a count takes in the database. All processes together keep
#: this pause, so counting takes a fiftieth of one processor, and costs the same per sub-task for 100 as for many. With
#: 20 instead of 50, each of 20,000 sub-tasks took 8 % more processor time.
_PAUSE_PER_COST = 50
#: The same factor for the pause after the first count, when the pace of the sub-tasks is not known yet. Most parents
#: have few sub-tasks, which end during this pause.
_FIRST_PAUSE_PER_COST = 20
#: The same factor for the shortest pause. Pauses are short when the last sub-task is about to end: the parent waits for
#: the count after this end, and the counting process may have the events of only some ends.
_MIN_PAUSE_PER_COST = 4
#: Seconds of the longest pause. The ends that a count reports are marked as published up to two seconds after the count
#: (`MAX_MARK_DELAY`), and five seconds after an end (`RELAY_AFTER`) all relays would publish it again.
_MAX_PAUSE_SECONDS = 1.5
#: Seconds that a count takes, measured on MongoDB 6: to read and write the parent, and for each sub-task in the index.
#: The time of the last count is not used: under load most of this time is waiting, and the pause would be far too long.
_SECONDS_PER_COUNT, _SECONDS_PER_SUBTASK = 1.5e-3, 0.4e-6
#: How often a count begins again because another process wrote a count, or asked for one, meanwhile. After that the
#: repair counts. The pause before each try is longer than the one before by these seconds, 0.4 s all together.
_MAX_COUNT_TRIES, _PAUSE_PER_TRY_SECONDS = 20, 2e-3


@dataclass(frozen=True, slots=True)
class _WrittenCount:
    """A count that this process wrote."""

    #: When it was written, in monotonic seconds.
    written_at: float
    #: How many sub-tasks existed, and how many of them had ended.
    size: int
    done: int
    #: Its number among the counts of all processes.
    serial: int


@dataclass(slots=True)
class _PendingReport:
    """The ends of one parent's sub-tasks whose events came here and that are not reported yet."""

    #: The sub-tasks that ended, each with the sequence of its end.
    ended: dict[Hashable, int] = field(default_factory=dict)
    #: The functions to call when these ends are reported.
    callbacks: list[Callable[[], None]] = field(default_factory=list)
    #: Whether a count was requested without the event of an end.
    is_requested: bool = False
    #: The last two counts, the newer one first.
    last: _WrittenCount | None = None
    previous: _WrittenCount | None = None
    #: How many sub-tasks had not ended at the last count; None if not counted yet, or if the total is not known yet.
    missing: int | None = None
    #: Set when the last sub-task seems to have ended, which ends the pause.
    last_has_ended: asyncio.Event = field(default_factory=asyncio.Event)


class SubtaskReporter:
    """Reports the ends of sub-tasks to their parents."""

    def __init__(self, store: TaskStore, moves: TaskMoves, clock: Clock) -> None:
        self._store = store
        self._moves = moves
        self._clock = clock
        self._parents: dict[str, _PendingReport] = {}
        #: The sub-tasks that were reported last, each with the sequence of its end. The bridge asks for a sub-task
        #: again, after it has published its end.
        self._reported = Sequences()
        self._reporting = Background()
        self._is_finishing = False

    def on_event(self, event: TaskEvent) -> None:
        """Report the end of a task soon, as a listener for the ends of tasks. If the task leaves sub-tasks, count them:
        some may have ended before it, after it had continued without them.
        """
        self.handle_task(event.task)
        if event.task.subtasks is not None and event.task.subtasks.is_open:
            self.request_count(event.task.task_id)

    def handle_task(self, task: Task, on_done: Callable[[], None] | None = None) -> None:
        """Report the end of a sub-task soon.

        Args:
            task: the task that ended; a task without a parent has nothing to report.
            on_done: called when the end is reported; not called if that fails.
        """
        if task.parent is None or self._reported.of(identity_of(task)) >= task.sequence:
            if on_done is not None:
                on_done()
            return
        report = self._pending_report(task.parent.task_id)
        report.ended[identity_of(task)] = task.sequence
        if on_done is not None:
            report.callbacks.append(on_done)
        if report.missing is not None and len(report.ended) >= report.missing:
            report.last_has_ended.set()

    def on_waiting(self, event: TaskEvent) -> None:
        """Count a round without sub-tasks soon, as a listener for tasks that begin to wait: no end will come."""
        if event.task.subtasks is not None and event.task.subtasks.planned == 0:
            self.request_count(event.task.task_id)

    def on_parent_event(self, event: TaskEvent) -> None:
        """Count soon, as a listener for moves of a parent after which its sub-tasks have to be counted."""
        self.request_count(event.task.task_id)

    def request_count(self, parent_id: str) -> None:
        """Count the sub-tasks of a parent soon, without the event of an end."""
        report = self._pending_report(parent_id)
        report.is_requested = True
        report.last_has_ended.set()

    async def finished(self) -> None:
        """Wait until all ends whose events came are reported, or left to the repair; pauses end at once."""
        # Ends that come meanwhile make no pause either: a clock that stands still would never end the pause.
        self._is_finishing = True
        try:
            for report in self._parents.values():
                report.last_has_ended.set()
            await self._reporting.finished()
        finally:
            self._is_finishing = False

    def _pending_report(self, parent_id: str) -> _PendingReport:
        if parent_id not in self._parents:
            self._parents[parent_id] = _PendingReport()
            self._reporting.start(self._run_reports(parent_id), contextvars.Context())
        return self._parents[parent_id]

    async def _run_reports(self, parent_id: str) -> None:
        report = self._parents[parent_id]
        try:
            while True:
                ended, callbacks = report.ended, report.callbacks
                report.ended, report.callbacks, report.is_requested = {}, [], False
                report.last_has_ended.clear()
                await self._count(parent_id, report)
                await failpoint.reached("report.before_mark")
                self._reported.raise_all(ended)
                for on_done in callbacks:
                    on_done()
                if not self._is_finishing:
                    await happens_within(report.last_has_ended, _seconds_of_pause(report), self._clock)
                if not (report.ended or report.is_requested):
                    return
        except StoreError as error:
            logger.info("sub-tasks of task %s are left to the repair: %s", parent_id, error.message)
        except Exception:
            logger.exception("sub-tasks of task %s are left to the repair", parent_id)
        finally:
            del self._parents[parent_id]

    async def _count(self, parent_id: str, report: _PendingReport) -> None:
        """Count the sub-tasks of a parent that waits for them or has ended before them, and write the count."""
        report.missing = None
        for tries in range(_MAX_COUNT_TRIES):
            if tries:
                # Longer each time: a retry of a sub-task refuses the counts under way, and many may be retried.
                await asyncio.sleep(tries * _PAUSE_PER_TRY_SECONDS)
            parent = await self._store.get(parent_id, EVERYONE)
            if parent is None or parent.subtasks is None or not _is_to_count(parent.status, parent.subtasks):
                return
            round = RoundOfSubtasks(parent_id, parent.generation, parent.subtasks.round)
            by_status = await self._store.count_subtasks(round)
            await failpoint.reached("report.after_count")
            counts = Counts.of(by_status)
            if (deleted := count_deleted(parent.subtasks, by_status)) and is_reopened(parent):
                # It may be reopened while the retention deletes its family. Nothing else would ever end it.
                counts = replace(counts, cancelled=counts.cancelled + deleted)
                if counts.cancelled > parent.subtasks.cancelled:  # the first count that finds it says so
                    text = "the retention has deleted %s of task %s, which waits for them: they count as cancelled"
                    logger.warning(text, pluralize(deleted, "sub-task"), parent_id)
            if await self._write_count(parent, parent.subtasks, round, counts):
                planned, done = parent.subtasks.planned, counts.done
                report.missing = None if planned is None else planned - done
                report.previous = report.last
                report.last = _WrittenCount(
                    self._clock.monotonic(), sum(by_status.values()), done, parent.subtasks.report_serial
                )
                return
        raise StoreError(f"The sub-tasks of task {parent_id} are being counted by too many processes at once.")

    async def _write_count(self, parent: Task, subtasks: Subtasks, round: RoundOfSubtasks, counts: Counts) -> bool:
        """Write a count into the parent; return False if another process has written one meanwhile."""
        if parent.status.is_final:
            await self._store.mark(CountAfterEnd(parent.task_id, parent.generation, subtasks.round, counts))
            return True
        count = CountSubtasks.of(parent, counts)
        if count.verdict is Verdict.NOT_MET:
            count = replace(count, failure=await self._first_failure(round))
        return await self._moves.make(count) is not None

    async def _first_failure(self, round: RoundOfSubtasks) -> str:
        """A sentence about the failed sub-task with the lowest slot; empty if all others were cancelled."""
        for task in await self._store.list_subtasks(round, limit=1, statuses=DEAD):
            if task.error is not None and task.parent is not None:
                return f"Sub-task {task.task_id}, slot {task.parent.slot}, failed: {error_line(task.error)}."
        return ""


def _is_to_count(status: TaskStatus, subtasks: Subtasks) -> bool:
    return subtasks.is_open if status.is_final else status is TaskStatus.WAITING and subtasks.is_awaited


def _seconds_of_pause(report: _PendingReport) -> float:
    """Return how long to pause after a count: at most as long as the other sub-tasks take at the present pace."""
    last, previous = report.last, report.previous
    cost = _SECONDS_PER_COUNT + (0 if last is None else _SECONDS_PER_SUBTASK * last.size)
    if last is None or previous is None:
        return min(_FIRST_PAUSE_PER_COST * cost, _MAX_PAUSE_SECONDS)
    counts = max(1, last.serial - previous.serial)  # the counts of all processes since the previous one
    longest, ended = min(_PAUSE_PER_COST * cost * counts, _MAX_PAUSE_SECONDS), last.done - previous.done
    if report.missing is None or ended <= 0:
        return longest
    rest = report.missing * (last.written_at - previous.written_at) / ended
    return min(longest, max(_MIN_PAUSE_PER_COST * cost, rest))
