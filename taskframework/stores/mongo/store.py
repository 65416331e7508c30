"""The store port on MongoDB 6 or newer, as a replica set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from taskframework.errors import StoreError, StoreMisconfiguredError, StoreUnavailableError
from taskframework.model.marks import Mark
from taskframework.model.query import Cursor, DeadMessage, Page, TaskFilter
from taskframework.model.status import Priority, TaskStatus, lane_of
from taskframework.model.task import CancelRequest, Task, record_from
from taskframework.model.transitions import Fence, Transition
from taskframework.stores.base import DueTask, ExpiredLease, Inserted, Renewal, StoreReport
from taskframework.stores.mongo import indexes, queries
from taskframework.stores.mongo.client import (
    Connection,
    Driver,
    DuplicateDocumentError,
    connect,
    driver_version,
    encoded,
    time_limit,
)
from taskframework.stores.mongo.documents import Document, dead_message_document, dead_message_of, task_of
