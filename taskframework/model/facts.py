"""The known facts about a task that is not running, and the form of the cause that they show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from taskframework.model.pauses import Pause
from taskframework.model.slots import Slots
from taskframework.model.streams import Stream
from taskframework.model.task import Task
from taskframework.model.versions import Newest
from taskframework.model.workers import Presence

#: The causes, in the order in which they are asked for.
CauseCode = Literal[
    "final",
    "cancel_requested",
    "running",
    "waiting_for_subtasks",
    "waiting_for_signal",
    "waiting_for_stream",
    "superseded",
    "paused",
    "not_before",
    "retry_at",
    "rate_limit",
    "concurrency_limit",
    "limiter_away",
    "broker_away",
    "no_worker",
    "suspect",
    "sent",
    "about_to_be_sent",
]


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a task is not running or not finished. Both texts are one or two sentences."""

    code: CauseCode
    because: str
    #: What a person can do, or what will happen, so that the task continues.
    change: str
    #: Plain JSON; its fields depend on the code.
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A task, and the facts around it. An unknown fact counts as absent."""

    task: Task
    now: datetime
    #: Some of the live sub-tasks that it waits for.
    open_subtasks: tuple[Task, ...] = ()
    #: The last report of the worker that runs it, and how long a lease must be over before the task is taken from it.
    worker: Presence | None = None
    lease_grace: timedelta = timedelta(0)
    #: Its stream, and the task that has the turn there.
    stream: Stream | None = None
    turn_holder: Task | None = None
    #: The newest version of its key.
    newest: Newest | None = None
    pause: Pause | None = None
    #: The bucket that its type shares, and when the bucket lets the next attempt begin; None: now.
    bucket: str | None = None
    bucket_free_at: datetime | None = None
    #: Whether tasks wait because the server of that bucket does not answer.
    is_limiter_away: bool = False
    #: The slots of its concurrency limit, the id of their record, and the holders' tasks that the caller may see.
    slots: Slots | None = None
    slots_id: str | None = None
    visible_holders: frozenset[str] = frozenset()
    #: None: the process that asks has no broker.
    is_broker_connected: bool | None = None
    #: Whether that process is connected, but the broker takes no messages because of an alarm.
    is_broker_blocked: bool = False
    #: Why that process could not give its last message to the broker; None if it could.
    broker_refusal: str | None = None
    #: The live workers that run its type; if there are none, the last worker that ran it.
    workers: tuple[Presence, ...] = ()
    last_worker: Presence | None = None
    declared_at: datetime | None = None
    #: Whether broker and worker are in one process, so that no second worker can be started.
    is_embedded: bool = False
    #: How many lost leases make a task a dead letter.
    max_crashes: int = 3
    #: Other suspects that run now.
    running_suspects: tuple[str, ...] = ()
    #: How many tasks of its type and lane could be claimed before it, and whether there may be more.
    ahead: int | None = None
    is_ahead_bounded: bool = False
    #: How many messages are ready in its lane; None: not known.
    messages: int | None = None
    #: If no slot of these workers was free at their last reports: how many tasks run of each type that they run. Empty:
    #: a slot was free, or it is not known.
    running_by_type: Mapping[str, int] = field(default_factory=dict)
