"""Converts views of the HTTP interface to objects of the model, as far as the views show them.

`read` takes the fields of a view by their names; the functions here handle only fields with another name or form.
Fields that a view does not show have their defaults. So a command prints the same from both, except for facts that only
the store knows, such as leases.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from taskframework.client.answers import read
from taskframework.clock import EPOCH, to_milliseconds, to_timestamp
from taskframework.durations import parse_duration
from taskframework.model.batch_status import BatchResult, BatchStatus
from taskframework.model.counts import TaskCounts
from taskframework.model.facts import Cause
from taskframework.model.keys import ApiKey
from taskframework.model.overview import Overview, Problem
from taskframework.model.pauses import Pause
from taskframework.model.rate_limits import AttemptLimit
from taskframework.model.schedules import Schedule
from taskframework.model.slots import Holder, Slots
from taskframework.model.status import Priority, TaskStatus
from taskframework.model.stream_results import StreamResult
from taskframework.model.streams import Stream, StreamKey, Turn
from taskframework.model.subtasks import Counts
from taskframework.model.task import Task
from taskframework.model.task_fields import Batch, ParentLink, Subtasks, TaskError
from taskframework.model.traffic import LaneTraffic, Traffic
from taskframework.model.workers import Presence
from taskframework.operations.explain import Explanation
from taskframework.operations.limits import LimitState, SlotsState
from taskframework.operations.queues import Queue
from taskframework.operations.schedules import SeenSchedule
from taskframework.operations.streams import ListedStream, StreamStatus
from taskframework.operations.workers import WorkerState

View = Mapping[str, Any]

_UNKNOWN_TIME = EPOCH


def optional_time_of(text: str | None) -> datetime | None:
    """A time in a view."""
    return None if text is None else datetime.fromisoformat(text)


def task_of(view: View) -> Task:
    """A task."""
    history, parent_id = view.get("history", ()), view["parent_task_id"]
    converted = {
        "parameters_hash": "",
        # Any number that differs after each change is enough: `tasks watch` compares it with the previous one.
        "revision": to_milliseconds(time_of(view["updated_at"])),
        "attempts": view["attempt"],
        "next_dispatch_at": None,
        "parent": ParentLink(parent_id, 0, view.get("slot") or 0) if parent_id else None,
        "slot": None,  # in the view this is the slot of a sub-task, in a task that of a concurrency limit
        "subtasks": view["subtasks"] and {"plan": None, **view["subtasks"]},
        "sequence": history[-1]["sequence"] if history else 0,
    }
    return read(Task, {**view, **converted})


def queue_of(view: View) -> Queue:
    """A task type."""
    paused = view["paused"]
    pause = None if paused is None else pause_of(view)
    lanes = {(view["task_type"], Priority(name)): _lane_traffic_of(lane) for name, lane in view["lanes"].items()}
    traffic = Traffic(datetime.now(UTC), lanes, view.get("is_running_bounded", False))
    return Queue(view["task_type"], pause, view["is_running"], view["messages"], traffic)


def pause_of(view: View) -> Pause:
    """The pause of a task type that is paused."""
    return read(Pause, {"task_type": view["task_type"], **view["paused"]})


def explanation_of(view: View, task: View) -> Explanation:
    """The explanation why a task is not running."""
    cause = Cause(view["code"], view["because"], view["change"], view["details"])  # even of a newer release
    return Explanation(task_of(task), cause, time_of(view["at"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewedOverview(Overview):
    """The installation at a glance: the view shows only the number of its workers, and the problems that it found."""

    viewed_worker_count: int
    viewed_problems: tuple[Problem, ...]

    @property
    def worker_count(self) -> int:
        return self.viewed_worker_count

    def problems(self) -> Iterator[Problem]:
        return iter(self.viewed_problems)


def overview_of(view: View) -> ViewedOverview:
    """The installation at a glance."""
    at, types = time_of(view["at"]), view["types"]
    lanes = {(task_type["task_type"], Priority.NORMAL): _type_traffic_of(task_type) for task_type in types}
    return ViewedOverview(
        Traffic(at, lanes, any(task_type.get("is_running_bounded") for task_type in types)),
        TaskCounts(
            at,
            view["by_status"],
            dead_letters=view["dead_letters"],
            counted_at=optional_time_of(view.get("counted_at")),
        ),
        tuple(task_type["task_type"] for task_type in types),
        {
            task_type["task_type"]: Pause(task_type["task_type"], "", at)
            for task_type in types
            if task_type["is_paused"]
        },
        workers=(),
        is_broker_connected=None,
        viewed_worker_count=view["workers"],
        viewed_problems=tuple(
            Problem(problem["code"], problem["text"], problem.get("task_type")) for problem in view["problems"]
        ),
    )


def worker_of(view: View) -> WorkerState:
    """A worker process."""
    return WorkerState(read(Presence, view), view["is_lost"])


def limit_of(view: View) -> LimitState:
    """A bucket of a rate limit."""
    return read(LimitState, {**view, "limit": AttemptLimit(view["rate"], view["burst_capacity"])})


def slots_of(view: View) -> SlotsState:
    """The slots of a concurrency limit."""
    holders = tuple(
        Holder(holder["task_id"], "", holder["worker_id"], to_timestamp(time_of(holder["since"])), 0.0)
        for holder in view["holders"]
    )
    return SlotsState(view["name"], view["key"], Slots(view["number"], holders), view["waiting"])


def key_of(view: View) -> ApiKey:
    """The stored data of an API key, without its hash."""
    return read(ApiKey, {**view, "sha256": ""})


def new_key_of(view: View) -> tuple[ApiKey, str]:
    """A key that was just made, with its text."""
    return key_of(view), view["key"]


def seen_schedule_of(view: View) -> SeenSchedule:
    """A schedule of a list, with the status of its last run. An older API does not show this status."""
    status = (view["last_run"] or {}).get("status")
    return SeenSchedule(schedule_of(view), None if status is None else TaskStatus(status))


def schedule_of(view: View) -> Schedule:
    """A schedule."""
    times = dict.fromkeys(("since", "next_at", "due_at"), view["next_run_at"] or _UNKNOWN_TIME)
    durations = {name: view[name] and parse_duration(view[name]) for name in ("every", "jitter")}
    return read(Schedule, {**view, **times, **durations})


def stream_of(view: View) -> StreamStatus:
    """An ordered stream."""
    return StreamStatus(
        view["key"], _stream_state(view, view["turn"]), view["waiting"], is_turn_taken=bool(view["turn"])
    )


def listed_stream_of(view: View) -> ListedStream:
    """An ordered stream in a list."""
    return ListedStream(StreamKey(view["user_id"], view["key"]), _stream_state(view, view["last_turn"]))


def _stream_state(view: View, turn: View | None) -> Stream:
    current_turn = None if turn is None else Turn(turn["task_id"], 0, turn["position"])
    return Stream(view["mode"], view["next_position"], current_turn, view["is_halted"])


def stream_result_of(view: View) -> StreamResult:
    """The result of a position of a stream."""
    return read(StreamResult, view)


def batch_result_of(view: View) -> BatchResult:
    """The result of an item of a batch."""
    return read(BatchResult, view)


def batch_of(view: View) -> BatchStatus:
    """How far a batch is."""
    chunk_size, created_at, not_before = view["chunk_size"], time_of(view["created_at"]), time_of(view["not_before"])
    ended = {name: -(-view[name] // chunk_size) for name in ("succeeded", "failed", "cancelled")}
    counts = None if view["counts"] is None else {TaskStatus(name): n for name, n in view["counts"].items()}
    # Tasks that are about to be replayed have not ended, although they are counted as failed.
    is_replayed = counts is not None and Counts.of(counts).done > view["done"]
    planned = -(-view["total"] // chunk_size) if view["is_sealed"] else None
    converted = {
        "task_id": view["batch_id"],
        "parameters_hash": "",
        "next_dispatch_at": None,
        "batch": Batch(chunk_size, view["total"], optional_time_of(view["first_result_at"]), not_before=not_before),
        # The view does not say whether a method of the batch is called at its end. Without one, a batch of which all
        # tasks succeeded is COMPLETED.
        "subtasks": Subtasks(planned, None, sum(ended.values()), policy=view["policy"], resumes=True, **ended),
        "retry_at": created_at if is_replayed else None,
        "updated_at": view["finished_at"] or created_at,
    }
    batch = read(Task, {**view, **converted})
    # `BatchStatus` computes the rate from the time that has passed, so it gets the time that leads to the view's rate.
    spent = timedelta(seconds=view["done"] / view["rate"]) if view["rate"] else timedelta(0)
    return BatchStatus(batch, max(created_at, not_before) + spent, counts)


def _lane_traffic_of(view: View) -> LaneTraffic:
    return LaneTraffic(
        view["waiting"],
        optional_time_of(view["oldest_at"]),
        view["running"],
        view["in_per_second"],
        view["out_per_second"],
        retrying=view.get("retrying", 0),
        is_bounded=view.get("is_bounded", False),
    )


def _type_traffic_of(view: View) -> LaneTraffic:
    return LaneTraffic(
        view["waiting"],
        optional_time_of(view["oldest_waiting_at"]),
        view["running"],
        view["submitted_per_second"],
        view["finished_per_second"],
        view["failed_per_second"],
        view.get("retrying", 0),
        view["is_bounded"],
    )


def time_of(text: str) -> datetime:
    """A time."""
    return datetime.fromisoformat(text)


def error_of(view: View | None) -> TaskError | None:
    """The error of a task, with its traceback if the view shows it."""
    return None if view is None else read(TaskError, view)
