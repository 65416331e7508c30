"""A program with one more driver, added as `docs/adding/driver.md` says. Writes what the store makes of it.

A process of its own: the stores derive from the drivers when they are imported.
"""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import datetime, timedelta
from typing import Any

from taskframework.model import drivers
from taskframework.model.drivers import Driver, missing_drivers
from taskframework.model.scope import EVERYONE
from taskframework.model.status import TaskStatus
from taskframework.testing.conformance.store_suite import insert_one

#: A task that is blocked is to be looked at again. The field is one of those that a task has.
WAKE = Driver(
    name="wake",
    field="started_at",
    index="wake",
    statuses=frozenset({TaskStatus.BLOCKED}),
    needed_in=frozenset({TaskStatus.BLOCKED}),
    unless="cancel",
)
drivers.DRIVERS += (WAKE,)

MIGRATION = """
ALTER TABLE tasks ADD COLUMN started_at INTEGER;
CREATE INDEX tasks_to_wake ON tasks (started_at) WHERE started_at IS NOT NULL;
"""


async def main(url: str) -> dict[str, Any]:
    # Only now, since the driver has to be there first.
    from taskframework.clock import SystemClock
    from taskframework.settings import Settings
    from taskframework.stores.sqlite import connection, inspection
    from taskframework.stores.sqlite.migrate import migrations
    from taskframework.testing.factories import new_task
    from taskframework.wiring.adapters import build_store

    for module in (connection, inspection):
        vars(module)["migrations"] = lambda: [*migrations(), MIGRATION]
    store = build_store(Settings.model_validate({"store": {"url": url}}), SystemClock())
    await store.open()
    try:
        now = store.now()
        times: dict[str, datetime | None] = {
            "late": now - timedelta(hours=2),
            "due": now - timedelta(hours=1),
            "early": now + timedelta(hours=1),
            "undriven": None,
        }
        for name, time in times.items():
            await insert_one(
                store,
                new_task(
                    task_id=name,
                    now=now,
                    status=TaskStatus.BLOCKED,
                    next_dispatch_at=None,
                    unblock_at=now + timedelta(hours=1),
                    started_at=time,
                ),
            )
        await insert_one(store, new_task(task_id="queued", now=now, started_at=times["late"]))
        undriven = await store.undriven(10)
        tasks = [await store.get(task_id, EVERYONE) for task_id in undriven]
        return {
            "due": [task.task_id for task in await store.due(WAKE, 10)],
            "upcoming": [task.task_id for task in await store.upcoming(WAKE, 10)],
            "undriven": undriven,
            "missing": [driver.name for task in tasks if task is not None for driver in missing_drivers(task)],
            "problems": list((await store.inspect()).problems),
        }
    finally:
        await store.close()


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(main(sys.argv[1]))))
