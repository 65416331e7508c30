"""Makes, shows, changes and deletes schedules, and runs a schedule now."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from taskframework.durations import format_duration
from taskframework.errors import InvalidRequestError, SubmissionError, TaskUnreadableError
from taskframework.model.query import Page
from taskframework.model.schedules import (
    MAX_SCHEDULES,
    SCHEDULE,
    LastRun,
    Schedule,
    key_of_run_now,
    next_runs,
    redefine_schedule,
    start_schedule,
    with_last_run,
)
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.model.task import Task
from taskframework.model.view import format_time
from taskframework.operations.schedule_errors import (
    ScheduleExistsError,
    ScheduleFromSettingsError,
    ScheduleNotFoundError,
    TooManySchedulesError,
)
from taskframework.schedules import all_schedules, change_schedule, load_zone, read_schedule
from taskframework.stores.base import TaskStore
from taskframework.stores.reading import read_all_contents, read_page
from taskframework.submission.schedules import (
    ScheduleDefinition,
    accept_schedule,
    parse_settings,
    run_request,
    settings_error,
)
from taskframework.submission.service import Submission, TaskSubmissionService
from taskframework.submission.types import TaskTypes

logger = logging.getLogger(__name__)

#: How many of the next runs are shown.
_SHOWN_RUNS = 5


@dataclass(frozen=True, slots=True)
class SeenSchedule:
    """A schedule, and the status of its last run."""

    schedule: Schedule
    #: The status of the task of its last run; None if there was no run, or its task is not stored any more.
    last_status: TaskStatus | None = None

    def view(self) -> dict[str, Any]:
        """Return the schedule as plain JSON; of its next runs only the first."""
        view = schedule_view(self.schedule)
        if view["last_run"] is not None:
            view["last_run"]["status"] = self.last_status and self.last_status.value
        return view


def schedule_view(schedule: Schedule) -> dict[str, Any]:
    """Return a stored schedule as plain JSON."""
    last, problem = schedule.last_run, schedule.problem
    return {
        "name": schedule.name,
        "cron": schedule.cron,
        "every": None if schedule.every is None else format_duration(schedule.every),
        "timezone": schedule.timezone,
        "task_type": schedule.task_type,
        "parameters": schedule.parameters,
        "user_id": schedule.user_id,
        "missed": schedule.missed.value,
        "overlap": schedule.overlap.value,
        "jitter": format_duration(schedule.jitter),
        "is_paused": schedule.is_paused,
        "is_from_settings": schedule.is_from_settings,
        "next_run_at": None if schedule.is_paused else format_time(schedule.due_at),
        "last_run": last and {"at": format_time(last.at), "task_id": last.task_id},
        "problem": problem and {"at": format_time(problem.at), "message": problem.message},
    }


class ScheduleOperations:
    """The operations on schedules. A schedule has no owner: callers who may use these operations see all schedules."""

    def __init__(self, store: TaskStore, types: TaskTypes, submission: TaskSubmissionService) -> None:
        self._store = store
        self._types = types
        self._submission = submission

    async def list_schedules(self, *, limit: int, after: str | None = None) -> Page[SeenSchedule]:
        """Return schedules in the order of their names, from the first after `after`."""
        page = await read_page(self._store, SCHEDULE, limit=limit, after=after)
        return Page(await self._with_statuses(*page.items), page.next_cursor)

    async def get(self, name: str) -> Schedule:
        """Read one schedule.

        Raises:
            ScheduleNotFoundError: if there is no schedule with this name.
        """
        record = await read_schedule(self._store, name)
        if record is None:
            raise ScheduleNotFoundError(name)
        return SCHEDULE.content(record)

    async def view(self, schedule: Schedule) -> dict[str, Any]:
        """Return one schedule as plain JSON, with its next runs; without them if its time zone is unknown here."""
        [seen] = await self._with_statuses(schedule)
        try:
            await load_zone(schedule.timezone)
            runs = next_runs(schedule, _SHOWN_RUNS)
        except InvalidRequestError:
            runs = []
        return seen.view() | {"next_runs": [format_time(time) for time in runs]}

    async def create(self, name: str, definition: ScheduleDefinition) -> Schedule:
        """Make a schedule.

        Raises:
            ScheduleExistsError: if there is a schedule with this name.
            TooManySchedulesError: if there are too many schedules.
            SubmissionError: if the definition is wrong.
        """
        wanted = await self._accept(name, definition)

        def made(present: Schedule | None) -> Schedule:
            if present is not None:
                raise ScheduleExistsError(name)
            return wanted

        await self._require_room()
        return _require_found(await change_schedule(self._store, name, made), name)

    async def put(self, name: str, definition: ScheduleDefinition) -> Schedule:
        """Replace the definition of a schedule. The time of its next run stays, unless the rule itself changes.

        Raises:
            ScheduleNotFoundError: if there is no schedule with this name.
            ScheduleFromSettingsError: if the schedule comes from the settings.
            SubmissionError: if the definition is wrong.
        """
        await self.get(name)
        wanted = await self._accept(name, definition)
        defined = await change_schedule(
            self._store,
            name,
            lambda present: _with_definition(_require_editable(_require_found(present, name)), wanted, definition),
        )
        return _require_found(defined, name)

    async def delete(self, name: str) -> None:
        """Delete a schedule. Tasks that it has submitted stay.

        Raises:
            ScheduleNotFoundError: if there is no schedule with this name.
            ScheduleFromSettingsError: if the schedule comes from the settings.
        """

        def require_editable(present: Schedule | None) -> None:
            _require_editable(_require_found(present, name))

        await change_schedule(self._store, name, require_editable)

    async def pause(self, name: str) -> Schedule:
        """Pause a schedule. A schedule that is paused already stays as it is.

        Raises:
            ScheduleNotFoundError: if there is no schedule with this name.
        """
        paused = await change_schedule(
            self._store, name, lambda present: replace(_require_found(present, name), is_paused=True)
        )
        return _require_found(paused, name)

    async def resume(self, name: str) -> Schedule:
        """Resume a schedule. Runs that would have been due during the pause do not count as missed.

        Raises:
            ScheduleNotFoundError: if there is no schedule with this name.
        """
        await load_zone((await self.get(name)).timezone)

        def resumed(present: Schedule | None) -> Schedule:
            found = _require_found(present, name)
            return start_schedule(replace(found, is_paused=False), self._store.now()) if found.is_paused else found

        return _require_found(await change_schedule(self._store, name, resumed), name)

    async def run(self, name: str, *, key: str | None = None) -> Submission:
        """Submit the task of a schedule now, even if the last run has not ended or the schedule is paused.

        Args:
            name: the name of the schedule.
            key: a second call with the same key returns the same run; without a key each call makes a new run.

        Raises:
            ScheduleNotFoundError: if there is no schedule with this name.
            SubmissionError: if the task cannot be submitted.
        """
        schedule = await self.get(name)
        run = None if key is None else key_of_run_now(name, key)
        submission = await self._submission.submit(run_request(schedule, run))
        # Also after a repetition: the first call may have died before it recorded the run.
        last = LastRun(submission.task.created_at, submission.task.task_id)
        await change_schedule(self._store, name, lambda present: present and with_last_run(present, last))
        return submission

    async def apply(self, named: Mapping[str, Any]) -> None:
        """Make the stored schedules as the settings define them. Schedules with other names that were made by hand
        stay.

        Args:
            named: the definitions in the settings, by name.

        Raises:
            ConfigurationError: if one of the definitions is wrong.
        """
        definitions = parse_settings(named)
        wanted = {name: await self._from_settings(name, definition) for name, definition in definitions.items()}
        for name, schedule in wanted.items():
            await self._apply(schedule, definitions[name])
        for present in await read_all_contents(self._store, SCHEDULE):
            if present.is_from_settings and present.name not in wanted:
                await change_schedule(self._store, present.name, _delete_if_from_settings)
                logger.info("schedule %s is no longer in the settings: removed", present.name)

    async def _apply(self, wanted: Schedule, definition: ScheduleDefinition) -> None:
        def defined(present: Schedule | None) -> Schedule:
            return wanted if present is None else _with_definition(present, wanted, definition)

        await change_schedule(self._store, wanted.name, defined)

    async def _from_settings(self, name: str, definition: ScheduleDefinition) -> Schedule:
        now = self._store.now()
        try:
            return await accept_schedule(self._types, name, definition, now, is_from_settings=True)
        except SubmissionError as error:
            raise settings_error(name, error) from error

    async def _accept(self, name: str, definition: ScheduleDefinition) -> Schedule:
        return await accept_schedule(self._types, name, definition, self._store.now())

    async def _with_statuses(self, *schedules: Schedule) -> tuple[SeenSchedule, ...]:
        tasks = {schedule.name: schedule.last_run.task_id for schedule in schedules if schedule.last_run}
        found: Mapping[str, Task] = {}
        with contextlib.suppress(TaskUnreadableError):  # a newer release wrote one: then no status is shown
            found = await self._store.get_many(set(tasks.values()), EVERYONE)
        statuses = {name: found[task_id].status for name, task_id in tasks.items() if task_id in found}
        return tuple(SeenSchedule(schedule, statuses.get(schedule.name)) for schedule in schedules)

    async def _require_room(self) -> None:
        """Refuse a schedule beyond the limit. If several are made at once, a few may exceed the limit."""
        if len(await all_schedules(self._store)) >= MAX_SCHEDULES:
            raise TooManySchedulesError


def _require_found(schedule: Schedule | None, name: str) -> Schedule:
    if schedule is None:
        raise ScheduleNotFoundError(name)
    return schedule


def _require_editable(schedule: Schedule) -> Schedule:
    """Return the schedule, if it may be changed here."""
    if schedule.is_from_settings:
        raise ScheduleFromSettingsError(schedule.name)
    return schedule


def _delete_if_from_settings(schedule: Schedule | None) -> Schedule | None:
    """Return None, to delete a schedule that the settings no longer name, unless it was made by hand meanwhile."""
    return None if schedule is None or schedule.is_from_settings else schedule


def _with_definition(present: Schedule, wanted: Schedule, definition: ScheduleDefinition) -> Schedule:
    """Return the present schedule with a new definition; its pause stays if the definition does not mention it."""
    is_paused = present.is_paused if definition.is_paused is None else definition.is_paused
    return redefine_schedule(present, replace(wanted, is_paused=is_paused))
