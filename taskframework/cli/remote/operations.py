"""The operations that commands use, over an HTTP interface: the same methods with the same arguments.

The interface knows the scope and the actor (`by`) from the key, so they are not sent; but a list can be limited to one
owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any

from taskframework.cli.remote import views
from taskframework.cli.remote.remote_method import RemoteService, items_of, page_of, remote_method
from taskframework.client.bulk import error_context_of, with_idempotency_key
from taskframework.client.family_readers import follow_results
from taskframework.client.paths import last_part, resource_path, signal_path, task_path
from taskframework.client.requests import Call, json_call, key_header
from taskframework.durations import format_duration
from taskframework.model.batch_status import BatchResult
from taskframework.model.pauses import Pause
from taskframework.model.query import MAX_LIMIT, Page
from taskframework.model.schedules import Schedule
from taskframework.model.scope import ANONYMOUS, Scope
from taskframework.model.stream_results import StreamResult
from taskframework.model.streams import StreamKey
from taskframework.model.task import Task
from taskframework.operations.batches import BatchOperations
from taskframework.operations.explain import Explanation
from taskframework.operations.keys import KeyOperations
from taskframework.operations.limits import LimitOperations
from taskframework.operations.queues import QueueOperations
from taskframework.operations.schedules import ScheduleOperations
from taskframework.operations.streams import FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS, StreamOperations, StreamStatus
from taskframework.operations.tasks import TaskOperations
from taskframework.operations.workers import WorkerOperations
from taskframework.submission.requests import SubmitRequest
from taskframework.submission.schedules import ScheduleDefinition
from taskframework.submission.service import Submission
from taskframework.submission.types import TaskTypes

STATUS_OF_NEW_TASK = 202


def user_field(user_id: str) -> dict[str, str]:
    """The field of a body with the owner. Without a named user, the interface takes the user of the key."""
    return {} if user_id == ANONYMOUS else {"user_id": user_id}


class RemoteClock:
    """The part of the store itself that commands use."""

    def now(self) -> datetime:
        """The time of this machine, which is used to print how long ago something was."""
        return datetime.now(UTC)


class RemoteSubmission(RemoteService):
    """Submits tasks."""

    async def submit(self, request: SubmitRequest) -> Submission:
        """As `TaskSubmissionService.submit`."""
        options = dict(request.options)
        task = with_idempotency_key({"task_type": str(request.task_type), "parameters": request.parameters, **options})
        user = user_field(request.user_id)
        status, view = await self._api.ask_with_status(
            json_call("POST", "/tasks", {**task, **user}, error_context=error_context_of(task))
        )
        return Submission(views.task_of(view), status == STATUS_OF_NEW_TASK)


class RemoteTasks(RemoteService):
    """As `TaskOperations`."""

    get = remote_method(TaskOperations.get, "GET /tasks/{task_id}", views.task_of)
    list_tasks = remote_method(TaskOperations.list_tasks, "GET /tasks", page_of(views.task_of))
    subtasks = remote_method(TaskOperations.subtasks, "GET /tasks/{task_id}/subtasks", page_of(views.task_of))
    cancel = remote_method(TaskOperations.cancel, "POST /tasks/{task_id}/cancel", views.task_of)
    retry = remote_method(TaskOperations.retry, "POST /tasks/{task_id}/retry", views.task_of, is_repeatable=False)

    async def signal(
        self, task_id: str, scope: Scope, name: str, payload: Any = None, *, key: str | None = None
    ) -> Task:
        call = json_call("POST", signal_path(task_id, name), payload, headers=key_header(key))
        return views.task_of(await self._api.ask(call))


class RemoteTypes(RemoteService):
    """As `TaskTypes`."""

    names = remote_method(
        TaskTypes.names, "GET /task-types", lambda answer: [entry["task_type"] for entry in answer["items"]]
    )


class RemoteQueues(RemoteService):
    """As `QueueOperations`."""

    list_queues = remote_method(QueueOperations.list_queues, "GET /admin/queues", items_of(views.queue_of))
    get = remote_method(QueueOperations.get, "GET /admin/queues/{task_type}", views.queue_of)
    pause = remote_method(QueueOperations.pause, "POST /admin/queues/{task_type}/pause", views.pause_of)

    async def resume(self, task_type: str) -> Pause | None:
        ended_pause = (await self.get(task_type)).pause
        await self._post(f"{resource_path('/admin/queues', task_type, what='task type')}/resume", {})
        return ended_pause


class RemoteExplain(RemoteService):
    """As `ExplainOperations`."""

    async def explain(self, task_id: str, scope: Scope) -> Explanation:
        explanation = await self._get(f"{task_path(task_id)}/explain")
        return views.explanation_of(explanation, await self._get(task_path(task_id)))


class RemoteOverview(RemoteService):
    """As `OverviewOperations`."""

    async def read(self) -> views.ViewedOverview:
        return views.overview_of(await self._get("/admin/overview"))


class RemoteWorkers(RemoteService):
    """As `WorkerOperations`."""

    list_workers = remote_method(WorkerOperations.list_workers, "GET /admin/workers", page_of(views.worker_of))
    list_running = remote_method(
        WorkerOperations.list_running, "GET /admin/workers/{worker_id}/tasks", page_of(views.task_of)
    )


class RemoteLimits(RemoteService):
    """As `LimitOperations`."""

    list_limits = remote_method(LimitOperations.list_limits, "GET /admin/limits", items_of(views.limit_of, kind="rate"))
    list_slots = remote_method(
        LimitOperations.list_slots, "GET /admin/limits", items_of(views.slots_of, kind="concurrency")
    )


class RemoteKeys(RemoteService):
    """As `KeyOperations`."""

    create = remote_method(KeyOperations.create, "POST /admin/keys", views.new_key_of, is_repeatable=False)
    list_keys = remote_method(KeyOperations.list_keys, "GET /admin/keys", page_of(views.key_of))
    revoke = remote_method(KeyOperations.revoke, "DELETE /admin/keys/{prefix}", views.key_of)


class RemoteSchedules(RemoteService):
    """As `ScheduleOperations`."""

    list_schedules = remote_method(
        ScheduleOperations.list_schedules, "GET /admin/schedules", page_of(views.seen_schedule_of)
    )
    get = remote_method(ScheduleOperations.get, "GET /admin/schedules/{name}", views.schedule_of)
    pause = remote_method(ScheduleOperations.pause, "POST /admin/schedules/{name}/pause", views.schedule_of)
    resume = remote_method(ScheduleOperations.resume, "POST /admin/schedules/{name}/resume", views.schedule_of)
    delete = remote_method(ScheduleOperations.delete, "DELETE /admin/schedules/{name}", lambda _: None)

    async def view(self, schedule: Schedule) -> dict[str, Any]:
        view: dict[str, Any] = await self._get(_schedule_path(schedule.name))
        return view

    async def create(self, name: str, definition: ScheduleDefinition) -> Schedule:
        wanted = {"name": name, **_definition_body(definition)}
        call = json_call("POST", "/admin/schedules", wanted, is_repeatable=False)
        return views.schedule_of(await self._api.ask(call))

    async def put(self, name: str, definition: ScheduleDefinition) -> Schedule:
        return views.schedule_of(
            await self._api.ask(json_call("PUT", _schedule_path(name), _definition_body(definition)))
        )

    async def run(self, name: str, *, key: str | None = None) -> Submission:
        call = Call("POST", f"{_schedule_path(name)}/run", headers=key_header(key))
        status, view = await self._api.ask_with_status(call)
        return Submission(views.task_of(view), status == STATUS_OF_NEW_TASK)


class RemoteStreams(RemoteService):
    """As `StreamOperations`. A stream without a user is the caller's own."""

    list_streams = remote_method(StreamOperations.list_streams, "GET /admin/streams", page_of(views.listed_stream_of))

    async def status(self, stream: StreamKey) -> StreamStatus:
        return views.stream_of(await self._get(_stream_path(stream), user_id=stream.user_id or None))

    async def go_on(self, stream: StreamKey, *, position: int | None = None) -> StreamStatus:
        # A second call could pass the turn of the next task, which may have failed meanwhile.
        query = {"user_id": stream.user_id or None, "position": position}
        call = Call("POST", f"{_stream_path(stream)}/go-on", query=query, is_repeatable=False)
        return views.stream_of(await self._api.ask(call))

    async def results(self, stream: StreamKey, *, limit: int, first: int = 0) -> Page[StreamResult]:
        wanted = {"user_id": stream.user_id or None, "limit": limit, "from_position": first}
        return page_of(views.stream_result_of)(await self._get(f"{_stream_path(stream)}/results", **wanted))

    async def follow_results(self, stream: StreamKey, *, first: int = 0) -> AsyncIterator[Sequence[StreamResult]]:
        pause = FIRST_PAUSE_SECONDS
        while True:
            found = (await self.results(stream, limit=MAX_LIMIT, first=first)).items
            yield found
            first += len(found)
            pause = FIRST_PAUSE_SECONDS if found else min(pause * 1.5, MAX_PAUSE_SECONDS)
            await asyncio.sleep(pause)


class RemoteBatches(RemoteService):
    """As `BatchOperations`."""

    status = remote_method(BatchOperations.status, "GET /batches/{batch_id}", views.batch_of)
    list_batches = remote_method(BatchOperations.list_batches, "GET /batches", page_of(views.batch_of))
    cancel = remote_method(BatchOperations.cancel, "POST /batches/{batch_id}/cancel", views.batch_of)
    retry_failed = remote_method(
        BatchOperations.retry_failed, "POST /batches/{batch_id}/retry-failed", views.batch_of, is_repeatable=False
    )

    async def results(self, batch_id: str, scope: Scope, *, limit: int, first: int = 0) -> Page[BatchResult]:
        answer = await self._get(f"{_batch_path(batch_id)}/results", limit=limit, cursor=str(first))
        return page_of(views.batch_result_of)(answer)

    async def follow_results(
        self, batch_id: str, scope: Scope, *, first: int = 0
    ) -> AsyncIterator[Sequence[BatchResult]]:
        call = Call("GET", f"{_batch_path(batch_id)}/results")
        async for result in follow_results(self._api, call, first):
            yield [views.batch_result_of(result.model_dump())]


def _schedule_path(name: str) -> str:
    return resource_path("/admin/schedules", name, what="schedule")


def _stream_path(stream: StreamKey) -> str:
    return f"/streams/{last_part(stream.key, what='stream')}"


def _batch_path(batch_id: str) -> str:
    return resource_path("/batches", batch_id, what="batch")


def _definition_body(definition: ScheduleDefinition) -> dict[str, Any]:
    durations = {name: format_duration(value) for name in ("every", "jitter") if (value := getattr(definition, name))}
    return definition.model_dump(mode="json", exclude={"every", "jitter"}) | durations
