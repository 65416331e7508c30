"""The replacement for a framework with an open store, for commands."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self, Unpack, cast

from taskframework.cli.remote import admin_operations
from taskframework.cli.remote import operations as remote
from taskframework.cli.remote.connection import CommandConnection
from taskframework.client.asynchronous import DEFAULT_PATIENCE_SECONDS, DEFAULT_TIMEOUT_SECONDS
from taskframework.client.batches import send_batch
from taskframework.client.connection import ApiConnection
from taskframework.client.refusals import with_item
from taskframework.client.transport import AsyncTransport
from taskframework.client.uploads import Items
from taskframework.errors import SubmissionError
from taskframework.events.requests import address_of
from taskframework.model.scope import EVERYONE
from taskframework.model.streams import StreamKey
from taskframework.model.task import Task
from taskframework.operations.batch_handle import BatchHandle
from taskframework.operations.batches import BatchOperations
from taskframework.operations.handle import TaskHandle
from taskframework.operations.stream_handle import StreamHandle
from taskframework.operations.streams import StreamOperations
from taskframework.operations.tasks import TaskOperations
from taskframework.settings import Settings
from taskframework.submission.options import BatchOptions


class RemoteServices:
    """The services that commands use, by their names in `StoreServices`. A further service is one more line here."""

    def __init__(self, api: ApiConnection) -> None:
        self.store = remote.RemoteClock()
        self.submission = remote.RemoteSubmission(api)
        self.types = remote.RemoteTypes(api)
        self.tasks = remote.RemoteTasks(api)
        self.batches = remote.RemoteBatches(api)
        self.streams = remote.RemoteStreams(api)
        self.queues = remote.RemoteQueues(api)
        self.schedules = remote.RemoteSchedules(api)
        self.keys = remote.RemoteKeys(api)
        self.limits = remote.RemoteLimits(api)
        self.explain = remote.RemoteExplain(api)
        self.overview = remote.RemoteOverview(api)
        self.workers = remote.RemoteWorkers(api)
        self.dead_letters = admin_operations.RemoteDeadLetters(api)
        self.mending = admin_operations.RemoteMending(api)
        self.replays = admin_operations.RemoteReplays(api)
        self.replay_carrier = admin_operations.RemoteCarrier()
        self.audit = admin_operations.RemoteAudit(api)


class RemoteFramework:
    """An installation at an address, with the methods of `TaskFramework` that commands use."""

    def __init__(self, url: str, key: str | None) -> None:
        """Prepare to make calls.

        Args:
            url: the address of an `api` or `dev`.
            key: an API key or a token, if callers need one.

        Raises:
            ConfigurationError: if the URL is not the address of an API.
        """
        #: The defaults, because the interface does not show the settings of its installation.
        self.settings = Settings()
        address = address_of(url)
        self._transport = AsyncTransport(address, None)
        self._api = CommandConnection(
            address, self._transport, timeout=DEFAULT_TIMEOUT_SECONDS, patience=DEFAULT_PATIENCE_SECONDS, api_key=key
        )
        self.services = RemoteServices(self._api)

    @asynccontextmanager
    async def store_only(self) -> AsyncIterator[Self]:
        """Use the installation, and close the connections at the end."""
        try:
            yield self
        finally:
            await self._transport.close()

    async def get(self, task_id: str) -> Task:
        """As `TaskFramework.get`."""
        return await self.services.tasks.get(task_id, EVERYONE)

    def handle(self, task_id: str) -> TaskHandle:
        """As `TaskFramework.handle`."""
        return TaskHandle(task_id, False, cast(TaskOperations, self.services.tasks))

    def batch(self, batch_id: str, *, is_new: bool = False) -> BatchHandle:
        """As `TaskFramework.batch`."""
        return BatchHandle(batch_id, is_new, cast(BatchOperations, self.services.batches))

    def stream(self, key: str, *, user_id: str | None = None) -> StreamHandle:
        """As `TaskFramework.stream`."""
        return StreamHandle(StreamKey(user_id or "", key), cast(StreamOperations, self.services.streams))

    async def submit_batch(
        self, task_type: str, items: Items, *, user_id: str | None = None, **options: Unpack[BatchOptions]
    ) -> BatchHandle:
        """As `TaskFramework.submit_batch`."""
        user: Any = {} if user_id is None else {"user_id": user_id}
        try:
            status, batch = await send_batch(self._api, task_type, items, **options, **user)
        except SubmissionError as error:
            raise with_item(error) from None
        return self.batch(batch["batch_id"], is_new=status == remote.STATUS_OF_NEW_TASK)
