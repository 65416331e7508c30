"""The indexes of the drivers on MongoDB; a changed definition needs a new name, or no release could begin."""

from __future__ import annotations

from taskframework.model.drivers import DRIVERS
from taskframework.stores.mongo.indexes import TASK_INDEXES, Index

_IS_DATE = {"$type": "date"}
RELEASED = (
    Index("due", {"next_dispatch_at": 1}, {"status": {"$in": ["QUEUED", "RETRYING"]}}),
    Index("lease", {"lease.expires_at": 1}, {"status": {"$in": ["RUNNING"]}}),
    Index(
        "deadline",
        {"deadline": 1},
        {"status": {"$in": ["BLOCKED", "QUEUED", "RETRYING", "RUNNING", "WAITING"]}, "deadline": _IS_DATE},
    ),
    Index("start", {"start_by": 1}, {"status": {"$in": ["QUEUED"]}, "start_by": _IS_DATE}),
    Index("publish", {"publish_at": 1}, {"publish_at": _IS_DATE}),
    Index("spawn", {"spawn_at": 1}, {"status": {"$in": ["WAITING"]}, "spawn_at": _IS_DATE}),
    Index("check", {"check_at": 1}, {"status": {"$in": ["WAITING"]}}),
    Index("cascade", {"cascade_at": 1}, {"cascade_at": _IS_DATE}),
    Index("seal", {"seal_by": 1}, {"status": {"$in": ["WAITING"]}, "seal_by": _IS_DATE}),
    Index("retry", {"retry_at": 1}, {"status": {"$in": ["WAITING"]}, "retry_at": _IS_DATE}),
    Index("unblock", {"unblock_at": 1}, {"status": {"$in": ["BLOCKED"]}}),
)


def test_the_indexes_of_the_drivers_are_those_that_databases_have() -> None:
    names = {driver.index for driver in DRIVERS}
    assert tuple(index for index in TASK_INDEXES if index.name in names) == RELEASED
