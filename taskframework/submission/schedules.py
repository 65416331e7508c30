"""Definitions of schedules and their checks: the same for HTTP, the command line and the settings."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from taskframework.durations import Duration
from taskframework.errors import (
    WHOLE,
    ConfigurationError,
    InvalidRequestError,
    SubmissionError,
    UnknownTaskTypeError,
    ValueNotStorableError,
)
from taskframework.model.recurrence import MAX_CRON_CHARACTERS, check_cron
from taskframework.model.schedules import DEFAULT_USER, MAX_SCHEDULES, Missed, Overlap, Schedule, start_schedule
from taskframework.model.values import MAX_NAME_LENGTH, Json, problem
from taskframework.names import NAME
from taskframework.schedules import load_zone, require_zone
from taskframework.submission.options import Name
from taskframework.submission.requests import SubmitRequest
from taskframework.submission.types import TaskTypes
from taskframework.tasks.values import storable_parameters

#: The most bytes of the parameters as JSON. The limit is low because each look for due schedules reads all parameters.
MAX_SCHEDULE_BYTES = 16 * 1024
#: Bounds of `every`, and of `jitter`.
_MIN_EVERY, _MAX_EVERY = timedelta(seconds=1), timedelta(days=3660)
_MAX_JITTER = timedelta(days=1)


def _whole_milliseconds(length: timedelta) -> timedelta:
    return timedelta(milliseconds=length // timedelta(milliseconds=1))


def _require_between(shortest: timedelta, longest: timedelta, words: str) -> AfterValidator:
    def check(length: timedelta) -> timedelta:
        if not shortest <= length <= longest:
            raise ValueError(f"must be {words}")
        return _whole_milliseconds(length)

    return AfterValidator(check)


_Cron = Annotated[
    str, AfterValidator(check_cron), Field(strict=True, json_schema_extra={"maxLength": MAX_CRON_CHARACTERS})
]
_Every = Annotated[Duration, _require_between(_MIN_EVERY, _MAX_EVERY, "from one second to ten years")]
_Jitter = Annotated[Duration, _require_between(timedelta(0), _MAX_JITTER, "at most a day")]


class ScheduleDefinition(BaseModel):
    """What is to be submitted, and when: `cron` or `every`."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        json_schema_extra={
            "examples": [
                {"task_type": "count-words", "parameters": {"text": "one"}, "cron": "30 2 * * *", "timezone": "UTC"}
            ]
        },
    )

    task_type: str = Field(max_length=MAX_NAME_LENGTH, strict=True, description="A registered task type")
    parameters: Any = Field(default=None, description="Parameters of each run, at most 16 KiB")
    user_id: Name = Field(default=DEFAULT_USER, description="Owner of the tasks")
    cron: _Cron | None = Field(
        default=None,
        description="Minute, hour, day of month, month, day of week, such as `30 2 * * MON-FRI`",
        examples=["30 2 * * MON-FRI"],
    )
    every: _Every | None = Field(
        default=None,
        description="Interval such as `15m`, counted from its creation, its last resume or last change of times",
        examples=["15m"],
    )
    timezone: str = Field(
        default="UTC",
        max_length=100,
        strict=True,
        description="Time zone of `cron`, such as Europe/Berlin",
    )
    missed: Missed = Field(
        default=Missed.ONCE,
        description="Which runs to make up for after a downtime: none, the last one, or all",
    )
    overlap: Overlap = Field(
        default=Overlap.ALLOW,
        description="If the task of the previous run has not ended: run too, skip the run, or cancel that task",
    )
    jitter: _Jitter = Field(
        default=timedelta(0),
        description="Each run is delayed by a random time up to this, but never past the next run",
        examples=["30s"],
    )
    is_paused: bool | None = Field(
        default=None, strict=True, description="Whether it is paused; if omitted, this does not change"
    )

    @model_validator(mode="after")
    def _require_one_rule(self) -> Self:
        if self.cron is None and self.every is None:
            raise ValueError("needs a rule: cron or every")
        if self.cron is not None and self.every is not None:
            raise ValueError("needs either cron or every, not both")
        return self


def parse_definition(values: Mapping[str, Any]) -> ScheduleDefinition:
    """Make a definition from values by name.

    Raises:
        InvalidRequestError: if a value is wrong; names the first wrong value.
    """
    try:
        return ScheduleDefinition.model_validate(values)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_context=False, include_input=False)[0]
        field_problem = problem(wrong["loc"][:1], wrong["msg"])
        field = ScheduleDefinition.model_fields.get(field_problem["field"])
        hint = (
            f"{field.description}."
            if field
            else f"The fields of a schedule are {', '.join(ScheduleDefinition.model_fields)}."
        )
        raise InvalidRequestError(field_problem["field"], field_problem["message"], hint) from None


def accept_schedule_name(name: str) -> str:
    """Check the name of a schedule, and return it.

    Raises:
        InvalidRequestError: if the name is not valid.
    """
    if not NAME.fullmatch(name):
        raise InvalidRequestError(
            "name",
            f"{name[:100]!r} is not a valid name for a schedule",
            "Use a-z, 0-9, dot, dash and underscore, at most 100.",
        )
    return name


def run_request(schedule: Schedule, key: str | None) -> SubmitRequest:
    """Return the request that submits one run."""
    return SubmitRequest(
        task_type=schedule.task_type,
        parameters=schedule.parameters,
        user_id=schedule.user_id,
        idempotency_key=key,
        correlation_id=f"schedule/{schedule.name}",
    )


def parse_settings(named: Mapping[str, Any]) -> dict[str, ScheduleDefinition]:
    """Return the schedules of the settings, by name; checked without a store.

    Raises:
        ConfigurationError: if a schedule is wrong; names the first wrong value.
    """
    definitions = {}
    for name, values in named.items():
        try:
            accept_schedule_name(name)
            if not isinstance(values, Mapping):
                raise InvalidRequestError(
                    WHOLE, f"{values!r:.50} is not a schedule", "Give task_type, and cron or every."
                )
            definitions[name] = parse_definition(values)
        except InvalidRequestError as error:
            raise settings_error(name, error) from error
    if len(definitions) > MAX_SCHEDULES:
        raise ConfigurationError(
            f"There are more than {MAX_SCHEDULES:,} schedules.", key="schedules", hint="Remove some."
        )
    return definitions


def check_settings(named: Mapping[str, Any]) -> None:
    """Check the schedules of the settings without a store and without the program, for callers that may block.

    Raises:
        ConfigurationError: as a process that starts with them raises it.
    """
    for name, definition in parse_settings(named).items():
        try:
            require_zone(definition.timezone)
        except InvalidRequestError as error:
            raise settings_error(name, error) from error


def settings_error(name: str, error: SubmissionError) -> ConfigurationError:
    """Return the same error for a schedule in the settings."""
    return ConfigurationError(
        f"The configuration is wrong: schedules.{name}: {error.message}", key=f"schedules.{name}", hint=error.hint
    )


async def accept_schedule(
    types: TaskTypes, name: str, definition: ScheduleDefinition, now: datetime, *, is_from_settings: bool = False
) -> Schedule:
    """Make the schedule of a definition; it begins now.

    Args:
        types: knows the task types.
        name: the name of the schedule.
        definition: the task and the times of the schedule.
        now: the store's time.
        is_from_settings: whether the definition comes from the settings. Then the task type may be unknown, because its
            first worker may start later.

    Raises:
        SubmissionError: if the name, the time zone, the task type or the parameters are wrong.
    """
    accept_schedule_name(name)
    await load_zone(definition.timezone)
    fields = {
        **{field: getattr(definition, field) for field in ScheduleDefinition.model_fields},
        "parameters": await _accept_parameters(types, definition, is_from_settings),
        "is_paused": bool(definition.is_paused),
        "is_from_settings": is_from_settings,
    }
    return start_schedule(Schedule(name=name, **fields, since=now, next_at=now, due_at=now), now)


async def _accept_parameters(types: TaskTypes, definition: ScheduleDefinition, may_be_unknown: bool) -> Json:
    kind = (await types.find([definition.task_type]))[definition.task_type]
    if not isinstance(kind, UnknownTaskTypeError):
        parameters, canonical = kind.accept(definition.parameters)
    elif may_be_unknown:
        parameters, canonical = storable_parameters(definition.parameters)
    else:
        raise kind
    if len(canonical) > MAX_SCHEDULE_BYTES:
        reason = f"they have {len(canonical):,} bytes as JSON, the limit of a schedule is {MAX_SCHEDULE_BYTES:,}"
        raise ValueNotStorableError("parameters", reason)
    return parameters
