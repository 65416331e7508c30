"""How long the pauses of repairs are where several workers look for the same work."""

from __future__ import annotations

from datetime import timedelta

import pytest

from taskframework.model.workers import PRESENCE, Presence
from taskframework.recovery.pace import RepairPace
from taskframework.stores.sqlite import SqliteStore
from taskframework.testing.clock import START

LATELY, LONG_AGO = START, START - timedelta(seconds=20)


async def report(store: SqliteStore, lately: int, long_ago: int = 0) -> None:
    reports = [
        Presence(f"worker-{number}", "host", number, "1.0", ("mail",), 10, 0, START, at)
        for number, at in enumerate([LATELY] * lately + [LONG_AGO] * long_ago)
    ]
    until = START + timedelta(days=1)
    await store.write_records([PRESENCE.new(it.worker_id, content=it, expires_at=until) for it in reports])


@pytest.mark.parametrize(
    ("lately", "long_ago", "factor"),
    [(0, 0, 1), (1, 0, 1), (4, 0, 2), (4, 5, 2), (0, 3, 1), (100, 0, 10), (150, 0, 10)],
)
async def test_pauses_grow_with_the_workers_that_have_reported_lately(
    store: SqliteStore, lately: int, long_ago: int, factor: int
) -> None:
    pace = RepairPace(store)
    assert pace.factor == 1
    await report(store, lately, long_ago)
    await pace.measure()
    assert pace.factor == factor
