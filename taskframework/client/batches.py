"""The calls about batches."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Mapping
from contextlib import aclosing, suppress
from typing import Any, Unpack, overload

from taskframework.client.answers import Page, R, RemoteBatch, RemoteResult, id_of, read, with_kind, with_typed_result
from taskframework.client.bulk import error_context_of
from taskframework.client.connection import ApiConnection, Calls
from taskframework.client.family_readers import ItemResult, ItemStreamReader, follow_results
from taskframework.client.paths import resource_path
from taskframework.client.refusals import says_too_large
from taskframework.client.requests import Call, cancel_call, new_key
from taskframework.client.uploads import Items, upload_call, whole_call
from taskframework.errors import ApiError, TaskframeworkError
from taskframework.model.status import TaskStatus
from taskframework.submission.options import SubmissionOptions
from taskframework.tasks.kinds import AnyTaskType, KindOf, P, type_name
from taskframework.tasks.values import check_first, check_iterable

#: Seconds that each of the two requests may take by which the stored part of a failed upload is cancelled.
_CANCEL_SECONDS = 5.0
_CANCEL_REASON = "the upload failed, and it cannot be continued without an idempotency key"


async def send_batch(api: ApiConnection, task_type: AnyTaskType, items: Items, **options: Any) -> tuple[int, Any]:
    """Submit a batch, with the arguments of `BatchCalls.submit_batch`; return the status of the answer, which says
    whether the batch is new, and its JSON.

    Raises:
        Exception: as `BatchCalls.submit_batch`.
    """
    given_key = options.get("idempotency_key")
    # A key even beside options that no batch has: the interface refuses those, and by the key alone the client knows
    # what it has to cancel then.
    key = new_key() if given_key is None else given_key
    submission = {"task_type": type_name(task_type), **options, "idempotency_key": key}
    sent_options = {name: value for name, value in submission.items() if value is not None}
    error_context = error_context_of(sent_options)
    if (whole := whole_call(check_iterable(items), sent_options, error_context)) is not None:
        try:
            return await api.ask_with_status(whole)
        except ApiError as error:
            if not says_too_large(error):
                raise
            # `api.max_body` is smaller there. It does not limit an upload.
    upload = upload_call(items, sent_options, error_context)
    try:
        return await api.ask_with_status(upload)
    except BaseException:  # an interruption too: nobody else knows the key, so nobody can continue the upload
        if given_key is None:
            await _cancel_stored_part(api, key, options.get("user_id"))
        raise


async def _cancel_stored_part(api: ApiConnection, key: str, user_id: object) -> None:
    """Cancel what an upload has stored. If this fails, the API cancels it after `batches.upload_timeout`."""
    query = {"idempotency_key": key, "user_id": user_id}
    with suppress(TaskframeworkError):
        answer = await api.ask(Call("GET", "/batches", query=query), within=_CANCEL_SECONDS)
        for batch in read(Page, answer).items:
            path = _batch_path(read(RemoteBatch, batch).batch_id)
            await api.ask(cancel_call(path, _CANCEL_REASON, {}), within=_CANCEL_SECONDS)


class BatchCalls(Calls):
    """Submit batches, look at them and their results, end them."""

    @overload
    async def submit_batch(
        self,
        task_type: str,
        items: Items,
        *,
        chunk_size: int | None = None,
        policy: str | None = None,
        **options: Unpack[SubmissionOptions],
    ) -> RemoteBatch[Any]: ...
    @overload
    async def submit_batch(
        self,
        task_type: KindOf[P, R],
        items: Iterable[P] | AsyncIterable[P],
        *,
        chunk_size: int | None = None,
        policy: str | None = None,
        **options: Unpack[SubmissionOptions],
    ) -> RemoteBatch[R]: ...
    async def submit_batch(
        self,
        task_type: AnyTaskType,
        items: Items,
        *,
        chunk_size: int | None = None,
        policy: str | None = None,
        **options: Unpack[SubmissionOptions],
    ) -> RemoteBatch[Any]:
        """Submit a batch: one task for each item, or for each chunk of them.

        A list that fits into one request, of 1 MB and of `api.max_body`, is taken or refused as a whole. Other items
        are sent line by line while they are iterated, and the first tasks begin meanwhile. If the upload breaks off,
        submit the same items with the same key once more: items that are stored already are passed over. If the items
        can be iterated again, the client itself repeats the upload. If an upload without a key of yours fails, the
        client cancels what is stored of it.

        Args:
            task_type: the class of the tasks, or the name of their type.
            items: the parameters of each task. Only a `TaskClient` accepts an asynchronous iterable.
            chunk_size: how many items go into one task; its parameters are then a list of items.
            policy: decides when the batch has succeeded.
            options: see `SubmissionOptions`; they hold for each task. Without an idempotency key the client makes one.

        Returns:
            The batch, stored; or the batch that an earlier submission with this key made.

        Raises:
            SubmissionError: if it was refused.
            ApiUnavailableError, StoreUnavailableError: if it was not accepted in time; it may be stored nevertheless.
            Exception: any error of the iteration of the items.
        """
        _, answer = await send_batch(self._api, task_type, items, chunk_size=chunk_size, policy=policy, **options)
        return with_kind(read(RemoteBatch, answer), task_type)

    async def batch(self, batch_id: str) -> RemoteBatch:
        """A batch as it is now.

        Raises:
            TaskNotFoundError: if there is no such batch.
        """
        return read(
            RemoteBatch, await self._api.ask(Call("GET", _batch_path(batch_id), error_context=_error_context(batch_id)))
        )

    def batches(
        self,
        *,
        status: TaskStatus | str | None = None,
        task_type: str | None = None,
        user_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncGenerator[RemoteBatch, None]:
        """Batches from the newest to the oldest, read page by page while they are iterated.

        Args:
            status: only batches in this status.
            task_type: only batches of this type.
            user_id: only batches of this user, as in `list_tasks`.
            idempotency_key: only batches with this key. This condition has no index.
        """
        query = {"status": status, "task_type": task_type, "user_id": user_id, "idempotency_key": idempotency_key}
        return self._api.pages(Call("GET", "/batches", query=query), RemoteBatch)

    @overload
    def batch_results(
        self, batch: str, *, follow: bool = False, first: int = 0
    ) -> AsyncGenerator[RemoteResult[Any], None]: ...
    @overload
    def batch_results(
        self, batch: RemoteBatch[R], *, follow: bool = False, first: int = 0
    ) -> AsyncGenerator[RemoteResult[R], None]: ...
    async def batch_results(
        self, batch: str | RemoteBatch[Any], *, follow: bool = False, first: int = 0
    ) -> AsyncGenerator[RemoteResult[Any], None]:
        """The results of a batch, in the order of its items.

        Args:
            batch: its id, or the answer of `submit_batch`.
            follow: wait, and give each item as soon as it and all items before it have ended, up to the last item, even
                if connections break. Without this, give the items as they are now, read page by page while they are
                iterated.
            first: the item to begin with, from 0.

        Raises:
            InvalidRequestError: if `first` is no number of an item.
            TaskNotFoundError: if there is no such batch, or no longer.
            ApiUnavailableError: if no answer came in time.
            ResultUnreadableError: if a result does not fit the class by which the batch was submitted.
        """
        check_first(first)
        batch_id, kind = id_of(batch), None if isinstance(batch, str) else batch._kind
        call = Call(
            "GET",
            f"{_batch_path(batch_id)}/results",
            query={"cursor": str(first)},
            error_context=_error_context(batch_id),
        )
        found = follow_results(self._api, call, first) if follow else self._api.pages(call, RemoteResult)
        async with aclosing(found):
            async for result in found:
                yield result if kind is None else with_typed_result(result, kind)

    def stream_items(self, batch_id: str, *, after: str = "") -> AsyncGenerator[ItemResult, None]:
        """The result of each item of a batch, once, in the order in which the items end, until all have ended, even if
        connections break. `stream` gives the events of the batch itself.

        Args:
            batch_id: the batch.
            after: the `place` of the last result that is known already; all later results come.

        Raises:
            TaskNotFoundError: if there is no such batch, or no longer.
            ApiError: if the API gives no stream; ApiUnavailableError if no answer came in time.
        """
        call = Call(
            "GET", f"{_batch_path(batch_id)}/events", query={"items": "true"}, error_context=_error_context(batch_id)
        )
        return ItemStreamReader(self._api, call, after).values()

    async def cancel_batch(self, batch_id: str, *, reason: str | None = None) -> RemoteBatch:
        """Cancel a batch and all its tasks that are not final.

        Args:
            batch_id: the batch.
            reason: kept in its history.

        Raises:
            TaskNotFoundError: if there is no such batch.
            TransitionRefusedError: if it is final.
        """
        error_context = _error_context(batch_id, action="cancelled")
        call = cancel_call(_batch_path(batch_id), reason, error_context)
        return read(RemoteBatch, await self._api.ask(call))

    async def retry_failed(self, batch_id: str) -> RemoteBatch:
        """Queue again the tasks of a batch that did not succeed; the batch continues.

        The request is repeated only if the first one certainly had no effect, so that each task is queued again once.

        Raises:
            TaskNotFoundError: if there is no such batch.
            TransitionRefusedError: if none of its tasks can be queued again.
        """
        error_context = _error_context(batch_id, action="retried")
        call = Call("POST", f"{_batch_path(batch_id)}/retry-failed", error_context=error_context, is_repeatable=False)
        return read(RemoteBatch, await self._api.ask(call))


def _batch_path(batch_id: str) -> str:
    return resource_path("/batches", batch_id, what="batch")


def _error_context(batch_id: str, **more: str) -> Mapping[str, str]:
    return {"task_id": batch_id, **more}
