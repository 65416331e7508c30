"""Where many workers look for due work, each looks less often; what has a promised time keeps it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from taskframework import TaskFramework
from taskframework.model.workers import PRESENCE, Presence
from taskframework.testing.eventually import eventually
from tests.flow.conftest import Run

_WORKERS = 9


@pytest.mark.parametrize("urls", ["servers"], indirect=True)
async def test_shared_repairs_pause_longer_beside_many_workers(run: Run) -> None:
    async with run() as first:
        await report(first)
        async with run(worker=False) as second:
            [pace] = [repair for repair in second.process.repairs if repair.name == "pace"]
            await eventually(lambda: pace.looks > 0)
            seconds = {repair.name: repair.interval for repair in second.process.repairs}
            assert seconds["sweep"] == seconds["schedules"] == seconds["relay"] >= 3
            assert (seconds["pauses"], seconds["reap"], seconds["slots"]) == (1, 2.5, 5)


async def report(framework: TaskFramework) -> None:
    """Report so many workers."""
    store = framework.services.store
    now = store.now()
    workers = [Presence(f"worker-{i}", "host", i, "1.0", ("mail",), 10, 0, now, now) for i in range(_WORKERS)]
    until = now + timedelta(minutes=10)
    await store.write_records([PRESENCE.new(it.worker_id, content=it, expires_at=until) for it in workers])
