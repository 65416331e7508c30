"""What many unit tests stand on: a clock that they move, and a store that goes by it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from taskframework.stores.sqlite import SqliteStore
from taskframework.testing.clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def store(tmp_path: Path, clock: FakeClock) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "tasks.db", clock=clock)
    await store.open()
    yield store
    await store.close()
