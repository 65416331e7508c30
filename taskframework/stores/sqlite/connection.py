"""The file behind the store: one connection that writes, one that reads, and sqlite3's errors in our words."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, cast

import aiosqlite

from taskframework import failpoint
from taskframework.errors import StoreError, StoreMisconfiguredError, StoreUnavailableError, ValueNotStorableError
from taskframework.stores.sqlite.migrate import check, migrate, migrations

#: How long a write waits for another process that writes to the same file.
BUSY_TIMEOUT = 5.0

Row = tuple[Any, ...]


class Database:
    """One SQLite file. Writes are transactions, one after the other; reads see the last commit and never wait."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writer: aiosqlite.Connection | None = None
        self._reader: aiosqlite.Connection | None = None
        self._writing = asyncio.Lock()

    async def open(self) -> None:
        """Open the file, create or upgrade its schema.

        Raises:
            StoreMisconfiguredError: if it is not ours, of a newer release, or cannot be used as it is.
        """
        with translated(self.path):
            try:
                scripts = await asyncio.to_thread(migrations)
                self._writer = await connect(str(self.path))
                await check(self._writer, self.path, newest=len(scripts))  # first: what is not ours stays untouched
                await _prepare(self._writer, self.path)
                await migrate(self._writer, self.path, scripts)
                self._reader = await connect(str(self.path))
                await self._reader.execute("PRAGMA query_only = ON")
            except BaseException:
                await self.close()
                raise

    async def close(self) -> None:
        """Close the file after the transaction under way; what was committed stays."""
        async with self._writing:
            connections, self._reader, self._writer = (self._reader, self._writer), None, None
            for connection in connections:
                if connection is not None:
                    await connection.close()

    @asynccontextmanager
    async def transaction(self, points: Iterable[str] = ()) -> AsyncIterator[aiosqlite.Connection]:
        """Hold the write lock of the file from the first statement to the commit; any error rolls back.

        The lock is taken at once: a transaction that read first and wrote later would fail whenever another process
        had written in between.

        Args:
            points: the failpoints behind the commit.
        """
        async with self._writing:
            connection = self._open(self._writer)
            with translated(self.path):
                try:
                    await connection.execute("BEGIN IMMEDIATE")
                    yield connection
                    await connection.commit()
                    await failpoint.replied(points, _disk_error)
                except BaseException:  # a cancelled wait too: the statement runs on in the connection's thread
                    await connection.rollback()
                    raise

    async def fetch(self, sql: str, parameters: Iterable[Any] = ()) -> Sequence[Row]:
        """The rows of one query."""
        with translated(self.path):
            rows = await self._open(self._reader).execute_fetchall(sql, parameters)
            return cast(list[Row], rows)

    async def write(self, sql: str, parameters: Iterable[Any] = (), points: Iterable[str] = ()) -> int:
        """Run one statement as a transaction of its own and return how many rows it changed."""
        async with self.transaction(points) as connection:
            return (await connection.execute(sql, parameters)).rowcount

    def _open(self, connection: aiosqlite.Connection | None) -> aiosqlite.Connection:
        if connection is None:
            raise StoreUnavailableError("The store is not open.", hint="Open it before its first use.")
        return connection


async def connect(database: str, *, uri: bool = False) -> aiosqlite.Connection:
    """A connection without implicit transactions that waits for other writers."""
    return await aiosqlite.connect(database, uri=uri, isolation_level=None, timeout=BUSY_TIMEOUT)


async def _prepare(connection: aiosqlite.Connection, path: Path) -> None:
    [(mode,)] = await connection.execute_fetchall("PRAGMA journal_mode = WAL")
    if mode != "wal":
        raise StoreMisconfiguredError(
            f"SQLite cannot keep a write-ahead log for {path} (journal mode {mode}).",
            hint="Put the file on a local disk; network and shared file systems do not do.",
        )
    # FULL syncs the log with each commit: accepted means stored, after a power cut too. NORMAL would survive kill -9
    # only. It costs 0.5 ms a commit, 1.5 times the whole of a group of 100 (measured on an SSD), less than groups win.
    await connection.execute("PRAGMA synchronous = FULL")


def _disk_error() -> sqlite3.Error:
    """What a commit raises when the log was written and the disk then failed to say so."""
    return sqlite3.OperationalError("disk I/O error")


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Raise sqlite3's errors as ours."""
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
        "Another process holds its write lock; find out which (for example with `fuser`) and end what hangs.",
    ),
    "SQLITE_FULL": (StoreUnavailableError, "The disk is full; free some space."),
    "SQLITE_IOERR": (StoreUnavailableError, "The disk refuses; look at the system's log."),
    "SQLITE_CANTOPEN": (
        StoreUnavailableError,
        "Check that its folder exists and that this user may write there; store.url names the file.",
    ),
    "SQLITE_READONLY": (StoreUnavailableError, "Give this user the right to write the file and its folder."),
    "SQLITE_NOTADB": (StoreMisconfiguredError, "It is not a SQLite file; name another one in store.url."),
    "SQLITE_CORRUPT": (
        StoreMisconfiguredError,
        "It is damaged; restore a backup, or save what `sqlite3 FILE .recover` still reads.",
    ),
}
