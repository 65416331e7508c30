"""What `docs/adding/record-kind.md` promises: a kind is one dataclass and one name, and no store changes for it."""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from taskframework.model.records import RecordKind
from taskframework.operations import unreadable
from taskframework.recovery.retention import RetentionRepair
from taskframework.stores.base import TaskStore
from taskframework.stores.mongo.store import MongoStore
from taskframework.stores.sqlite import SqliteStore
from tests.architecture.sources import PACKAGE

HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Pause:
    """A throw-away kind: who wants a task type to pause, each with a time."""

    wanted_by: tuple[str, ...] = ()
    until: datetime | None = None

    def also_by(self, who: str, until: datetime) -> Pause:
        return replace(self, wanted_by=(*self.wanted_by, who), until=max(until, self.until or until))


PAUSES = RecordKind("pause", Pause)


@pytest.fixture(params=["sqlite", "mongo"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[TaskStore]:
    opened: TaskStore = (
        SqliteStore(tmp_path / "tasks.db")
        if request.param == "sqlite"
        else MongoStore(request.getfixturevalue("mongo_url"))
    )
    await opened.open()
    yield opened
    await opened.close()


async def pause(store: TaskStore, task_type: str, who: str, until: datetime) -> Pause:
    """Compare and set, as the page has it."""
    record_id = PAUSES.id_of(task_type)
    while True:
        there = (await store.read_records([record_id])).get(record_id)
        if there is None:
            new = PAUSES.new(task_type, content=Pause().also_by(who, until), expires_at=until)
        else:
            paused = PAUSES.content(there).also_by(who, until)
            new = PAUSES.changed(there, paused, expires_at=paused.until)
        [written] = await store.write_records([new])
        if written is not None:
            return PAUSES.content(written)


async def test_many_write_one_record_and_nobody_is_forgotten(store: TaskStore) -> None:
    until = store.now() + HOUR
    await asyncio.gather(*(pause(store, "a/b", f"user-{n}", until) for n in range(15)))
    [record] = await store.list_records("pause", limit=10)
    assert sorted(PAUSES.content(record).wanted_by) == sorted(f"user-{n}" for n in range(15))
    assert record.expires_at == until


async def test_a_record_is_removed_when_its_time_is_over(store: TaskStore) -> None:
    retention = RetentionRepair(store, finished=None, dead_letters=None, idempotency_keys=HOUR, limit=10)
    await pause(store, "over", "alice", store.now() - HOUR)
    await pause(store, "lasting", "alice", store.now() + HOUR)
    await retention.purge()
    assert [record.id for record in await store.list_records("pause", limit=10)] == [PAUSES.id_of("lasting")]


def test_no_store_knows_a_kind_by_name_but_those_of_tasks_that_are_deleted() -> None:
    """A kind that an adapter names is one that the next author has to look for there."""
    naming = {
        str(path.relative_to(PACKAGE))
        for path in (PACKAGE / "stores").rglob("*.py")
        if "RecordKind(" in path.read_text() or "model.idempotency" in path.read_text()
    }
    assert naming == {"stores/mongo/earlier_release.py", "stores/mongo/records.py", "stores/sqlite/records.py"}


def test_doctor_looks_at_every_kind() -> None:
    modules = [
        importlib.import_module(f"taskframework.{module.name}")
        for folder in ("model", "tasks")
        for module in pkgutil.iter_modules([str(PACKAGE / folder)], f"{folder}.")
    ]
    kinds = {
        value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, RecordKind) and not name.startswith("_")
    }
    assert {kind.name for kind in kinds} == {kind.name for kind in unreadable._KINDS}
