"""The schedules in the store: reading them all, and changing one by compare and set."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from taskframework.errors import InvalidRequestError, StoreUnavailableError
from taskframework.model.records import Record
from taskframework.model.recurrence import zone, zone_hint
from taskframework.model.schedules import SCHEDULE, Schedule
from taskframework.stores.base import Records
from taskframework.stores.reading import all_records, read_record

#: So often a change begins again because somebody else was faster.
_ROUNDS = 20


async def all_schedules(store: Records) -> list[Record]:
    """The records of all schedules, by name."""
    return await all_records(store, SCHEDULE)


async def read_schedule(store: Records, name: str) -> Record | None:
    """The record of a schedule, if there is one."""
    return await read_record(store, SCHEDULE.id_of(name))


async def change_schedule(
    store: Records, name: str, change: Callable[[Schedule | None], Schedule | None]
) -> Schedule | None:
    """Change a schedule, or make it; if somebody was faster, on what is there then.

    Args:
        store: where it is.
        name: which.
        change: what it is to be, given what it is; None for one that is to be deleted or is not to be made. It may
            raise.

    Raises:
        StoreUnavailableError: if others were faster again and again.
    """
    for _ in range(_ROUNDS):
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
        f"The schedule {name} was changed by others at the same time.", hint="Try again in a moment."
    )


async def know_zone(name: str) -> None:
    """Read a time zone beside the event loop, so that it is known to the rules.

    Raises:
        InvalidRequestError: if there is none of this name.
    """
    await asyncio.to_thread(require_zone, name)


def require_zone(name: str) -> None:
    """The same where reading files holds up nobody.

    Raises:
        InvalidRequestError: if there is none of this name.
    """
    try:
        zone(name)
    except ValueError as error:
        raise InvalidRequestError("timezone", str(error), zone_hint(name)) from None
