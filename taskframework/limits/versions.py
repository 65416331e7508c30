"""The record that names the newest version of a key."""

from __future__ import annotations

from datetime import timedelta

from taskframework import failpoint
from taskframework.errors import StoreUnavailableError
from taskframework.model.interventions import Supersede
from taskframework.model.options import Unique
from taskframework.model.records import Record
from taskframework.model.task import Task
from taskframework.model.versions import VERSIONS, Newest, after_newest, is_newer, is_older, newest_record, record_id
from taskframework.moves import TaskMoves
from taskframework.stores.base import Records, TaskStore
from taskframework.stores.reading import read_record

#: The most rounds of reading and writing the record. In each lost round another submission of the key was faster.
_MAX_ROUNDS = 50


async def read_newest(records: Records, user_id: str, key: str) -> Newest | None:
    """Return the content of the record of a user's key; None if there is no record.

    Raises:
        StoreUnavailableError: if the store does not answer.
    """
    record = await _read(records, user_id, key)
    return None if record is None else VERSIONS.content(record)


async def supersede_before(moves: TaskMoves, newest: Newest) -> None:
    """End the tasks that the record named before; they still wait if the process that submitted the newest task died.

    Call this before a newer version is accepted, and before the same version is accepted again. Otherwise an older task
    that a worker has checked already could begin after that.
    """
    for task_id in newest.superseded:
        await moves.make(Supersede(task_id, newest.version, newest.stops_older))


async def become_newest(
    store: TaskStore, moves: TaskMoves, task: Task, unique: Unique, kept: timedelta
) -> Newest | None:
    """Make the record of a key name this task, and supersede the tasks that the record named before. If the record
    names a newer task, supersede this task.

    Args:
        store: where the record is.
        moves: makes the moves.
        task: a task that is stored.
        unique: the version and the run of the task.
        kept: how long the record is kept at least, from the time at which the task can begin.

    Returns:
        The newer version that superseded the task; None if the task is the newest.

    Raises:
        StoreUnavailableError: if the record could not be written.
    """
    before = await _write_newest(store, moves, task, unique, kept)
    await failpoint.reached("version.after_record")
    if before is None:
        return None
    if is_older(unique, before):
        await moves.make(Supersede(task.task_id, before.version))
        return before
    # If the record named this task already, another process has written it, and may have died after that.
    await supersede_before(moves, after_newest(task.task_id, unique, before) if is_newer(unique, before) else before)
    return None


async def _write_newest(
    records: Records, moves: TaskMoves, task: Task, unique: Unique, kept: timedelta
) -> Newest | None:
    """Write the task into the record unless the record names a newer one; return what the record named before.

    This write forgets which tasks the newest one supersedes, so they are superseded first.
    """
    for _ in range(_MAX_ROUNDS):
        record = await _read(records, task.user_id, unique.key)
        newest = None if record is None else VERSIONS.content(record)
        if not is_newer(unique, newest):
            return newest
        if newest is not None:
            await supersede_before(moves, newest)
        [written] = await records.write_records([newest_record(task, unique, record, kept)])
        if written is not None:
            return newest
    raise StoreUnavailableError(f"The key {unique.key!r} is being changed by too many submissions at once.")


async def _read(records: Records, user_id: str, key: str) -> Record | None:
    return await read_record(records, record_id(user_id, key))
