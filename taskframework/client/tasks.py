"""The calls about tasks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, Unpack, overload

from taskframework.client.answers import R, RemoteExplanation, RemoteTask, id_of, read, with_kind
from taskframework.client.bulk import NewTask, error_context_of, submit_all, with_idempotency_key
from taskframework.client.connection import Calls
from taskframework.client.family_readers import TreeEvent, TreeStreamReader
from taskframework.client.paths import signal_path, task_path
from taskframework.client.requests import Call, cancel_call, json_call, key_header
from taskframework.client.stream_readers import TaskStreamReader
from taskframework.clock import in_seconds
from taskframework.errors import ResultTimeoutError, TaskFailedError, TaskframeworkError
from taskframework.events.external import ExternalEvent
from taskframework.model.status import SUCCEEDED, TaskStatus
from taskframework.submission.options import SubmissionOptions
from taskframework.tasks.kinds import AnyTaskType, KindOf, P

_FIRST_POLL_SECONDS, _MAX_POLL_SECONDS = 0.05, 2.0


class TaskCalls(Calls):
    """Submit tasks, look at them, follow them, end them."""

    @overload
    async def submit(
        self, task_type: str, parameters: Any = None, **options: Unpack[SubmissionOptions]
    ) -> RemoteTask[Any]: ...
    @overload
    async def submit(
        self, task_type: KindOf[None, R], parameters: None = None, **options: Unpack[SubmissionOptions]
    ) -> RemoteTask[R]: ...
    @overload
    async def submit(
        self, task_type: KindOf[P, R], parameters: P, **options: Unpack[SubmissionOptions]
    ) -> RemoteTask[R]: ...
    async def submit(
        self, task_type: AnyTaskType, parameters: Any = None, **options: Unpack[SubmissionOptions]
    ) -> RemoteTask[Any]:
        """Submit a task. Even if the request has to be repeated, there is one task.

        Args:
            task_type: the class of the task, or the name of its type.
            parameters: what the type accepts: JSON, or anything pydantic can write as JSON, such as a model.
            options: see `SubmissionOptions`. Without an idempotency key the client makes one.

        Returns:
            The task, stored; or the task that an earlier submission with this key made.

        Raises:
            SubmissionError: if it was refused; nothing is stored.
            ApiUnavailableError, StoreUnavailableError: if it was not accepted in time; it may be stored nevertheless.
        """
        task = with_idempotency_key({"task_type": task_type, "parameters": parameters, **options})
        answer = await self._api.ask(json_call("POST", "/tasks", task, error_context=error_context_of(task)))
        return with_kind(read(RemoteTask, answer), task_type)

    async def submit_many(self, tasks: Iterable[NewTask]) -> list[RemoteTask | TaskframeworkError]:
        """Submit many tasks, in as few requests as possible.

        Args:
            tasks: any number of tasks, each with its type, parameters and options.

        Returns:
            An outcome for each, in the same order: the task, or the error that refused this one. A task that was lost
            on the way (`ApiUnavailableError`) may be stored nevertheless; give your own keys to submit it again.

        Raises:
            TypeError: if an item is no dictionary; nothing is sent.
        """
        return await submit_all(self._api, tasks)

    @overload
    async def get(self, task: str) -> RemoteTask[Any]: ...
    @overload
    async def get(self, task: RemoteTask[R]) -> RemoteTask[R]: ...
    async def get(self, task: str | RemoteTask[Any]) -> RemoteTask[Any]:
        """A task as it is now, with its result or error and its history.

        Args:
            task: its id, or the answer of `submit`.

        Raises:
            TaskNotFoundError: if there is no such task.
            ResultUnreadableError: if the result does not fit the class by which the task was submitted.
        """
        return with_kind(await self._fetch_task(id_of(task), float("inf")), task)

    async def explain(self, task_id: str) -> RemoteExplanation:
        """Why a task is not running, or not finished, as it is now.

        Raises:
            TaskNotFoundError: if there is no such task.
        """
        call = Call("GET", f"{task_path(task_id)}/explain", error_context={"task_id": id_of(task_id)})
        return read(RemoteExplanation, await self._api.ask(call))

    def list_tasks(
        self,
        *,
        status: TaskStatus | str | None = None,
        task_type: str | None = None,
        user_id: str | None = None,
        parent_task_id: str | None = None,
        stream: str | None = None,
        created_after: datetime | str | None = None,
        created_before: datetime | str | None = None,
        finished_after: datetime | str | None = None,
        finished_before: datetime | str | None = None,
        correlation_id: str | None = None,
        idempotency_key: str | None = None,
        waits_for_limit: str | None = None,
        error: str | None = None,
        fingerprint: str | None = None,
    ) -> AsyncGenerator[RemoteTask, None]:
        """Tasks from the newest to the oldest, read page by page while they are iterated.

        Args:
            status: only tasks in this status.
            task_type: only tasks of this type.
            user_id: only tasks of this user; for a user other than the key's, the key must be an operator's or may act
                for users.
            parent_task_id: only sub-tasks of this task.
            stream: only tasks of the stream with this key.
            created_after: only tasks that were submitted at this time or later.
            created_before: only tasks that were submitted earlier than this.
            finished_after: only tasks that ended at this time or later. This condition and those below have no index:
                add a time of submission, a status or a type, so that fewer tasks are looked through.
            finished_before: only tasks that ended earlier than this.
            correlation_id: only tasks with this correlation id.
            idempotency_key: only tasks with this key.
            waits_for_limit: only tasks that wait for their turn in this limit, `NAME` or `NAME/KEY`.
            error: only tasks with this text in the message of the error, ignoring the case of ASCII letters.
            fingerprint: only tasks whose error has this fingerprint.
        """
        query = {
            "status": status,
            "task_type": task_type,
            "user_id": user_id,
            "parent_task_id": parent_task_id,
            "stream": stream,
            "created_after": created_after,
            "created_before": created_before,
            "finished_after": finished_after,
            "finished_before": finished_before,
            "correlation_id": correlation_id,
            "idempotency_key": idempotency_key,
            "waits_for_limit": waits_for_limit,
            "error": error,
            "fingerprint": fingerprint,
        }
        return self._api.pages(Call("GET", "/tasks", query=query), RemoteTask)

    async def cancel(self, task_id: str, *, reason: str | None = None) -> RemoteTask:
        """Cancel a task. A waiting task is CANCELLED at once; a running task is asked to stop and may still complete.

        Args:
            task_id: the task.
            reason: kept in its history.

        Raises:
            TaskNotFoundError: if there is no such task.
            TransitionRefusedError: if it is final.
        """
        error_context = {"task_id": id_of(task_id), "action": "cancelled"}
        call = cancel_call(task_path(task_id), reason, error_context)
        return read(RemoteTask, await self._api.ask(call))

    async def retry(self, task_id: str, *, reopen: bool = False, reason: str | None = None) -> RemoteTask:
        """Queue again a task that is FAILED, DEAD_LETTER or CANCELLED.

        The request is repeated only if the first one certainly had no effect, so that the task is queued again once.

        Args:
            task_id: the task.
            reopen: if the parent of a sub-task has ended, let the parent wait for it and end again.
            reason: kept in its history.

        Raises:
            TaskNotFoundError: if there is no such task.
            TransitionRefusedError: if it is in another status.
            ParentFinishedError: if its parent has ended and is not to be reopened.
        """
        error_context = {"task_id": id_of(task_id), "action": "retried"}
        path = f"{task_path(task_id)}/retry"
        content = {"reopen": reopen, "reason": reason}
        call = json_call("POST", path, content, error_context=error_context, is_repeatable=False)
        return read(RemoteTask, await self._api.ask(call))

    async def signal(self, task_id: str, name: str, payload: Any = None, *, key: str | None = None) -> RemoteTask:
        """Send a signal to a task. A task that waits for it continues; any other task keeps it until it waits for it.

        Args:
            task_id: the task.
            name: the name of the signal, without a slash, because it is a part of the URL.
            payload: the content of the signal: JSON, or anything pydantic can write as JSON.
            key: a second signal with the same key is the same signal. Without a key the client makes one, so that a
                request that has to be repeated is one signal.

        Raises:
            InvalidRequestError: if the name cannot be a part of a URL, or the key cannot be a header.
            IdempotencyConflictError: if the key belongs to a signal of another name.
            TaskNotFoundError: if there is no such task.
            TransitionRefusedError: if it is final.
        """
        call = json_call(
            "POST",
            signal_path(task_id, name),
            payload,
            headers=key_header(key),
            error_context={"task_id": id_of(task_id), "action": "signalled", "key": key},
        )
        return read(RemoteTask, await self._api.ask(call))

    def subtasks(self, task_id: str, *, status: TaskStatus | str | None = None) -> AsyncGenerator[RemoteTask, None]:
        """The sub-tasks of a task in the order in which they were planned, read page by page while they are iterated.

        Args:
            task_id: the parent.
            status: only sub-tasks in this status.

        Raises:
            TaskNotFoundError: if there is no such task.
        """
        error_context = {"task_id": id_of(task_id)}
        call = Call("GET", f"{task_path(task_id)}/subtasks", query={"status": status}, error_context=error_context)
        return self._api.pages(call, RemoteTask)

    @overload
    async def wait(self, task: str, timeout: timedelta | float | None = None) -> Any: ...
    @overload
    async def wait(self, task: RemoteTask[R], timeout: timedelta | float | None = None) -> R: ...
    async def wait(self, task: str | RemoteTask[Any], timeout: timedelta | float | None = None) -> Any:
        """Wait for the result of a task.

        Args:
            task: its id, or the answer of `submit`.
            timeout: longest time to wait, in seconds or as a timedelta; None waits for ever.

        Returns:
            The result of `execute`, if the task was submitted by its class; otherwise plain JSON.

        Raises:
            TaskFailedError: if the task ended without a result.
            ResultTimeoutError, TaskNotFoundError, ApiUnavailableError, ResultUnreadableError: as `finished`.
        """
        ended = await self.finished(task, timeout)
        if ended.status in SUCCEEDED:
            return ended.result
        raise TaskFailedError(id_of(task), ended.status, ended.error)

    @overload
    async def finished(self, task: str, timeout: timedelta | float | None = None) -> RemoteTask[Any]: ...
    @overload
    async def finished(self, task: RemoteTask[R], timeout: timedelta | float | None = None) -> RemoteTask[R]: ...
    async def finished(self, task: str | RemoteTask[Any], timeout: timedelta | float | None = None) -> RemoteTask[Any]:
        """Wait until a task is final, however it ends: by its event stream, or by asking again if there is no stream.

        Args:
            task: its id, or the answer of `submit`.
            timeout: longest time to wait, in seconds or as a timedelta; None waits for ever.

        Raises:
            ResultTimeoutError: if the task is not final by then.
            TaskNotFoundError: if there is no such task.
            ApiUnavailableError: if no answer came in time.
            ResultUnreadableError: if the result does not fit the class by which the task was submitted.
        """
        return with_kind(await self._wait_until_final(id_of(task), timeout), task)

    async def _wait_until_final(self, task_id: str, timeout: timedelta | float | None) -> RemoteTask[Any]:
        seconds_left = self._countdown(timeout)
        task = await self._fetch_task(task_id, seconds_left())
        reader = TaskStreamReader(self._api, task_id, task.history[-1]["sequence"] if task.history else 0)
        pause = _FIRST_POLL_SECONDS
        while not task.status.is_final:
            if seconds_left() <= 0:
                raise ResultTimeoutError(task_id, task.status)
            if await reader.wait_until_final(seconds_left):
                pause = _FIRST_POLL_SECONDS
            else:
                await self._api.transport.sleep(max(0.0, min(pause, seconds_left())))
                pause = min(pause * 1.5, _MAX_POLL_SECONDS)
            task = await self._fetch_task(task_id, seconds_left())
        return task

    def stream(self, task_id: str, *, after: int = 0) -> AsyncGenerator[ExternalEvent, None]:
        """The events of a task, each once and in order, until the last one of a final task, even if connections break.

        Args:
            task_id: the task.
            after: the `sequence` of the last event that is known already; all later events come.

        Raises:
            TaskNotFoundError: if there is no such task, or no longer.
            ApiError: if the API gives no stream; ApiUnavailableError if no answer came in time.
        """
        return TaskStreamReader(self._api, id_of(task_id), after).values()

    def stream_tree(self, task_id: str, *, after: str = "") -> AsyncGenerator[TreeEvent, None]:
        """The events of a task and of all tasks below it, until all of them have ended, even if connections break.

        The events of each task come once and in order, and a sub-task comes after its parent.

        Args:
            task_id: the task.
            after: the `place` of the last event that is known already; all later events come.

        Raises:
            TaskNotFoundError: if there is no such task, or no longer.
            ApiError: if the API gives no stream; ApiUnavailableError if no answer came in time.
        """
        call = Call(
            "GET", f"{task_path(task_id)}/events", query={"tree": "true"}, error_context={"task_id": id_of(task_id)}
        )
        return TreeStreamReader(self._api, call, after).values()

    async def _fetch_task(self, task_id: str, seconds_left: float) -> RemoteTask:
        call = Call("GET", task_path(task_id), error_context={"task_id": id_of(task_id)})
        return read(RemoteTask, await self._api.ask(call, within=max(seconds_left, _MAX_POLL_SECONDS)))

    def _countdown(self, timeout: timedelta | float | None) -> Callable[[], float]:
        end = float("inf") if timeout is None else self._api.transport.now() + in_seconds(timeout)
        return lambda: end - self._api.transport.now()
