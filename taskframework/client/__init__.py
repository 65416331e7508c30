"""The client: an installation's HTTP interface, for programs that are not part of it."""

from taskframework.client.asynchronous import TaskClient
from taskframework.client.blocking import SyncTaskClient

__all__ = ["SyncTaskClient", "TaskClient"]
