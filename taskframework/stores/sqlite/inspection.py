"""The report of `doctor` on a SQLite file."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sqlite3
from functools import partial
from pathlib import Path
from urllib.parse import quote

from taskframework.errors import StoreError
from taskframework.stores.replies import StoreReport
from taskframework.stores.sqlite.connection import Connection, translated_errors
from taskframework.stores.sqlite.lock import executing_process
from taskframework.stores.sqlite.migrate import check_schema_version, migrations

#: Free bytes on the disk of the file below which `doctor` warns: some ten thousand tasks of usual size fit into it, so
#: there is time to act before nothing can be stored.
_MIN_FREE_BYTES = 64 * 1024 * 1024


async def inspect(path: Path) -> StoreReport:
    """Look at a file without changing it; a missing file is not created."""
    facts = {"sqlite": sqlite3.sqlite_version, "file": str(path)}
    problems = await asyncio.to_thread(_look_at_folder, path, facts)
    if "size" in facts:
        try:
            with translated_errors(path):
                connection = await Connection.open(f"file:{quote(str(path))}?mode=ro", uri=True)
                try:
                    problems += await connection.run(partial(_look_inside, path, facts))
                finally:
                    await connection.close()
        except StoreError as error:
            problems.append(str(error))
    return StoreReport(facts, tuple(problems))


def _look_at_folder(path: Path, facts: dict[str, str]) -> list[str]:
    folder = path.absolute().parent
    if not folder.is_dir():
        return [f"The folder {folder} does not exist. Create it, or name another file in store.url."]
    executed_by = executing_process(path)
    facts["executed by"] = executed_by or "no process"
    if path.exists():
        facts["size"] = f"{_size_with_log(path):,} bytes"
    elif executed_by is not None:
        return [f"{path} was deleted or moved while {executed_by} uses it. Stop that process and put the file back."]
    else:
        facts["state"] = "not there yet; `taskframework dev --app yourmodule` creates it"
    if not os.access(path if path.exists() else folder, os.W_OK) or not os.access(folder, os.W_OK):
        return [f"This user may not write {path} and its folder. Change their rights, or name another file."]
    free = shutil.disk_usage(folder).free
    facts["free on its disk"] = f"{free:,} bytes"
    if free < _MIN_FREE_BYTES:
        return [
            f"The disk of {path} has only {free:,} bytes left. When it is full, nothing is stored: free some space."
        ]
    return []


def _size_with_log(path: Path) -> int:
    """Return what the tasks occupy: those written last are in the write-ahead log beside the file."""
    size = path.stat().st_size
    with contextlib.suppress(FileNotFoundError):  # whoever closes the file last removes the log
        size += path.with_name(f"{path.name}-wal").stat().st_size
    return size


def _look_inside(path: Path, facts: dict[str, str], connection: sqlite3.Connection) -> list[str]:
    facts["schema version"] = str(check_schema_version(connection, path, newest=len(migrations())))
    [(mode,)] = connection.execute("PRAGMA journal_mode")
    facts["journal mode"] = str(mode)
    findings = connection.execute("PRAGMA quick_check(3)")
    return [f"The file is damaged: {text}. Restore a backup." for (text,) in findings if text != "ok"]
