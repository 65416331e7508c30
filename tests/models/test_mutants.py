"""The walk can fail: every rule that is left out breaks a promise, every store that deviates is found out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from taskframework.grouping import Grouping
from taskframework.model.attempts import Claim, Complete, Fail, Release
from taskframework.model.batches import Announce, ReopenBatch, Seal
from taskframework.model.interventions import Cancel, Replay
from taskframework.model.marks import MarkPublished
from taskframework.model.signals import SendSignal, Wake
from taskframework.model.task import Task
from taskframework.model.waiting import CountSubtasks, Wait
from taskframework.stores.base import TaskStore
from taskframework.stores.mongo import queries as mongo_queries
from taskframework.stores.mongo import writer
from taskframework.stores.mongo.store import MongoStore
from taskframework.stores.mongo.transitions import build_write
from taskframework.stores.mongo.writes import Write
from taskframework.stores.sqlite import SqliteStore, groups, queries
from taskframework.stores.sqlite.rows import StoredTask
from tests.models.mutants import MUTANTS, Mutant
from tests.models.walk import walk, walk_together

_PATIENCE = 4_000
_AT_ONCE = 24


@pytest.mark.parametrize("mutant", [pytest.param(mutant, id=name) for name, mutant in MUTANTS.items()])
async def test_a_rule_that_is_left_out_breaks_a_promise(mutant: Mutant) -> None:
    async def search() -> None:
        for seed in range(mutant.first, mutant.first + _PATIENCE):
            await walk(seed, mutant.rules, mutant.without)

    with pytest.raises(AssertionError, match=mutant.breaks) as failure:
        await search()
    schedule, again = str(failure.value).rsplit("\n\n", 1)
    assert any(status in schedule for status in ("QUEUED", "WAITING", "BLOCKED"))
    assert again.startswith("again: ")


async def test_the_same_seed_walks_the_same_way() -> None:
    first, second = await walk(7), await walk(7)
    assert [request for request, _, _ in first.requests] == [request for request, _, _ in second.requests]


def _without_guard(*kinds: type, fields: Iterable[str]) -> Callable[[Any, Write], Write]:
    """These transitions no longer look at these fields."""

    def broken(request: Any, write: Write) -> Write:
        if not isinstance(request, kinds):
            return write
        return Write({name: value for name, value in write.guard.items() if name not in fields}, write.stages)

    return broken


def _without_change(*kinds: type, fields: Iterable[str]) -> Callable[[Any, Write], Write]:
    """These transitions leave these fields as they were."""

    def stripped(changes: dict[str, Any]) -> dict[str, Any]:
        if "$cond" in changes:
            condition, *branches = changes["$cond"]
            return {"$cond": [condition, *map(stripped, branches)]}
        return {name: value for name, value in changes.items() if name not in fields}

    def without(stage: dict[str, Any]) -> dict[str, Any]:
        if "$set" in stage:
            return {"$set": stripped(stage["$set"])}
        root, changes = stage["$replaceWith"]["$mergeObjects"]
        return {"$replaceWith": {"$mergeObjects": [root, stripped(changes)]}}

    def broken(request: Any, write: Write) -> Write:
        if not isinstance(request, kinds):
            return write
        return Write(write.guard, [without(stage) for stage in write.stages])

    return broken


_FENCE = ("fencing_token", "lease.claim_id", "$expr")
_BROKEN_WRITES: dict[str, Callable[[Any, Write], Write]] = {
    "an outcome without the fence": _without_guard(Complete, Fail, Release, fields=_FENCE),
    "a claim of any epoch": _without_guard(Claim, fields=["dispatch_epoch"]),
    "a claim before its time": _without_guard(Claim, fields=["not_before", "$expr"]),
    "a cancel of a final task": _without_guard(Cancel, fields=["status", "cancel"]),
    "a replay from an old list": _without_guard(Replay, fields=["revision"]),
    "a mark that may go back": _without_guard(MarkPublished, fields=["$expr"]),
    "a completion without its event": _without_change(Complete, fields=["history", "sequence"]),
    "a retry without a due time": _without_change(Fail, fields=["next_dispatch_at"]),
    "a replay that counts on": _without_change(Replay, fields=["attempts"]),
    "a release that keeps the epoch": _without_change(Release, fields=["dispatch_epoch"]),
    "a wait that keeps its plan to itself": _without_change(Wait, fields=["spawn_at"]),
    "a count that counts nothing": _without_change(CountSubtasks, fields=["subtasks.succeeded"]),
    "a count that leaves sub-tasks behind": _without_change(CountSubtasks, fields=["cascade_at"]),
    "an announcement behind the last item": _without_guard(Announce, fields=["subtasks.planned"]),
    "a seal that does not know all items": _without_guard(Seal, fields=["batch.items"]),
    "a batch that is reopened for no retry": _without_change(ReopenBatch, fields=["retry_at"]),
    "a signal that is told twice": _without_guard(SendSignal, fields=["signals.key"]),
    "a signal that is not noted as heard": _without_change(SendSignal, Wake, fields=["signals"]),
}


#: The seed with which the search begins where few schedules show it: those before it do not.
_FIRST = {
    "an outcome without the fence": 24,
    "a mark that may go back": 48,
    "a seal that does not know all items": 24,
}


@pytest.mark.parametrize("name", _BROKEN_WRITES)
async def test_a_mongo_write_that_deviates_is_found_out(
    name: str, mongo_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        writer, "build_write", lambda requests: _BROKEN_WRITES[name](requests[0], build_write(requests))
    )
    await _is_found_out(MongoStore(mongo_url), first=_FIRST.get(name, 0))


async def test_a_mongo_list_that_deviates_is_found_out(mongo_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mongo_queries, "due", lambda driver, grace: mongo_queries.driven(driver))
    await _is_found_out(MongoStore(mongo_url), "due by")


async def test_a_mongo_group_with_two_writes_to_a_task_is_found_out(
    mongo_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both settlements of one claim would seem to have won."""
    monkeypatch.setattr(writer, "Grouping", lambda write, key=None, **options: Grouping(write, **options))
    await _is_found_out(MongoStore(mongo_url), "no order explains")


@pytest.mark.parametrize(
    "column",
    [
        *("next_dispatch_at", "not_before", "lease_expires_at", "publish_at", "fencing_token"),
        *("check_at", "cascade_at", "seal_by"),
    ],
)
async def test_a_sqlite_column_that_is_left_as_it_was_is_found_out(
    column: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_UPDATES", "_UPDATES_IN_STATUS"):
        texts = getattr(queries, name)
        as_it_was = tuple(text.replace(f"excluded.{column}", f"tasks.{column}") for text in texts)
        assert as_it_was[-1] != texts[-1]
        monkeypatch.setattr(queries, name, as_it_was)
    await _is_found_out(SqliteStore(tmp_path / "tasks.db"))


@pytest.mark.parametrize("field", ["history", "lease", "attempts", "cancel", "subtasks", "signals", "waits_for"])
async def test_a_sqlite_document_that_forgets_a_field_is_found_out(
    field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed_to = StoredTask.changed_to

    def forgetful(row: StoredTask, task: Task) -> StoredTask:
        return changed_to(row, task.evolve(**{field: getattr(row.task, field)}))

    monkeypatch.setattr(StoredTask, "changed_to", forgetful)
    await _is_found_out(SqliteStore(tmp_path / "tasks.db"))


async def test_a_sqlite_group_that_loses_a_write_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second of two writes to a task in a group would start from the task before the first."""
    change = groups._Group._change

    def forgetful(group: groups._Group, request: groups.Change) -> Task | None:
        before = group.by_id.copy()
        try:
            return change(group, request)
        finally:
            group.by_id = before

    monkeypatch.setattr(groups._Group, "_change", forgetful)
    await _is_found_out(SqliteStore(tmp_path / "tasks.db"), "no order explains")


async def _is_found_out(store: TaskStore, match: str | None = None, *, first: int = 0) -> None:
    async def search() -> None:
        for seed in range(first, first + _PATIENCE, _AT_ONCE):
            await walk_together(range(seed, seed + _AT_ONCE), store)

    await store.open()
    try:
        with pytest.raises(AssertionError, match=match):
            await search()
    finally:
        await store.close()
