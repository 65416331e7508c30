"""The repair of schedules: any process that sees a due schedule submits its run and moves the schedule on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from taskframework import failpoint
from taskframework.errors import (
    IdempotencyConflictError,
    InvalidRequestError,
    StoreUnavailableError,
    SubmissionError,
    TaskframeworkError,
)
from taskframework.model.idempotency import key_id
from taskframework.model.interventions import Cancel
from taskframework.model.records import Record
from taskframework.model.schedules import (
    SCHEDULE,
    LastRun,
    Overlap,
    RunProblem,
    Schedule,
    run_key,
    runs_due,
    with_last_run,
    with_next_run,
)
from taskframework.model.scope import EVERYONE
from taskframework.moves import TaskMoves
from taskframework.schedules import all_schedules, change_schedule, load_zone
from taskframework.stores.base import TaskStore
from taskframework.stores.reading import read_record
from taskframework.submission.schedules import run_request
from taskframework.submission.service import Submission, TaskSubmissionService

logger = logging.getLogger(__name__)


class ScheduleRepair:
    """Looks for schedules that are due.

    Several processes may see the same schedule. They submit its run with the same key, so there is one task, and only
    one of them moves the schedule on.
    """

    def __init__(self, store: TaskStore, moves: TaskMoves, submission: TaskSubmissionService, limit: int) -> None:
        """Prepare to look; `limit` limits the schedules that run at once, and the runs of one schedule at once."""
        self._store = store
        self._moves = moves
        self._submission = submission
        self._limit = limit

    async def run_once(self) -> bool:
        """Run the schedules that are due.

        Returns:
            Whether there is more to do: a schedule catches up with many missed runs in parts.
        """
        now = self._store.now()
        due = [record for record in await all_schedules(self._store) if _is_due(record, now)]
        has_more = False
        for at in range(0, len(due), self._limit):
            runs = (self._run(record, now) for record in due[at : at + self._limit])
            for outcome in await asyncio.gather(*runs, return_exceptions=True):  # wait for all, even if one fails
                if isinstance(outcome, BaseException):
                    raise outcome
                has_more |= outcome
        return has_more

    async def _run(self, record: Record, now: datetime) -> bool:
        try:
            return await self._run_due(record, now)
        except StoreUnavailableError:
            raise
        except Exception as error:  # the other schedules must still run
            is_unknown = not isinstance(error, TaskframeworkError)
            logger.warning("%s cannot run now: %s", record.id, error, exc_info=is_unknown)
            return False

    async def _run_due(self, record: Record, now: datetime) -> bool:
        schedule = SCHEDULE.content(record)
        try:
            await load_zone(schedule.timezone)
        except InvalidRequestError as error:
            await self._record_problem(record, str(error))
            return False
        # If the overlap policy depends on the last run, that run is read before each new one, so only one is made now.
        due = runs_due(schedule, now, self._limit if schedule.overlap is Overlap.ALLOW else 1)
        after = await self._submit_runs(schedule, due.times) if due.times else schedule
        await failpoint.reached("schedule.after_submit")
        after = with_next_run(after, due.last)
        [written] = await self._store.write_records([SCHEDULE.changed(record, after)])
        if written is None and after.last_run is not None:
            await self._record_last_run(schedule.name, after.last_run)
        return after.is_due(now)

    async def _record_problem(self, record: Record, message: str) -> None:
        """Record why a schedule cannot be moved on here. Another process may be able to move it on, so it stays due."""
        schedule = SCHEDULE.content(record)
        if schedule.problem is None or schedule.problem.message != message:
            logger.warning("schedule %s cannot run here: %s", schedule.name, message)
            problem = RunProblem(self._store.now(), message)
            await self._store.write_records([SCHEDULE.changed(record, replace(schedule, problem=problem))])

    async def _record_last_run(self, name: str, last: LastRun) -> None:
        """Record the run that was submitted here, because another process moved the schedule on, maybe without it."""
        await change_schedule(self._store, name, lambda present: present and with_last_run(present, last))

    async def _submit_runs(self, schedule: Schedule, times: Sequence[datetime]) -> Schedule:
        """Submit the runs for these times, or skip them; return the schedule after that."""
        if not await self._may_run(schedule, times[0]):
            logger.info("schedule %s skips a run: the task of the previous run has not ended", schedule.name)
            return schedule
        requests = [run_request(schedule, run_key(schedule.name, at)) for at in times]
        for at, outcome in zip(times, await self._submission.submit_many(requests), strict=True):
            schedule = _after_run(schedule, at, outcome)
        return schedule

    async def _may_run(self, schedule: Schedule, at: datetime) -> bool:
        """Return whether the overlap policy lets the run for a time begin beside the last run, or in its place."""
        if schedule.overlap is Overlap.ALLOW or schedule.last_run is None:
            return True
        task_id = schedule.last_run.task_id
        last = await self._store.get(task_id, EVERYONE)
        if last is None or last.status.is_final:
            return True
        if await read_record(self._store, key_id(schedule.user_id, run_key(schedule.name, at))) is not None:
            return True  # submitted before: somebody changed the schedule after that, so it was not moved on
        if schedule.overlap is Overlap.CANCEL_PREVIOUS:
            reason = f"The next run of the schedule {schedule.name} has come."
            await self._moves.repair(Cancel(task_id, EVERYONE, f"schedule/{schedule.name}", reason))
            return True
        return False


def _after_run(schedule: Schedule, at: datetime, outcome: Submission | Exception) -> Schedule:
    """Return the schedule after the run for a time.

    A refused run is noted in the schedule and skipped: submitting it again each second would not help.

    Raises:
        Exception: the outcome, if the run was neither accepted nor refused; then the run is submitted again.
    """
    match outcome:
        case Submission(is_new=True):
            return replace(schedule, last_run=LastRun(at, outcome.task.task_id), problem=None)
        case Submission():
            return with_last_run(schedule, LastRun(at, outcome.task.task_id))
        case IdempotencyConflictError():  # submitted before the schedule was changed
            return with_last_run(schedule, LastRun(at, outcome.task_id))
        case SubmissionError():
            logger.warning("schedule %s cannot run: %s", schedule.name, outcome.message)
            return replace(schedule, problem=RunProblem(at, str(outcome)))
    raise outcome


def _is_due(record: Record, now: datetime) -> bool:
    return SCHEDULE.is_readable(record) and SCHEDULE.content(record).is_due(now)
