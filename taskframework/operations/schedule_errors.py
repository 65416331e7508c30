"""Why an operation on a schedule is refused."""

from __future__ import annotations

from taskframework.errors import SubmissionError, TaskframeworkError
from taskframework.model.schedules import MAX_SCHEDULES


class ScheduleNotFoundError(TaskframeworkError):
    """There is no such schedule."""

    code = "schedule_not_found"
    hint = "List the schedules to see their names."

    def __init__(self, name: str) -> None:
        super().__init__(f"There is no schedule {name[:100]!r}.")


class ScheduleExistsError(SubmissionError):
    """There is a schedule of this name."""

    code = "schedule_exists"
    hint = "Choose another name, or change the existing schedule."

    def __init__(self, name: str) -> None:
        super().__init__(f"There is already a schedule {name!r}.")


class ScheduleFromSettingsError(SubmissionError):
    """The schedule comes from the settings."""

    code = "schedule_from_settings"
    hint = "Change it in the section schedules of the settings and restart a worker; here it can be paused and run."

    def __init__(self, name: str) -> None:
        super().__init__(f"The schedule {name!r} comes from the settings.")


class TooManySchedulesError(SubmissionError):
    """There are as many schedules as there may be."""

    code = "too_many_schedules"
    hint = "Delete unneeded schedules, or let one task submit several others."

    def __init__(self) -> None:
        super().__init__(f"There are already {MAX_SCHEDULES:,} schedules, the limit.")
