"""The SQLite store does what every store must do."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from taskframework.stores.base import TaskStore
from taskframework.stores.sqlite import SqliteStore
from taskframework.testing.clock import FakeClock
from taskframework.testing.conformance.store import StoreConformance
from tests.conformance.idempotency_cases import IdempotencyCases
from tests.conformance.replay_cases import ReplayCases
from tests.conformance.schedule_cases import ScheduleCases


class TestSqliteStore(StoreConformance, IdempotencyCases, ReplayCases, ScheduleCases):
    """On a clock that stands still: what is due, is due exactly."""

    options: ClassVar[dict[str, Any]] = {}

    @pytest.fixture(autouse=True)
    def _file(self, tmp_path: Path) -> None:
        self.clock = FakeClock()
        self.path = tmp_path / "tasks.db"

    async def make_store(self) -> TaskStore:
        store = SqliteStore(self.path, clock=self.clock, **self.options)
        await store.open()
        return store

    async def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)


class TestSqliteStoreThatRemembersNothing(TestSqliteStore):
    options: ClassVar[dict[str, Any]] = {"remembered": 0}
