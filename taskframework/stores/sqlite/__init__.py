"""The store in one SQLite file: the embedded default, with the same promises as MongoDB, on one machine."""

from taskframework.stores.sqlite.lock import ExecutionLock
from taskframework.stores.sqlite.store import SqliteStore

__all__ = ["ExecutionLock", "SqliteStore"]
