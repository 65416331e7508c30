"""The state aggregator: the must-succeed listener that turns an attempt's outcome into the task's next state."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

from taskframework import failpoint
from taskframework.model.attempts import Complete, Fail, Release
from taskframework.model.events import AttemptFinished, Settlement, Stale, end_of_attempt
from taskframework.model.outcome import Failed, Released, Succeeded, Waits
from taskframework.model.status import TaskStatus
from taskframework.model.task import Task
from taskframework.model.transitions import Move
from taskframework.model.waiting import Wait
from taskframework.moves import NotMade, TaskMoves


class StateAggregatorService:
    """Writes outcomes. The event is part of the same write, and is published on the bus afterwards."""

    def __init__(self, moves: TaskMoves) -> None:
        self._moves = moves

    async def on_attempt_finished(self, request: AttemptFinished) -> Settlement | Stale:
        """Store the outcome of an attempt. A request that is repeated after a lost reply gets the first answer.

        Returns:
            The status with which the attempt ended; or `Stale` if its lease was lost, and then nothing was written.

        Raises:
            StoreUnavailableError: if it is not known whether the outcome was written; ask again.
        """
        await failpoint.reached("settle.before_write")
        made = await self._moves.make_once(_move_for(request), partial(end_of_attempt, request.task))
        if isinstance(made, NotMade):
            return _stale_by(made.present)
        return Settlement(_status(made.entry.type))


def _stale_by(present: Task | None) -> Stale:
    if present is None:
        return Stale()
    holder = present.lease.worker_id if present.lease else None
    return Stale(present.fencing_token, holder)


def _move_for(request: AttemptFinished) -> Move:
    match request.outcome:
        case Succeeded(result):
            return Complete(request.fence, request.worker_id, result)
        case Failed(error, retryable, delay):
            return Fail(request.fence, request.worker_id, error, retryable, delay or timedelta(0))
        case Waits(subtasks, signal, timeout, result):
            return Wait(request.fence, request.worker_id, subtasks, signal, timeout, result)
        case Released():
            return Release(request.fence, request.worker_id)


def _status(event: str) -> TaskStatus:
    return TaskStatus.QUEUED if event == "released" else TaskStatus[event.upper()]
