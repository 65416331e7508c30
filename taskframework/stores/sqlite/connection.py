"""The file of the store: one connection that writes, one that reads, and sqlite3's errors as the framework's errors."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random

from taskframework import failpoint
from taskframework.errors import (
    StoreClosedError,
    StoreError,
    StoreMisconfiguredError,
    StoreUnavailableError,
    ValueNotStorableError,
)
from taskframework.stores.sqlite.migrate import check_schema_version, migrate, migrations

#: How long a write waits for another process that writes to the same file.
BUSY_TIMEOUT = 5.0

#: One thread of this process at a time creates a file: see `_create_private_file`.
_creating = threading.Lock()

Row = tuple[Any, ...]
#: Values for `?` in their order, or for `:name` by name.
Parameters = Sequence[Any] | Mapping[str, Any]
T = TypeVar("T")


class Connection:
    """One connection, and the thread that works on it. Each piece of work is one call into the thread."""

    def __init__(self, thread: ThreadPoolExecutor, raw: sqlite3.Connection) -> None:
        self._thread = thread
        self._raw = raw

    @classmethod
    async def open(cls, database: str, *, uri: bool = False) -> Connection:
        """Open without implicit transactions; a statement waits at most `BUSY_TIMEOUT` for other writers."""
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="taskframework-sqlite")
        connect = partial(sqlite3.connect, database, uri=uri, isolation_level=None, timeout=BUSY_TIMEOUT)
        return cls(thread, await asyncio.get_running_loop().run_in_executor(thread, connect))

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do a piece of work after all earlier pieces. Work that has begun runs to its end, even if nobody waits."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, self._raw)

    async def fetch(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        """The rows of one statement."""
        return await self.run(lambda raw: raw.execute(sql, parameters).fetchall())

    async def close(self) -> None:
        """Close after the current work."""
        try:
            await self.run(sqlite3.Connection.close)
        finally:
            self._thread.shutdown(wait=False)


class Database:
    """One SQLite file. Writes are transactions, one after the other; reads see the last commit and never wait."""

    def __init__(self, path: Path, *, syncs: bool = True) -> None:
        self.path = path
        self._syncs = syncs
        self._writer: Connection | None = None
        self._reader: Connection | None = None
        #: The open file: its absolute path, because task code may change the working directory, and its device and
        #: number. After a deletion SQLite would go on with the file that nobody finds.
        self._place = path
        self._file: tuple[int, int] | None = None

    async def open(self) -> None:
        """Open the file, create or upgrade its schema.

        Raises:
            StoreMisconfiguredError: if it belongs to another program or a newer release, or cannot be used.
        """
        with translated_errors(self.path):
            try:
                scripts = await asyncio.to_thread(migrations)
                await asyncio.to_thread(_create_private_file, self.path)
                self._writer = await Connection.open(str(self.path))
                await self._writer.run(partial(_prepare, self.path, scripts, self._syncs))
                self._reader = await Connection.open(str(self.path))
                await self._reader.fetch("PRAGMA query_only = ON")
                self._place = await asyncio.to_thread(self.path.absolute)
                self._file = await asyncio.to_thread(_file_at, self._place)
            except BaseException:
                await self.close()
                raise

    async def close(self) -> None:
        """Close the file after the current transaction; committed transactions stay."""
        connections, self._reader, self._writer = (self._reader, self._writer), None, None
        for connection in connections:
            if connection is not None:
                await connection.close()

    async def write(self, work: Callable[[sqlite3.Connection], T], points: Iterable[str] = ()) -> T:
        """Do a piece of work as one transaction; an error in it rolls back.

        Args:
            work: called in the thread of the connection, while the write lock of the file is held.
            points: the failpoints after the commit.
        """
        connection = self._require_open(self._writer)
        with translated_errors(self.path):
            done = await connection.run(partial(self._in_transaction, work))
            await failpoint.replied(points, _disk_error)
            return done

    async def execute(self, sql: str, parameters: Parameters = (), points: Iterable[str] = ()) -> int:
        """Run one statement as a transaction of its own and return how many rows it changed."""
        return await self.write(lambda raw: raw.execute(sql, parameters).rowcount, points)

    async def fetch(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        """The rows of one query."""
        with translated_errors(self.path):
            return await self._require_open(self._reader).fetch(sql, parameters)

    def _in_transaction(self, work: Callable[[sqlite3.Connection], T], raw: sqlite3.Connection) -> T:
        if _file_at(self._place) != self._file:
            raise StoreUnavailableError(
                f"The SQLite file {self.path} was deleted or replaced while this process has it open.",
                hint="Stop the process, put the file or a backup of it back, and start the process again.",
            )
        # The lock is taken at once: a transaction that reads first and writes later would fail if another process
        # writes in between.
        raw.execute("BEGIN IMMEDIATE")
        try:
            done = work(raw)
            raw.execute("COMMIT")
        except BaseException:
            raw.rollback()  # does nothing if SQLite has rolled back already
            raise
        return done

    def _require_open(self, connection: Connection | None) -> Connection:
        if connection is None:
            raise StoreClosedError
        return connection


def _file_at(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _create_private_file(path: Path) -> None:
    """Create the file so that only its owner may read it, because parameters and results may be secret. SQLite gives
    the log beside it the same mode. A file that exists keeps its mode.
    """
    # When a process closes a file, it loses its locks on this file, also those of SQLite. So no other thread may have
    # the new file open before it is closed here.
    with _creating, suppress(OSError):  # SQLite reports what is wrong
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def _prepare(path: Path, scripts: Sequence[str], syncs: bool, raw: sqlite3.Connection) -> None:
    check_schema_version(raw, path, newest=len(scripts))  # first, so that a file of another program is not changed
    [(mode,)] = _when_not_busy(lambda: raw.execute("PRAGMA journal_mode = WAL").fetchall())
    if mode != "wal":
        raise StoreMisconfiguredError(
            f"SQLite cannot keep a write-ahead log for {path} (journal mode {mode}).",
            hint="Put the file on a local disk; network and shared file systems do not work.",
        )
    # FULL syncs the log with each commit, so that accepted tasks survive a power cut; with NORMAL they survive kill -9
    # only. FULL costs 0.5 ms a commit on an SSD: one and a half times as much as the rest of a group of 100, and less
    # than grouping saves.
    raw.execute(f"PRAGMA synchronous = {'FULL' if syncs else 'OFF'}")
    migrate(raw, path, scripts)


def _is_busy(error: BaseException) -> bool:
    return getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY")


#: Repeats a call as long as other processes change the journal mode of the same file. Each of them holds a lock that
#: the others need, so SQLite refuses at once, without its own wait for writers.
_when_not_busy = Retrying(
    retry=retry_if_exception(_is_busy), stop=stop_after_delay(BUSY_TIMEOUT), wait=wait_random(0.001, 0.02), reraise=True
)


def _disk_error() -> sqlite3.Error:
    """The error of a commit if the log was written, but the disk failed to confirm it."""
    return sqlite3.OperationalError("disk I/O error")


@contextmanager
def translated_errors(path: Path) -> Iterator[None]:
    """Raise sqlite3's errors as the framework's errors."""
    try:
        yield
    except sqlite3.Error as error:
        raise _translate(error, path) from error
    except UnicodeEncodeError as error:
        raise ValueNotStorableError("text", "it contains half of a surrogate pair and is not valid Unicode") from error


def _translate(error: sqlite3.Error, path: Path) -> StoreError:
    name = getattr(error, "sqlite_errorname", "")
    for prefix, (kind, hint) in _HINTS.items():
        if name.startswith(prefix):
            return kind(f"The SQLite file {path} cannot be used: {error}.", hint=hint)
    return StoreUnavailableError(f"The SQLite file {path} cannot be used: {error}.")


_HINTS: dict[str, tuple[type[StoreError], str]] = {
    "SQLITE_BUSY": (
        StoreUnavailableError,
        "Another process holds its write lock; find it (for example with `fuser`) and stop it if it hangs.",
    ),
    "SQLITE_FULL": (StoreUnavailableError, "The disk is full; free some space."),
    "SQLITE_IOERR": (StoreUnavailableError, "The disk reports an error; check the system's log."),
    "SQLITE_CANTOPEN": (
        StoreUnavailableError,
        "Check that its folder exists and that this user may write there; store.url names the file.",
    ),
    "SQLITE_READONLY": (StoreUnavailableError, "Give this user the right to write the file and its folder."),
    "SQLITE_NOTADB": (StoreMisconfiguredError, "It is not a SQLite file; set another file in store.url."),
    "SQLITE_CORRUPT": (
        StoreMisconfiguredError,
        "It is damaged; restore a backup, or save what `sqlite3 FILE .recover` still reads.",
    ),
}
