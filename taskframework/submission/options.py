"""The options of a submission, each defined once: the options of Python, HTTP and the command line come from here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, NotRequired, Required

from pydantic import AfterValidator, AwareDatetime, BeforeValidator, Field, WithJsonSchema, with_config
from typing_extensions import TypedDict  # before Python 3.12 pydantic accepts only this one

from taskframework.clock import EPOCH, whole_milliseconds
from taskframework.durations import parse_duration
from taskframework.model.options import StreamMode
from taskframework.model.status import LANES, Priority
from taskframework.model.streams import OnFailure
from taskframework.model.subtasks import POLICY_PATTERN, Policy
from taskframework.model.values import MAX_NAME_LENGTH, NAME_RULE, is_name
from taskframework.tasks.options import MAX_ATTEMPTS, MAX_CHUNK_SIZE

#: Printable ASCII: names travel in headers, indexes and logs.
NAME_PATTERN = "^[ -~]*$"
#: The largest whole number that every program that reads JSON can represent.
MAX_VERSION = 2**53 - 1
#: Times may be at most this far in the future.
_MAX_FUTURE = timedelta(days=3660)
#: An earlier time becomes this time, so that the indexes of a store need not support the year 1.
_MIN_TIME, _MAX_TIME = EPOCH, datetime.max.replace(tzinfo=UTC)
_MIN_SPAN, _MAX_SPAN = timedelta(milliseconds=1), timedelta(days=366)
#: How an RFC 3339 time begins: its date, then T or a space.
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d[Tt ]")


def _require_timestamp(value: object) -> object:
    """Refuse other values: pydantic would also accept seconds since 1970, and a date without a time as midnight."""
    if isinstance(value, datetime) or (isinstance(value, str) and _TIMESTAMP.match(value)):
        return value
    raise ValueError("must be an RFC 3339 time such as 2027-01-31T12:00:00Z")


def _in_utc(value: datetime) -> datetime:
    try:
        value = value.astimezone(UTC)
    except OverflowError:  # in UTC it is before the year 1, or after the year 9999
        value = _MIN_TIME if value.year == 1 else _MAX_TIME
    return whole_milliseconds(max(value, _MIN_TIME))


def _require_near_future(value: datetime) -> datetime:
    if value - datetime.now(UTC) > _MAX_FUTURE:
        raise ValueError("must be within ten years")
    return value


def _require_url_safe(key: str) -> str:
    if key in (".", ".."):
        raise ValueError("must not be . or .., because clients drop these from URLs")
    return key


def _parse_lane(value: str) -> Priority:
    try:
        return Priority(value)
    except ValueError:
        raise ValueError("must be high, normal or low") from None


def _require_name(value: str) -> str:
    if not is_name(value):
        raise ValueError(NAME_RULE)
    return value


_Lane = Annotated[str, AfterValidator(_parse_lane), Field(json_schema_extra={"enum": [*map(str, LANES)]})]
#: A time by which things are searched for. It may be any.
AnyMoment = Annotated[AwareDatetime, BeforeValidator(_require_timestamp), AfterValidator(_in_utc)]
#: A time at which something is to happen.
Moment = Annotated[AnyMoment, AfterValidator(_require_near_future)]
_Attempts = Annotated[int, Field(ge=1, le=MAX_ATTEMPTS, strict=True)]
Name = Annotated[
    str,
    AfterValidator(_require_name),
    Field(strict=True, json_schema_extra={"minLength": 1, "maxLength": MAX_NAME_LENGTH, "pattern": NAME_PATTERN}),
]


@with_config(extra="forbid")
class UniqueOption(TypedDict):
    """The key of a task, and which version of the key it is."""

    key: Required[Name]
    version: Required[Annotated[int, Field(ge=0, le=MAX_VERSION, strict=True)]]
    on_running: NotRequired[Literal["leave", "cancel"]]


def _parse_span(value: object) -> timedelta:
    span = parse_duration(value)
    if not _MIN_SPAN <= span <= _MAX_SPAN:
        raise ValueError("must be from 1ms to 366d")
    return span // _MIN_SPAN * _MIN_SPAN


#: A length of time with a unit, such as 30s; in Python also a timedelta.
_Span = Annotated[timedelta | str, BeforeValidator(_parse_span)]


@with_config(extra="forbid")
class DebounceOption(TypedDict):
    """The key whose later submissions replace the parameters of the task, and how long the task waits for them."""

    key: Required[Name]
    wait: Required[_Span]
    max_wait: NotRequired[_Span]


@with_config(extra="forbid")
class ThrottleOption(TypedDict):
    """The key that has only one task in each period, and the period."""

    key: Required[Name]
    every: Required[_Span]


_NAME_SCHEMA = {"type": "string", "minLength": 1, "maxLength": MAX_NAME_LENGTH, "pattern": NAME_PATTERN}
_SPAN_SCHEMA = {"type": "string", "examples": ["30s", "1h30m"]}


def _object_schema(required: Mapping[str, Any], **optional: Any) -> dict[str, Any]:
    properties = {**required, **optional}
    return {"type": "object", "properties": properties, "required": [*required], "additionalProperties": False}


_DEBOUNCE_SCHEMA = _object_schema({"key": _NAME_SCHEMA, "wait": _SPAN_SCHEMA}, max_wait=_SPAN_SCHEMA)
_THROTTLE_SCHEMA = _object_schema({"key": _NAME_SCHEMA, "every": _SPAN_SCHEMA})
_Debounce = Annotated[DebounceOption, WithJsonSchema(_DEBOUNCE_SCHEMA)]
_Throttle = Annotated[ThrottleOption, WithJsonSchema(_THROTTLE_SCHEMA)]
_UNIQUE_SCHEMA = _object_schema(
    {"key": _NAME_SCHEMA, "version": {"type": "integer", "minimum": 0, "maximum": MAX_VERSION}},
    on_running={"type": "string", "enum": ["leave", "cancel"], "default": "leave"},
)
_Unique = Annotated[UniqueOption, WithJsonSchema(_UNIQUE_SCHEMA)]


@with_config(extra="forbid")
class StreamOption(TypedDict):
    """The ordered stream of a task."""

    key: Required[Annotated[Name, AfterValidator(_require_url_safe)]]
    mode: NotRequired[StreamMode]
    on_failure: NotRequired[OnFailure]
    deadline: NotRequired[Moment]


_STREAM_SCHEMA = _object_schema(
    {"key": {**_NAME_SCHEMA, "pattern": r"^(?!\.\.?$)[ -~]*$"}},
    mode={"type": "string", "enum": ["serial", "ordered_results"], "default": "serial"},
    on_failure={"type": "string", "enum": ["continue", "halt"], "default": "continue"},
    deadline={"type": "string", "format": "date-time"},
)
_Stream = Annotated[StreamOption, WithJsonSchema(_STREAM_SCHEMA)]


class SharedOptions(TypedDict, total=False):
    """Options of a task, and of each task of a batch; stored in the task's field of the same name."""

    priority: Annotated[_Lane | None, Field(description="Its lane: high, normal or low")]
    not_before: Annotated[Moment | None, Field(description="Earliest time of the first attempt")]
    deadline: Annotated[Moment | None, Field(description="If it has not ended by then, it ends FAILED")]
    max_attempts: Annotated[_Attempts | None, Field(description="Maximum number of attempts")]
    idempotency_key: Annotated[
        Name | None, Field(description="A second submission with the same key returns the first task")
    ]
    correlation_id: Annotated[Name | None, Field(description="Passed on in messages, logs and events")]


class SubmissionOptions(SharedOptions, total=False):
    """How a task is to be done. An option that is missing or None comes from the task type, then from the settings.

    An option is stored in the task's field of the same name.
    """

    unique: Annotated[
        _Unique | None,
        Field(description="Only the newest version of a key starts; on_running cancel also stops a running older one"),
    ]
    debounce: Annotated[
        _Debounce | None,
        Field(description="Starts when the key had no submission for the time wait, with the last parameters"),
    ]
    throttle: Annotated[
        _Throttle | None, Field(description="All submissions with the key in one period share the first one's task")
    ]
    stream: Annotated[
        _Stream | None,
        Field(description="Tasks of one key run one after another, or (ordered_results) give their results in order"),
    ]


def _parse_policy(value: str) -> str:
    return Policy.parse(value).text


_ChunkSize = Annotated[int, Field(ge=1, le=MAX_CHUNK_SIZE, strict=True)]
_Policy = Annotated[str, AfterValidator(_parse_policy), Field(json_schema_extra={"pattern": POLICY_PATTERN})]


class BatchOptions(SharedOptions, total=False):
    """How a batch is to be done: the options of each of its tasks, and the options of the whole batch."""

    policy: Annotated[_Policy | None, Field(description="When it counts as succeeded (default allow_failures)")]
    chunk_size: Annotated[_ChunkSize | None, Field(description="Items per task (default 1)")]
