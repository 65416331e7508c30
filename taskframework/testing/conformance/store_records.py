"""Store suite: records."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from taskframework.errors import StoreUnavailableError, ValueNotStorableError
from taskframework.model.records import Record, RecordKind
from taskframework.stores.base import TaskStore
from taskframework.testing.conformance.store_suite import HOUR, MINUTE, SECOND, StoreSuite, lose_reply
from taskframework.testing.conformance.store_values import HOSTILE


@dataclass(frozen=True, slots=True)
class Note:
    """The content of a record kind that only this suite has."""

    text: str = ""
    at: datetime | None = None
    value: Any = None
    tags: tuple[str, ...] = field(default=())


NOTES = RecordKind("note", Note)
#: Values that users' values may not have, and values that have a meaning only in a record.
HOSTILE_DATA: dict[str, Any] = {
    **HOSTILE,
    "nul in a key": {"a\0b": "c\0d"},
    "field path of a record": "$data",
    "more than 64 bits": 10**30,
    "both": {"$max": 10**30},
    "negative zero": -0.0,
}
HOSTILE_PARTS = ["$where", "a.b", "a/b", "a%2Fb", "a\0b", "\ud800", "", " ", "x" * 2_000, "ключ", "'; --"]


async def write_new(store: TaskStore, *records: Record) -> list[Record]:
    """Write records that nobody else writes at the same time."""
    replies = await store.write_records(records)
    assert None not in replies
    return [reply for reply in replies if reply is not None]


async def read_record(store: TaskStore, record_id: str) -> Record | None:
    return (await store.read_records([record_id])).get(record_id)


class RecordCases(StoreSuite):
    """The promises of `Records`."""

    async def test_a_record_is_read_back_as_it_was_written(self, store: TaskStore) -> None:
        note = Note("text", store.now(), {"n": 1}, ("a", "b"))
        new = NOTES.new("alice", "1", content=note, expires_at=store.now() + HOUR)
        [record] = await write_new(store, new)
        assert await store.read_records([record.id, "note/unknown"]) == {record.id: record}
        assert record == replace(new, revision=record.revision)
        assert NOTES.content(record) == note
        assert await store.read_records([]) == {}

    @pytest.mark.parametrize("value", HOSTILE_DATA.values(), ids=HOSTILE_DATA)
    async def test_any_data_of_a_record_come_back_unchanged(self, store: TaskStore, value: Any) -> None:
        [record] = await write_new(store, NOTES.new("1", content=Note(value=value)))
        [changed] = await write_new(store, NOTES.changed(record, Note(value=[value])))
        found = await read_record(store, record.id)
        assert found == changed
        assert NOTES.content(changed).value == [value]
        assert repr(NOTES.content(found)) == repr(NOTES.content(changed)), "also what only looks the same"

    async def test_an_id_is_made_of_any_parts_and_belongs_to_them_alone(self, store: TaskStore) -> None:
        pairs = [(left, right) for left in HOSTILE_PARTS for right in HOSTILE_PARTS]
        records = [NOTES.new(*pair, content=Note(value=n)) for n, pair in enumerate(pairs)]
        await write_new(store, *records)
        found = await store.read_records([NOTES.id_of(*pair) for pair in pairs])
        assert [NOTES.content(found[NOTES.id_of(*pair)]).value for pair in pairs] == list(range(len(pairs)))

    async def test_a_record_that_cannot_be_stored_is_refused_with_all_of_its_call(self, store: TaskStore) -> None:
        unstorable = Record("note/2", "note", {"value": object()})
        with pytest.raises(ValueNotStorableError):
            await store.write_records([NOTES.new("1", content=Note()), unstorable])
        assert await read_record(store, NOTES.id_of("1")) is None

    async def test_a_second_new_record_of_an_id_is_lost(self, store: TaskStore) -> None:
        [first] = await write_new(store, NOTES.new("1", content=Note("first")))
        other = NOTES.new("2", content=Note("other"))
        lost, won = await store.write_records([NOTES.new("1", content=Note("second")), other])
        assert lost is None
        assert won is not None
        assert await read_record(store, first.id) == first

    async def test_a_change_is_lost_where_somebody_was_faster(self, store: TaskStore) -> None:
        [read] = await write_new(store, NOTES.new("1", content=Note("read")))
        [faster] = await write_new(store, NOTES.changed(read, Note("faster")))
        assert await store.write_records([NOTES.changed(read, Note("slower"))]) == [None]
        assert await read_record(store, read.id) == faster
        assert faster.revision != read.revision

    async def test_one_of_many_writes_of_one_new_record_wins(self, store: TaskStore) -> None:
        new = [NOTES.new("1", content=Note(value=n)) for n in range(50)]
        replies = await asyncio.gather(*(store.write_records([record]) for record in new))
        [winner] = [reply for (reply,) in replies if reply is not None]
        assert await read_record(store, winner.id) == winner

    async def test_no_change_of_many_concurrent_ones_is_lost(self, store: TaskStore) -> None:
        await write_new(store, NOTES.new("1", content=Note(value=0)))

        async def count() -> None:
            while True:
                read = (await store.read_records([NOTES.id_of("1")]))[NOTES.id_of("1")]
                more = NOTES.changed(read, Note(value=NOTES.content(read).value + 1))
                if await store.write_records([more]) != [None]:
                    return

        await asyncio.gather(*(count() for _ in range(12)))
        assert NOTES.content((await store.read_records([NOTES.id_of("1")]))[NOTES.id_of("1")]).value == 12

    async def test_each_of_many_records_in_one_call_is_won_or_lost_alone(self, store: TaskStore) -> None:
        known = await write_new(store, *(NOTES.new(f"{n}", content=Note("known")) for n in range(0, 1_200, 3)))
        await write_new(store, *(NOTES.changed(record, Note("faster")) for record in known[::2]))
        changes = [NOTES.changed(record, Note("changed")) for record in known]
        new = [NOTES.new(f"{n}", content=Note("new")) for n in range(1_200)]
        replies = await store.write_records([*changes, *new])
        assert [reply is not None for reply in replies] == [
            *(at % 2 == 1 for at in range(400)),
            *(n % 3 > 0 for n in range(1_200)),
        ]
        assert await store.write_records([]) == []

    async def test_fields_of_a_newer_release_stay(self, store: TaskStore) -> None:
        newer = Record("note/1", "note", {"text": "a", "novel": {"b": 1}})
        [record] = await write_new(store, newer)
        [changed] = await write_new(store, NOTES.changed(record, Note("c")))
        assert changed.data["novel"] == {"b": 1}
        assert NOTES.content(changed).text == "c"

    async def test_a_record_is_deleted_only_as_it_was_read(self, store: TaskStore) -> None:
        changed, same = await write_new(store, *(NOTES.new(name, content=Note()) for name in "ab"))
        [newer] = await write_new(store, NOTES.changed(changed, Note("newer")))
        assert await store.delete_records([changed, same]) == 1
        assert await store.read_records([changed.id, same.id]) == {changed.id: newer}
        assert await store.delete_records([]) == 0

    async def test_a_record_that_was_created_again_is_not_the_one_that_was_read(self, store: TaskStore) -> None:
        [old] = await write_new(store, NOTES.new("1", content=Note("old")))
        await store.delete_records([old])
        [new] = await write_new(store, NOTES.new("1", content=Note("new")))
        assert await store.delete_records([old]) == 0
        assert await store.write_records([NOTES.changed(old, Note("older"))]) == [None]
        assert await read_record(store, old.id) == new

    async def test_records_of_a_kind_are_listed_by_their_ids(self, store: TaskStore) -> None:
        other = RecordKind("note-of-another-kind", Note)
        await write_new(
            store, *(kind.new(f"{n:02}", content=Note()) for n in range(9, -1, -1) for kind in (NOTES, other))
        )
        first = await store.list_records("note", limit=6)
        rest = await store.list_records("note", limit=6, after=first[-1].id)
        assert [record.id for record in (*first, *rest)] == [NOTES.id_of(f"{n:02}") for n in range(10)]
        assert await store.list_records("not", limit=6) == []

    async def test_expired_records_are_found_the_longest_due_first(self, store: TaskStore) -> None:
        now = store.now()
        times = {"late": now - SECOND, "first": now - MINUTE, "future": now + MINUTE, "never": None}
        for name, time in times.items():
            await write_new(store, NOTES.new(name, content=Note(), expires_at=time))
        found = [record.id for record in await store.expired_records(10)]
        assert found == [NOTES.id_of("first"), NOTES.id_of("late")]
        assert [record.id for record in await store.expired_records(1)] == found[:1]

    async def test_a_record_expires(self, store: TaskStore) -> None:
        expires_at = store.now() + timedelta(seconds=0.2)
        [record] = await write_new(store, NOTES.new("1", content=Note(), expires_at=expires_at))
        await self.pass_time(0.3)
        assert await store.expired_records(10) == [record]
        [later] = await write_new(store, NOTES.changed(record, Note(), expires_at=expires_at + HOUR))
        assert await store.expired_records(10) == []
        assert later.expires_at == expires_at + HOUR

    @pytest.mark.parametrize("is_new", [True, False], ids=["new", "changed"])
    @pytest.mark.parametrize("count", [1, 7])
    async def test_a_write_whose_reply_is_lost_is_made_once(self, store: TaskStore, is_new: bool, count: int) -> None:
        new = [NOTES.new(f"{n}", content=Note("new")) for n in range(count)]
        wanted = new if is_new else [NOTES.changed(record, Note("changed")) for record in await write_new(store, *new)]
        with lose_reply("record.reply"):
            try:
                replies = await store.write_records(wanted)
            except StoreUnavailableError:  # the write may have been applied, and here it was
                replies = await store.write_records(wanted)
                assert replies == [None] * count
            else:
                assert None not in replies
        found = await store.read_records([record.id for record in wanted])
        assert {record.data["text"] for record in found.values()} == {"new" if is_new else "changed"}
        assert len(found) == count
