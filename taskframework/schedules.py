"""The schedules in the store: reads them, and changes a schedule by compare and set."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from taskframework.errors import InvalidRequestError, StoreUnavailableError
from taskframework.model.records import Record
from taskframework.model.recurrence import zone, zone_hint
from taskframework.model.schedules import SCHEDULE, Schedule
from taskframework.stores.base import Records
from taskframework.stores.reading import read_all_records, read_record

#: How often a change is tried, because another process may be faster.
_MAX_ROUNDS = 20


async def all_schedules(store: Records) -> list[Record]:
    """Return the records of all schedules, by name."""
    return await read_all_records(store, SCHEDULE)


async def read_schedule(store: Records, name: str) -> Record | None:
    """Return the record of a schedule, if it exists."""
    return await read_record(store, SCHEDULE.id_of(name))


async def change_schedule(
    store: Records, name: str, change: Callable[[Schedule | None], Schedule | None]
) -> Schedule | None:
    """Change, make or delete a schedule; if another process was faster, begin again with the new state.

    Args:
        store: where the schedule is.
        name: the name of the schedule.
        change: returns the wanted schedule, given the present one or None; returns None to delete the schedule, or not
            to make it. It may raise.

    Raises:
        StoreUnavailableError: if other processes were faster again and again.
    """
    for _ in range(_MAX_ROUNDS):
        record = await read_schedule(store, name)
        present = None if record is None else SCHEDULE.content(record)
        wanted = change(present)
        if wanted == present:
            return wanted
        if wanted is None:
            done = record is not None and await store.delete_records([record]) == 1
        else:
            new = SCHEDULE.new(name, content=wanted) if record is None else SCHEDULE.changed(record, wanted)
            [written] = await store.write_records([new])
            done = written is not None
        if done:
            return wanted
    raise StoreUnavailableError(
        f"The schedule {name} was changed by other processes at the same time.", hint="Try again in a moment."
    )


async def load_zone(name: str) -> None:
    """Read a time zone in a thread, so that the rules of schedules know it without reading files.

    Raises:
        InvalidRequestError: if there is no time zone with this name.
    """
    await asyncio.to_thread(require_zone, name)


def require_zone(name: str) -> None:
    """Read a time zone here, for callers that may block while files are read.

    Raises:
        InvalidRequestError: if there is no time zone with this name.
    """
    try:
        zone(name)
    except ValueError as error:
        raise InvalidRequestError("timezone", str(error), zone_hint(name)) from None
