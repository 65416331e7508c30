"""Store suite: what workers declare of their task types."""

from __future__ import annotations

import asyncio
from typing import Any

from taskframework.stores.base import TaskStore
from taskframework.tasks.declared import TaskDeclaration
from taskframework.testing.conformance.store_suite import StoreSuite

#: Names that mean something to a database, and a number that needs more than 64 bits.
_SCHEMA = {
    "$ref": "#/$defs/a.b",
    "$defs": {"a.b": {"type": "integer", "maximum": 10**30}},
    "title": "\N{GREEK SMALL LETTER PI}",
}


def _declaration(store: TaskStore, task_type: str, **changes: Any) -> TaskDeclaration:
    values: dict[str, Any] = {
        "parameters_schema": _SCHEMA,
        "result_schema": {},
        "priority": "normal",
        "declared_at": store.now(),
    }
    return TaskDeclaration(task_type=task_type, **(values | changes))


class TaskTypeCases(StoreSuite):
    """What `declare_task_types` and `task_types` promise."""

    async def test_a_declaration_is_read_back_as_it_was(self, store: TaskStore) -> None:
        declared = [_declaration(store, "one", max_attempts=3, priority="high"), _declaration(store, "two.more")]
        await store.declare_task_types(declared)
        assert sorted(await store.task_types(), key=lambda found: found.task_type) == declared

    async def test_the_types_of_given_names_are_found(self, store: TaskStore) -> None:
        declared = {name: _declaration(store, name) for name in ("one", "two", "three")}
        await store.declare_task_types(list(declared.values()))
        found = await store.task_types(["three", "one", "four"])
        assert {declaration.task_type: declaration for declaration in found} == {
            name: declared[name] for name in ("one", "three")
        }
        assert await store.task_types([]) == []

    async def test_the_last_declaration_counts(self, store: TaskStore) -> None:
        other = _declaration(store, "other")
        await store.declare_task_types([_declaration(store, "one"), other])
        newer = _declaration(store, "one", parameters_schema={"type": "null"}, max_attempts=9)
        await store.declare_task_types([newer])
        assert sorted(await store.task_types(), key=lambda found: found.task_type) == [newer, other]

    async def test_workers_that_start_at_once_declare_the_same(self, store: TaskStore) -> None:
        declared = [_declaration(store, f"type-{number}") for number in range(5)]
        await asyncio.gather(*(store.declare_task_types(declared) for _ in range(10)))
        assert len(await store.task_types()) == 5

    async def test_nothing_to_declare_changes_nothing(self, store: TaskStore) -> None:
        await store.declare_task_types([])
        assert await store.task_types() == []
