"""The state aggregator: the must-succeed listener that turns an attempt's outcome into the task's next state."""

from __future__ import annotations

from datetime import timedelta

from taskframework import failpoint
from taskframework.bus import EventBus
from taskframework.errors import TaskUnreadableError
from taskframework.model.events import EVENT_OF, AttemptFinished, Settlement, Stale
from taskframework.model.outcome import Failed, Released, Succeeded
from taskframework.model.status import TaskStatus
from taskframework.model.task import HistoryEntry, Task
from taskframework.model.transitions import Complete, Fail, Release, Transition
from taskframework.stores.base import TaskStore

#: What the end of an attempt is called in the history.
_ENDS = frozenset(EVENT_OF) - {"submitted", "started", "cancel_requested", "replayed"}


class StateAggregatorService:
    """Writes outcomes. The event that tells of a move is part of the same write; the bus hears it afterwards."""

    def __init__(self, store: TaskStore, bus: EventBus) -> None:
        self._store = store
        self._bus = bus

    async def hear(self, request: AttemptFinished) -> Settlement | Stale:
        """Store the outcome of an attempt. Asked again because a reply was lost, it answers as it would have then.

        Returns:
            What the attempt ended as; or `Stale` if its lease was lost, and then nothing was written.

        Raises:
            StoreUnavailableError: if the store cannot say whether it was written; ask again.
        """
        await failpoint.reached("settle.before_write")
        transition = _transition(request)
        task = await self._store.apply(transition)
        is_release = isinstance(request.outcome, Released)
        await failpoint.reached("release.after_write" if is_release else "settle.after_write")
        if task is None:
            task = await self._present(request.task.task_id)
            # An attempt settles once: if its claim ended the run, an earlier asking of this very request was applied.
            if task is None or not transition.won(task):
                return _stale(request, task)
        end = _end_of_attempt(request.task, task)
        await self._bus.publish(EVENT_OF[end.type](task))
        return Settlement(_status(end.type), end.sequence)

    async def _present(self, task_id: str) -> Task | None:
        try:
            return await self._store.get(task_id)
        except TaskUnreadableError:  # a newer release has it in hand
            return None


def _stale(request: AttemptFinished, task: Task | None) -> Stale:
    if task is None:
        return Stale(request.task.task_id, request.fence.fencing_token)
    holder = task.lease.worker_id if task.lease else None
    return Stale(task.task_id, request.fence.fencing_token, task.fencing_token, holder)


def _transition(request: AttemptFinished) -> Transition:
    match request.outcome:
        case Succeeded(result):
            return Complete(request.fence, request.worker_id, result)
        case Failed(error, retryable, delay):
            return Fail(request.fence, request.worker_id, error, retryable, delay or timedelta(0))
        case Released():
            return Release(request.fence, request.worker_id)


def _end_of_attempt(claimed: Task, stored: Task) -> HistoryEntry:
    """The entry of this attempt's end: the task may already be further on when it is read back."""
    return next(entry for entry in stored.history if entry.sequence > claimed.sequence and entry.type in _ENDS)


def _status(event: str) -> TaskStatus:
    return TaskStatus.QUEUED if event == "released" else TaskStatus[event.upper()]
