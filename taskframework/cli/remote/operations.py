"""The operations that commands use, each asked of an HTTP interface: the same methods with the same arguments.

Whose tasks are meant (`scope`) and who acts (`by`) are what the interface tells by the key, so nothing is sent of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from urllib.parse import quote

from taskframework.cli.remote import views
from taskframework.client.bulk import subject_of, with_key
from taskframework.client.connection import ApiConnection, Call, json_call, new_key, task_path
from taskframework.client.families import followed_results
from taskframework.model.batch_status import BatchResult, BatchStatus
from taskframework.model.keys import ApiKey, Role
from taskframework.model.pauses import Pause
from taskframework.model.query import Page, TaskFilter
from taskframework.model.rate_limits import BucketLimit
from taskframework.model.schedules import Schedule
from taskframework.model.scope import Scope
from taskframework.model.status import TaskStatus
from taskframework.model.stream_results import StreamResult
from taskframework.model.streams import StreamKey
from taskframework.model.task import Task
from taskframework.operations.explain import Explanation
from taskframework.operations.limits import LimitState, SlotsState
from taskframework.operations.queues import Queue
from taskframework.operations.streams import ListedStream, StreamStatus
from taskframework.operations.workers import WorkerState
from taskframework.settings.durations import format_duration
from taskframework.submission.schedules import ScheduleDefinition
from taskframework.submission.service import ANONYMOUS, Submission, SubmitRequest

Entry = TypeVar("Entry")

ADMIN = "/admin"
CREATED_NOW = 202


class Remote:
    """Asks one HTTP interface."""

    def __init__(self, api: ApiConnection) -> None:
        self._api = api

    async def _get(self, path: str, **query: Any) -> Any:
        return await self._api.ask(Call("GET", path, query=query))

    async def _post(self, path: str, content: Any = None, *, is_repeatable: bool = True) -> Any:
        return await self._api.ask(json_call("POST", path, content or {}, is_repeatable=is_repeatable))

    async def _page(self, path: str, read: Callable[[Any], Entry], **query: Any) -> Page[Entry]:
        page = await self._get(path, **query)
        return Page(tuple(read(item) for item in page["items"]), page["next_cursor"])


def named_user(user_id: str) -> dict[str, str]:
    """The field of a body that says for whom; who names no user asks for the one that the key is for."""
    return {} if user_id == ANONYMOUS else {"user_id": user_id}


class RemoteClock:
    """What commands ask of the store itself."""

    def now(self) -> datetime:
        """The time here: how long ago something was is told by it."""
        return datetime.now(UTC)


class RemoteSubmission(Remote):
    """Submits tasks."""

    async def submit(self, request: SubmitRequest) -> Submission:
        """As `TaskSubmissionService.submit`."""
        options = dict(request.options)
        task = with_key({"task_type": str(request.task_type), "parameters": request.parameters, **options})
        named = named_user(request.user_id)
        status, view = await self._api.answered(json_call("POST", "/tasks", {**task, **named}, about=subject_of(task)))
        return Submission(views.task_of(view), status == CREATED_NOW)


class RemoteTasks(Remote):
    """As `TaskOperations`."""

    async def get(self, task_id: str, scope: Scope) -> Task:
        return views.task_of(await self._get(task_path(task_id)))

    async def list_tasks(
        self, scope: Scope, filter: TaskFilter, *, limit: int, cursor: str | None = None
    ) -> Page[Task]:
        # What is asked for has the same name there; anything but the default that has none is refused.
        usual = TaskFilter()
        wanted = {
            it.name: value for it in fields(filter) if (value := getattr(filter, it.name)) != getattr(usual, it.name)
        }
        return await self._page("/tasks", views.task_of, limit=limit, cursor=cursor, user_id=scope.owner, **wanted)

    async def cancel(self, task_id: str, scope: Scope, *, by: str, reason: str | None = None) -> Task:
        return views.task_of(await self._post(f"{task_path(task_id)}/cancel", {"reason": reason}))

    async def retry(
        self, task_id: str, scope: Scope, *, by: str, reopen: bool = False, reason: str | None = None
    ) -> Task:
        path = f"{task_path(task_id)}/retry"
        return views.task_of(await self._post(path, {"reopen": reopen, "reason": reason}, is_repeatable=False))

    async def subtasks(
        self,
        task_id: str,
        scope: Scope,
        *,
        limit: int,
        round: int | None = None,
        status: TaskStatus | None = None,
        after_slot: int = -1,
    ) -> Page[Task]:
        wanted = {"limit": limit, "round": round, "status": status}
        cursor = None if after_slot < 0 else str(after_slot)
        return await self._page(f"{task_path(task_id)}/subtasks", views.task_of, cursor=cursor, **wanted)

    async def signal(
        self, task_id: str, scope: Scope, name: str, payload: Any = None, *, key: str | None = None
    ) -> Task:
        path = f"{task_path(task_id)}/signals/{quote(name, safe='')}"
        headers = {"Content-Type": "application/json", "Idempotency-Key": key or new_key()}
        call = json_call("POST", path, payload, headers=headers)
        return views.task_of(await self._api.ask(call))


class RemoteQueues(Remote):
    """As `QueueOperations`."""

    async def list_queues(self) -> Sequence[Queue]:
        return [views.queue_of(item) for item in (await self._get(f"{ADMIN}/queues"))["items"]]

    async def get(self, task_type: str) -> Queue:
        return views.queue_of(await self._get(_queue(task_type)))

    async def pause(self, task_type: str, *, by: str, reason: str | None = None) -> Pause:
        return views.pause_of(await self._post(f"{_queue(task_type)}/pause", {"reason": reason}))

    async def resume(self, task_type: str) -> Pause | None:
        before = (await self.get(task_type)).pause
        await self._post(f"{_queue(task_type)}/resume")
        return before


class RemoteExplain(Remote):
    """As `ExplainOperations`."""

    async def explain(self, task_id: str, scope: Scope) -> Explanation:
        told = await self._get(f"{task_path(task_id)}/explain")
        return views.explanation_of(told, await self._get(task_path(task_id)))


class RemoteOverview(Remote):
    """As `OverviewOperations`."""

    async def look(self) -> views.ToldOverview:
        return views.overview_of(await self._get(f"{ADMIN}/overview"))


class RemoteWorkers(Remote):
    """As `WorkerOperations`."""

    async def list_workers(self, *, limit: int, after: str | None = None) -> Page[WorkerState]:
        return await self._page(f"{ADMIN}/workers", views.worker_of, limit=limit, cursor=after)

    async def list_running(self, worker_id: str, *, limit: int, cursor: str | None = None) -> Page[Task]:
        path = f"{ADMIN}/workers/{quote(worker_id, safe='')}/tasks"
        return await self._page(path, views.task_of, limit=limit, cursor=cursor)


class RemoteLimits(Remote):
    """As `LimitOperations`."""

    async def list_limits(self, limit: int) -> Sequence[LimitState]:
        return [views.limit_of(item) for item in await self._items(limit) if item["kind"] == "rate"]

    async def list_slots(self, limit: int) -> Sequence[SlotsState]:
        return [views.slots_of(item) for item in await self._items(limit) if item["kind"] == "concurrency"]

    async def _items(self, limit: int) -> Sequence[Any]:
        items: Sequence[Any] = (await self._get(f"{ADMIN}/limits", limit=limit))["items"]
        return items


class RemoteKeys(Remote):
    """As `KeyOperations`."""

    async def create(
        self,
        principal: str,
        roles: Collection[Role],
        *,
        by: str,
        may_act_for_users: bool = False,
        expires_after: timedelta | None = None,
        limit: BucketLimit | None = None,
    ) -> tuple[ApiKey, str]:
        wanted: dict[str, Any] = {"principal": principal, "roles": list(roles), "may_act_for_users": may_act_for_users}
        wanted["expires_after"] = None if expires_after is None else format_duration(expires_after)
        wanted["limit"] = None if limit is None else {"rate": limit.rate, "burst": limit.burst}
        made = await self._post(f"{ADMIN}/keys", wanted, is_repeatable=False)
        return views.key_of(made), made["key"]

    async def list_keys(self, *, limit: int, after: str | None = None) -> Page[ApiKey]:
        return await self._page(f"{ADMIN}/keys", views.key_of, limit=limit, cursor=after)

    async def revoke(self, prefix: str, *, by: str) -> ApiKey:
        return views.key_of(await self._api.ask(Call("DELETE", f"{ADMIN}/keys/{quote(prefix, safe='')}")))


class RemoteSchedules(Remote):
    """As `ScheduleOperations`."""

    async def list_schedules(self, *, limit: int, after: str | None = None) -> Page[Schedule]:
        return await self._page(f"{ADMIN}/schedules", views.schedule_of, limit=limit, cursor=after)

    async def get(self, name: str) -> Schedule:
        return views.schedule_of(await self._get(_schedule(name)))

    async def view(self, schedule: Schedule) -> dict[str, Any]:
        view: dict[str, Any] = await self._get(_schedule(schedule.name))
        return view

    async def create(self, name: str, definition: ScheduleDefinition) -> Schedule:
        wanted = {"name": name, **_definition(definition)}
        return views.schedule_of(await self._post(f"{ADMIN}/schedules", wanted, is_repeatable=False))

    async def put(self, name: str, definition: ScheduleDefinition) -> Schedule:
        return views.schedule_of(await self._api.ask(json_call("PUT", _schedule(name), _definition(definition))))

    async def delete(self, name: str) -> None:
        await self._api.ask(Call("DELETE", _schedule(name)))

    async def pause(self, name: str) -> Schedule:
        return views.schedule_of(await self._post(f"{_schedule(name)}/pause"))

    async def resume(self, name: str) -> Schedule:
        return views.schedule_of(await self._post(f"{_schedule(name)}/resume"))

    async def run(self, name: str, *, key: str | None = None) -> Submission:
        call = Call("POST", f"{_schedule(name)}/run", headers={"Idempotency-Key": key or new_key()})
        status, view = await self._api.answered(call)
        return Submission(views.task_of(view), status == CREATED_NOW)


class RemoteStreams(Remote):
    """As `StreamOperations`. A stream without a user is the caller's own."""

    async def list_streams(
        self, scope: Scope, *, limit: int, cursor: str | None = None, is_halted: bool | None = None
    ) -> Page[ListedStream]:
        wanted = {"limit": limit, "cursor": cursor, "is_halted": is_halted, "user_id": scope.owner}
        return await self._page(f"{ADMIN}/streams", views.listed_stream_of, **wanted)

    async def status(self, stream: StreamKey) -> StreamStatus:
        return views.stream_of(await self._get(_stream(stream), user_id=stream.user_id or None))

    async def go_on(self, stream: StreamKey) -> StreamStatus:
        query = {"user_id": stream.user_id or None}
        path = f"{_stream(stream)}/go-on"
        return views.stream_of(await self._api.ask(Call("POST", path, query=query)))

    async def results(self, stream: StreamKey, *, limit: int, first: int = 0) -> Page[StreamResult]:
        wanted = {"user_id": stream.user_id or None, "limit": limit, "from_position": first}
        return await self._page(f"{_stream(stream)}/results", views.stream_result_of, **wanted)


class RemoteBatches(Remote):
    """As `BatchOperations`."""

    async def status(self, batch_id: str, scope: Scope) -> BatchStatus:
        return views.batch_of(await self._get(_batch(batch_id)))

    async def list_batches(
        self, scope: Scope, filter: TaskFilter, *, limit: int, cursor: str | None = None
    ) -> Page[BatchStatus]:
        wanted = {"status": filter.status, "task_type": filter.task_type}
        return await self._page("/batches", views.batch_of, limit=limit, cursor=cursor, **wanted)

    async def results(self, batch_id: str, scope: Scope, *, limit: int, first: int = 0) -> Page[BatchResult]:
        path = f"{_batch(batch_id)}/results"
        return await self._page(path, views.batch_result_of, limit=limit, cursor=str(first))

    async def follow_results(
        self, batch_id: str, scope: Scope, *, first: int = 0
    ) -> AsyncIterator[Sequence[BatchResult]]:
        call = Call("GET", f"{_batch(batch_id)}/results")
        async for result in followed_results(self._api, call, first):
            yield [views.batch_result_of(result.model_dump())]

    async def cancel(self, batch_id: str, scope: Scope, *, by: str, reason: str | None = None) -> BatchStatus:
        return views.batch_of(await self._post(f"{_batch(batch_id)}/cancel", {"reason": reason}))

    async def retry_failed(self, batch_id: str, scope: Scope, *, by: str) -> BatchStatus:
        return views.batch_of(await self._post(f"{_batch(batch_id)}/retry-failed", is_repeatable=False))


def _queue(task_type: str) -> str:
    return f"{ADMIN}/queues/{quote(task_type, safe='')}"


def _schedule(name: str) -> str:
    return f"{ADMIN}/schedules/{quote(name, safe='')}"


def _stream(stream: StreamKey) -> str:
    return f"/streams/{quote(stream.key)}"


def _batch(batch_id: str) -> str:
    return f"/batches/{quote(batch_id, safe='')}"


def _definition(definition: ScheduleDefinition) -> dict[str, Any]:
    spans = {name: format_duration(value) for name in ("every", "jitter") if (value := getattr(definition, name))}
    return definition.model_dump(mode="json", exclude={"every", "jitter"}) | spans
