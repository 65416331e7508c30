"""What a long-running process does about garbage, and when a worker is ready."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any, cast

import pytest

from taskframework.cli import process
from taskframework.cli.process import reduce_garbage_collection
from taskframework.operations.health import Health


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before, is_frozen = gc.get_threshold(), gc.get_freeze_count() > 0
    gc.unfreeze()
    gc.set_threshold(*process._DEFAULT_GC_THRESHOLD)  # a library that another test uses may have changed it
    yield
    gc.unfreeze()
    if is_frozen:
        gc.freeze()
    gc.set_threshold(*before)


def test_objects_from_the_start_are_not_garbage_collected_again() -> None:
    there: list[list[int]] = [[]]
    reduce_garbage_collection()
    assert gc.get_freeze_count() > 1000
    assert not any(there is looked_at for looked_at in gc.get_objects())
    assert gc.get_threshold()[0] == 20_000


def test_garbage_collection_settings_of_an_application_stay() -> None:
    gc.set_threshold(123, 4, 5)
    reduce_garbage_collection()
    assert gc.get_threshold() == (123, 4, 5)


class Store:
    async def ping(self) -> None: ...

    async def read_records(self, ids: object) -> None: ...

    async def delete_records(self, records: object) -> None: ...


class Worker:
    worker_id, is_live = "w", False

    @property
    def problem(self) -> str | None:
        return None if self.is_live else "not consuming"


async def test_a_worker_is_not_ready_before_it_has_consumed_and_stays_ready_then() -> None:
    worker, health, stop = Worker(), Health(cast(Any, Store())), asyncio.Event()
    health.reported.append(("consumers", lambda: worker.problem))
    waiting = asyncio.create_task(process._report_when_live(cast(Any, worker), health, stop, None))
    await asyncio.sleep(0)
    readiness = await health.readiness()
    assert (readiness.ready, readiness.checks["consumers"]) == (False, "not consuming")
    worker.is_live = True
    await waiting
    worker.is_live = False
    readiness = await health.readiness()
    assert (readiness.ready, readiness.checks["consumers"]) == (True, "not consuming"), "submissions are stored"
