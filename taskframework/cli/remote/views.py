"""From what the HTTP interface tells of something to the record that it tells of, as far as it tells.

What is not told has its default. So a command prints the same of both, but for what only the store knows: leases, say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from taskframework.model.batch_status import BatchResult, BatchStatus
from taskframework.model.counts import TaskCounts
from taskframework.model.facts import Cause
from taskframework.model.keys import ApiKey, Role
from taskframework.model.options import StreamPlace, Unique
from taskframework.model.overview import Problem
from taskframework.model.pauses import Pause
from taskframework.model.rate_limits import AttemptLimit, BucketLimit, seconds_of
from taskframework.model.schedules import LastRun, Missed, Overlap, RunProblem, Schedule
from taskframework.model.slots import Holder, Slots
from taskframework.model.status import Priority, TaskStatus
from taskframework.model.stream_results import StreamResult
from taskframework.model.streams import Stream, StreamKey, Turn
from taskframework.model.subtasks import Counts
from taskframework.model.task import Batch, HistoryEntry, ParentLink, Subtasks, Task, TaskError
from taskframework.model.traffic import LaneTraffic, Traffic
from taskframework.model.workers import Presence
from taskframework.operations.explain import Explanation
from taskframework.operations.limits import LimitState, SlotsState
from taskframework.operations.queues import Queue
from taskframework.operations.schedules import SeenSchedule
from taskframework.operations.streams import ListedStream, StreamStatus
from taskframework.operations.workers import WorkerState
from taskframework.settings.durations import parse_duration

View = Mapping[str, Any]

_MILLISECOND = timedelta(milliseconds=1)
_UNTOLD = datetime(1970, 1, 1, tzinfo=UTC)


def moment(text: str | None) -> datetime | None:
    """A time as views have it."""
    return None if text is None else datetime.fromisoformat(text)


def task_of(view: View) -> Task:
    """A task."""
    updated_at = time_of(view["updated_at"])
    history = tuple(_entry(entry) for entry in view.get("history", ()))
    return Task(
        task_id=view["task_id"],
        task_type=view["task_type"],
        priority=view["priority"],
        user_id=view["user_id"],
        correlation_id=view["correlation_id"],
        parameters=view.get("parameters"),
        parameters_hash="",
        unique=None if view["unique"] is None else Unique(**view["unique"]),
        stream=None if view["stream"] is None else StreamPlace(**view["stream"]),
        status=TaskStatus(view["status"]),
        # Any number that differs after each change will do: `tasks watch` compares it with the one before.
        revision=(updated_at - _UNTOLD) // _MILLISECOND,
        generation=view["generation"],
        attempts=view["attempt"],
        max_attempts=view["max_attempts"],
        not_before=time_of(view["not_before"]),
        next_dispatch_at=None,
        deadline=moment(view["deadline"]),
        parent=ParentLink(view["parent_task_id"], 0, 0) if view["parent_task_id"] else None,
        subtasks=None if view["subtasks"] is None else Subtasks(plan=None, **view["subtasks"]),
        progress=view["progress"],
        result=view["result"],
        error=error_of(view["error"]),
        sequence=history[-1].sequence if history else 0,
        history=history,
        created_at=time_of(view["created_at"]),
        started_at=moment(view["started_at"]),
        finished_at=moment(view["finished_at"]),
        updated_at=updated_at,
    )


def queue_of(view: View) -> Queue:
    """A task type."""
    paused = view["paused"]
    pause = None if paused is None else pause_of(view)
    lanes = {(view["task_type"], Priority(name)): _lane_of(lane) for name, lane in view["lanes"].items()}
    traffic = Traffic(datetime.now(UTC), lanes, view["is_bounded"])
    return Queue(view["task_type"], pause, view["is_running"], view["messages"], traffic)


def pause_of(view: View) -> Pause:
    """The pause of a task type that is paused."""
    paused = view["paused"]
    return Pause(view["task_type"], paused["by"], time_of(paused["at"]), paused["reason"])


def explanation_of(view: View, task: View) -> Explanation:
    """Why a task is not running."""
    cause = Cause(view["code"], view["because"], view["change"], view["details"])
    return Explanation(task_of(task), cause, time_of(view["at"]))


@dataclass(frozen=True)
class ToldOverview:
    """The installation at a glance: it has what commands use of an `Overview`, and the problems that it was told."""

    at: datetime
    traffic: Traffic
    counts: TaskCounts
    task_types: tuple[str, ...]
    pauses: frozenset[str]
    #: Only how many there are is told.
    live_workers: range
    dead_letters: int | None
    told: tuple[Problem, ...]

    def problems(self) -> tuple[Problem, ...]:
        return self.told


def overview_of(view: View) -> ToldOverview:
    """The installation at a glance."""
    at, types = time_of(view["at"]), view["types"]
    lanes = {(each["task_type"], Priority.NORMAL): _type_of(each) for each in types}
    return ToldOverview(
        at,
        Traffic(at, lanes, view["is_bounded"]),
        TaskCounts(at, view["by_status"]),
        tuple(each["task_type"] for each in types),
        frozenset(each["task_type"] for each in types if each["is_paused"]),
        range(view["workers"]),
        view["dead_letters"],
        tuple(Problem(problem["code"], problem["text"]) for problem in view["problems"]),
    )


def worker_of(view: View) -> WorkerState:
    """A worker process."""
    told: dict[str, Any] = {
        name: view[name] for name in ("worker_id", "host", "pid", "release", "concurrency", "in_flight")
    }
    times: dict[str, Any] = {"started_at": time_of(view["started_at"]), "seen_at": time_of(view["seen_at"])}
    return WorkerState(Presence(task_types=tuple(view["task_types"]), **told, **times), view["is_lost"])


def limit_of(view: View) -> LimitState:
    """A bucket of a rate limit."""
    limit = AttemptLimit(view["rate"], view["burst_capacity"])
    times = moment(view["next_at"]), moment(view["last_turn_at"])
    return LimitState(view["name"], view["key"], limit, view["available"], *times)


def slots_of(view: View) -> SlotsState:
    """The slots of a concurrency limit."""
    holders = tuple(
        Holder(holder["task_id"], "", holder["worker_id"], seconds_of(time_of(holder["since"])), 0.0)
        for holder in view["holders"]
    )
    return SlotsState(view["name"], view["key"], Slots(view["number"], holders), view["waiting"])


def key_of(view: View) -> ApiKey:
    """What is stored of an API key, without its hash."""
    return ApiKey(
        prefix=view["prefix"],
        sha256="",
        principal=view["principal"],
        roles=tuple(map(Role, view["roles"])),
        may_act_for_users=view["may_act_for_users"],
        created_by=view["created_by"],
        created_at=time_of(view["created_at"]),
        expires_at=moment(view["expires_at"]),
        revoked_by=view["revoked_by"],
        revoked_at=moment(view["revoked_at"]),
        limit=None if view["limit"] is None else BucketLimit(**view["limit"]),
    )


def new_key_of(view: View) -> tuple[ApiKey, str]:
    """A key that was just made, with its text."""
    return key_of(view), view["key"]


def seen_schedule_of(view: View) -> SeenSchedule:
    """A schedule of a list, with what has become of its last run. An API of before tells nothing of that."""
    status = (view["last_run"] or {}).get("status")
    return SeenSchedule(schedule_of(view), None if status is None else TaskStatus(status))


def schedule_of(view: View) -> Schedule:
    """A schedule."""
    last, problem = view["last_run"], view["problem"]
    next_at = moment(view["next_run_at"]) or _UNTOLD
    same = ("name", "task_type", "parameters", "user_id", "cron", "timezone", "is_paused", "is_from_settings")
    return Schedule(
        every=None if view["every"] is None else parse_duration(view["every"]),
        missed=Missed(view["missed"]),
        overlap=Overlap(view["overlap"]),
        jitter=parse_duration(view["jitter"]),
        since=next_at,
        next_at=next_at,
        due_at=next_at,
        last_run=None if last is None else LastRun(time_of(last["at"]), last["task_id"]),
        problem=None if problem is None else RunProblem(time_of(problem["at"]), problem["message"]),
        **{name: view[name] for name in same},
    )


def stream_of(view: View) -> StreamStatus:
    """An ordered stream."""
    turn = None if view["turn"] is None else Turn(view["turn"]["task_id"], 0, view["turn"]["position"])
    stream = Stream(view["mode"], view["next_position"], turn, view["is_halted"])
    return StreamStatus(view["key"], stream, view["waiting"], is_turn_taken=turn is not None)


def listed_stream_of(view: View) -> ListedStream:
    """An ordered stream in a list."""
    turn = None if view["last_turn"] is None else Turn(view["last_turn"]["task_id"], 0, view["last_turn"]["position"])
    stream = Stream(view["mode"], view["next_position"], turn, view["is_halted"])
    return ListedStream(StreamKey(view["user_id"], view["key"]), stream)


def stream_result_of(view: View) -> StreamResult:
    """What became of a position of a stream."""
    return StreamResult(**view)


def batch_result_of(view: View) -> BatchResult:
    """What became of an item of a batch."""
    return BatchResult(**{**view, "status": TaskStatus(view["status"])})


def batch_of(view: View) -> BatchStatus:
    """How far a batch is."""
    chunk_size, created_at, not_before = view["chunk_size"], time_of(view["created_at"]), time_of(view["not_before"])
    ended = {name: -(-view[name] // chunk_size) for name in ("succeeded", "failed", "cancelled")}
    counts = None if view["counts"] is None else {TaskStatus(name): n for name, n in view["counts"].items()}
    # What is about to be replayed is not over, although it is counted as failed.
    is_replayed = counts is not None and Counts.of(counts).done > view["done"]
    planned = -(-view["total"] // chunk_size) if view["is_sealed"] else None
    batch = Task(
        task_id=view["batch_id"],
        task_type=view["task_type"],
        status=TaskStatus(view["status"]),
        user_id=view["user_id"],
        priority=view["priority"],
        correlation_id=view["correlation_id"],
        parameters_hash="",
        max_attempts=view["max_attempts"],
        result=view["result"],
        error=error_of(view["error"]),
        not_before=not_before,
        next_dispatch_at=None,
        deadline=moment(view["deadline"]),
        batch=Batch(chunk_size, view["total"], moment(view["first_result_at"])),
        subtasks=Subtasks(planned, None, sum(ended.values()), policy=view["policy"], **ended),
        retry_at=created_at if is_replayed else None,
        created_at=created_at,
        finished_at=moment(view["finished_at"]),
        updated_at=moment(view["finished_at"]) or created_at,
    )
    # The record works out the rate by the time that has passed; so it gets the time that gives the rate which was told.
    spent = timedelta(seconds=view["done"] / view["rate"]) if view["rate"] else timedelta(0)
    return BatchStatus(batch, max(created_at, not_before) + spent, counts)


def _lane_of(view: View) -> LaneTraffic:
    rates = (view["in_per_second"], view["out_per_second"])
    return LaneTraffic(view["waiting"], moment(view["oldest_at"]), view["running"], *rates)


def _type_of(view: View) -> LaneTraffic:
    rates = [view[f"{what}_per_second"] for what in ("submitted", "finished", "failed")]
    return LaneTraffic(view["waiting"], moment(view["oldest_waiting_at"]), view["running"], *rates)


def time_of(text: str) -> datetime:
    """A time."""
    return datetime.fromisoformat(text)


def error_of(view: View | None) -> TaskError | None:
    """Why something failed, with its traceback where that is told."""
    return None if view is None else TaskError(**view)


def _entry(view: View) -> HistoryEntry:
    return HistoryEntry(**{**view, "at": time_of(view["at"])})
