"""Store suite: the tasks of ordered streams by their positions, and the guarded writes on the record of a stream."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from taskframework.errors import StoreUnavailableError
from taskframework.model.options import StreamPlace
from taskframework.model.query import StreamTimes, TaskFilter
from taskframework.model.records import Record
from taskframework.model.scope import EVERYONE, Scope
from taskframework.model.status import FINAL, TaskStatus
from taskframework.model.streams import (
    MAX_KEPT_REQUESTS,
    STREAMS,
    Gap,
    PassTurn,
    Stream,
    StreamKey,
    TakePositions,
    Turn,
)
from taskframework.model.task import Task
from taskframework.stores.base import TaskStore
from taskframework.testing.conformance.store_suite import HOUR, MINUTE, StoreSuite, lose_reply, put

_MINE = StreamKey("alice", "$a/b.c")
_FIRST, _SECOND = Turn("task-1", 0, 3), Turn("task-2", 1, 4)


async def _put_at(store: TaskStore, position: int, status: TaskStatus, stream: StreamKey = _MINE, **more: Any) -> Task:
    fields: dict[str, Any] = {"status": status, "user_id": stream.user_id}
    fields["stream"] = StreamPlace(stream.key, "serial", position)
    fields["unblock_at"] = store.now() + HOUR if status is TaskStatus.BLOCKED else None
    fields["next_dispatch_at"] = store.now() + HOUR if status is TaskStatus.QUEUED else None
    fields["finished_at"] = store.now() if status in FINAL else None
    return await put(store, **(fields | more))


async def _change_and_check(store: TaskStore, change: TakePositions | PassTurn) -> Stream:
    """Make a change, check it against the rule, and return the stream after it."""
    before = (await store.read_records([change.record_id])).get(change.record_id)
    asked_at = store.now()
    after = await store.change_record(change)
    assert await store.read_records([change.record_id]) == {change.record_id: after}
    expected = change.change(before, asked_at)
    assert (after.kind, STREAMS.content(after)) == (STREAMS.name, STREAMS.content(expected))
    assert after.expires_at is not None
    assert expected.expires_at is not None
    assert abs(after.expires_at - expected.expires_at) < MINUTE
    return STREAMS.content(after)


def _take(count: int = 1, stream: StreamKey = _MINE) -> TakePositions:
    return TakePositions(stream, HOUR, "serial", count)


def _pass(before: Turn | None, after: Turn | None, *, is_halted: bool = False) -> PassTurn:
    return PassTurn(_MINE, HOUR, before, after, is_halted)


class StreamCases(StoreSuite):
    """The promises of `StreamReads` and of the record of a stream."""

    async def test_the_tasks_of_a_stream_are_read_by_position(self, store: TaskStore) -> None:
        tasks = [await _put_at(store, at, status) for at, status in zip((4, 0, 2, 7), TaskStatus, strict=False)]
        for other in (StreamKey("bob", _MINE.key), StreamKey("alice", "b")):
            await _put_at(store, 1, TaskStatus.BLOCKED, other)
        await put(store)
        in_order = [tasks[1], tasks[2], tasks[0], tasks[3]]
        assert list(await store.list_stream(_MINE, limit=9)) == in_order
        assert list(await store.list_stream(_MINE, limit=2, after_position=0)) == in_order[1:3]
        times = [
            StreamTimes(task.stream.position, task.created_at, task.finished_at) for task in in_order if task.stream
        ]
        assert list(await store.stream_times(_MINE, limit=9)) == times
        assert list(await store.stream_times(_MINE, limit=2, after_position=2)) == times[2:]

    async def test_the_blocked_task_with_the_lowest_position_is_next(self, store: TaskStore) -> None:
        assert await store.next_blocked([]) == {}
        assert await store.next_blocked([_MINE]) == {}
        await _put_at(store, 0, TaskStatus.QUEUED)
        third = await _put_at(store, 2, TaskStatus.BLOCKED)
        assert await store.next_blocked([_MINE]) == {_MINE: Turn(third.task_id, 0, 2)}
        second = await _put_at(store, 1, TaskStatus.BLOCKED, generation=4)
        theirs = StreamKey("bob", _MINE.key)
        first = await _put_at(store, 0, TaskStatus.BLOCKED, theirs)
        await _put_at(store, 9, TaskStatus.BLOCKED, theirs)
        found = await store.next_blocked([_MINE, theirs, StreamKey("alice", "none")])
        assert found == {_MINE: Turn(second.task_id, 4, 1), theirs: Turn(first.task_id, 0, 0)}
        assert await store.count_blocked(_MINE) == 2
        assert await store.count_blocked(StreamKey("alice", "none")) == 0

    async def test_a_list_has_the_tasks_of_a_stream_newest_first(self, store: TaskStore) -> None:
        now = store.now()
        tasks = [await _put_at(store, at, TaskStatus.BLOCKED, created_at=now - at * MINUTE) for at in range(5)]
        theirs = await _put_at(store, 0, TaskStatus.QUEUED, StreamKey("bob", _MINE.key), created_at=now - HOUR)
        await put(store)
        wanted = TaskFilter(stream=_MINE.key)
        page = await store.list_tasks(EVERYONE, wanted, limit=4)
        rest = await store.list_tasks(EVERYONE, wanted, limit=4, cursor=page.next_cursor)
        assert [*page.items, *rest.items] == [*tasks, theirs]
        assert (await store.list_tasks(Scope.of("bob"), wanted, limit=4)).items == (theirs,)
        in_status = TaskFilter(status=TaskStatus.QUEUED, stream=_MINE.key)
        assert (await store.list_tasks(EVERYONE, in_status, limit=4)).items == (theirs,)

    async def test_positions_are_given_one_after_the_other(self, store: TaskStore) -> None:
        assert (await _change_and_check(store, _take(3))).next_position == 3
        assert (await _change_and_check(store, _take())).next_position == 4
        other_mode = TakePositions(_MINE, HOUR, "ordered_results", 5)
        assert replace(await _change_and_check(store, other_mode), taken=()) == Stream("serial", 4)

    async def test_no_position_is_given_twice(self, store: TaskStore) -> None:
        replies = await asyncio.gather(*(store.change_record(_take(2)) for _ in range(30)))
        states = [STREAMS.content(reply) for reply in replies]
        assert sorted(state.next_position for state in states) == list(range(2, 61, 2))
        assert max(len(state.taken) for state in states) == MAX_KEPT_REQUESTS, "it grows no further"

    async def test_positions_whose_reply_is_lost_are_not_given_again(self, store: TaskStore) -> None:
        with lose_reply("record.reply"), pytest.raises(StoreUnavailableError):
            await store.change_record(_take(2))
        assert (await _change_and_check(store, _take())).next_position == 3

    async def test_positions_in_several_streams_are_taken_together(self, store: TaskStore) -> None:
        existing, other, new = (StreamKey("bob", name) for name in ("there", "other-mode", "new"))
        await store.change_record(_take(7, existing))
        await store.change_record(TakePositions(other, HOUR, "ordered_results", 7))
        takes = [_take(2, stream) for stream in (existing, other, new)]
        for time in ("first", "second"):
            records = await store.take_positions(takes)
            states = [STREAMS.content(record) for record in records]
            assert [record.id for record in records] == [take.record_id for take in takes]
            assert [take.first_in(state) for take, state in zip(takes, states, strict=True)] == [7, None, 0], time
            assert [state.next_position for state in states] == [9, 7, 2], time
        assert await store.read_records([take.record_id for take in takes]) == {record.id: record for record in records}

    async def test_positions_taken_together_whose_reply_is_lost_are_found(self, store: TaskStore) -> None:
        takes = [_take(2, StreamKey("bob", f"stream-{n}")) for n in range(3)]
        await store.take_positions([_take(5, take.stream) for take in takes])
        with lose_reply("record.reply"), suppress(StoreUnavailableError):
            await store.take_positions(takes)
        states = [STREAMS.content(record) for record in await store.take_positions(takes)]
        assert [(take.first_in(state), state.next_position) for take, state in zip(takes, states, strict=True)] == [
            (5, 7)
        ] * 3

    async def test_many_take_positions_in_the_same_streams(self, store: TaskStore) -> None:
        streams = [StreamKey("bob", f"stream-{n}") for n in range(5)]
        groups = [[_take(2, stream) for stream in streams] for _ in range(10)]
        replies = await asyncio.gather(*(store.take_positions(takes) for takes in groups))
        taken: dict[StreamKey, set[int | None]] = {stream: set() for stream in streams}
        for takes, records in zip(groups, replies, strict=True):
            for take, record in zip(takes, records, strict=True):
                taken[take.stream].add(take.first_in(STREAMS.content(record)))
        assert all(len(firsts) == len(groups) and None not in firsts for firsts in taken.values())

    async def test_the_turn_passes_only_from_the_task_that_was_read(self, store: TaskStore) -> None:
        await _change_and_check(store, _take(5))
        assert (await _change_and_check(store, _pass(None, _FIRST))).turn == _FIRST
        assert (await _change_and_check(store, _pass(None, _SECOND))).turn == _FIRST
        again = Turn(_FIRST.task_id, 1, _FIRST.position)
        assert (await _change_and_check(store, _pass(again, _SECOND))).turn == _FIRST, "another generation of it"
        halted = await _change_and_check(store, _pass(_FIRST, _FIRST, is_halted=True))
        assert (halted.turn, halted.is_halted) == (_FIRST, True)
        after = await _change_and_check(store, _pass(_FIRST, _SECOND))
        assert (after.turn, after.is_halted, after.next_position) == (_SECOND, False, 5)
        assert (await _change_and_check(store, _pass(_SECOND, None))).turn is None

    async def test_streams_that_halted_are_found_whoever_they_belong_to(self, store: TaskStore) -> None:
        assert list(await store.halted_streams(9)) == []
        theirs, open_stream = StreamKey("bob", "ü / %"), StreamKey("alice", "open")
        for stream in (_MINE, theirs, open_stream):
            await store.change_record(TakePositions(stream, HOUR, "serial", 5))
            await store.change_record(PassTurn(stream, HOUR, None, _FIRST))
        for stream in (_MINE, theirs):
            await store.change_record(PassTurn(stream, HOUR, _FIRST, _FIRST, is_halted=True))
        assert set(await store.halted_streams(9)) == {_MINE, theirs}
        assert len(await store.halted_streams(1)) == 1
        await store.change_record(PassTurn(_MINE, HOUR, _FIRST, _SECOND))
        assert list(await store.halted_streams(9)) == [theirs]

    async def test_turns_of_several_streams_are_passed_on_together(self, store: TaskStore) -> None:
        theirs, new = StreamKey("bob", _MINE.key), StreamKey("alice", "new")
        for stream in (_MINE, theirs):
            await store.change_record(TakePositions(stream, HOUR, "serial", 5))
        await _change_and_check(store, _pass(None, _FIRST))
        passes = [PassTurn(stream, HOUR, None, _SECOND) for stream in (_MINE, theirs, new)]
        assert list(await store.pass_turns(passes)) == [False, True, True]
        assert list(await store.pass_turns(passes)) == [False, True, True], "made already"
        read = await store.read_records([turn_pass.record_id for turn_pass in passes])
        assert {key: STREAMS.content(record).turn for key, record in read.items()} == {
            _MINE.record_id: _FIRST,
            theirs.record_id: _SECOND,
            new.record_id: _SECOND,
        }
        further = [PassTurn(stream, HOUR, _SECOND, turn) for stream, turn in ((theirs, _FIRST), (new, None))]
        assert list(await store.pass_turns(further)) == [True, True], "all at once"
        read = await store.read_records([turn_pass.record_id for turn_pass in further])
        assert {key: STREAMS.content(record).turn for key, record in read.items()} == {
            theirs.record_id: _FIRST,
            new.record_id: None,
        }

    async def test_one_of_many_writes_that_pass_the_turn_wins(self, store: TaskStore) -> None:
        turns = [Turn(f"task-{n}", 0, n) for n in range(20)]
        replies = await asyncio.gather(*(store.change_record(_pass(None, turn)) for turn in turns))
        assert len({STREAMS.content(reply).turn for reply in replies}) == 1

    async def test_a_record_that_was_lost_gives_no_position_twice(self, store: TaskStore) -> None:
        assert (await _change_and_check(store, _pass(None, _FIRST))).next_position == _FIRST.position + 1
        assert (await _change_and_check(store, _take())).next_position == _FIRST.position + 2

    async def test_other_fields_in_the_record_of_a_stream_stay(self, store: TaskStore) -> None:
        data = {"mode": "serial", "next_position": 2, "skipped": [{"first": 0, "last": 0}], "novel": {"b": 1}}
        late = store.now() + 1_000 * HOUR
        await store.write_records([Record(_MINE.record_id, STREAMS.name, data, expires_at=late)])
        assert (await _change_and_check(store, _take())).skipped == (Gap(0, 0),)
        await _change_and_check(store, _pass(None, _FIRST))
        [record] = (await store.read_records([_MINE.record_id])).values()
        assert record.data["novel"] == {"b": 1}
        assert record.expires_at is not None
        assert abs(record.expires_at - late) < timedelta(milliseconds=2), "never sooner than it was"

    async def test_a_task_stays_while_an_earlier_one_of_its_stream_is_live(self, store: TaskStore) -> None:
        past_end: dict[str, Any] = {"finished_at": store.now() - HOUR, "publish_at": None, "published_sequence": 1}
        past_end_with_purge: dict[str, Any] = {**past_end, "purge_at": store.now() - MINUTE}
        other = StreamKey("bob", _MINE.key)
        gone = [
            await _put_at(store, 1, TaskStatus.COMPLETED, **past_end),
            await _put_at(store, 3, TaskStatus.CANCELLED, **past_end_with_purge),
            await _put_at(store, 6, TaskStatus.COMPLETED, other, **past_end),
        ]
        await _put_at(store, 4, TaskStatus.WAITING)
        ends = (
            (5, TaskStatus.COMPLETED, past_end),
            (6, TaskStatus.FAILED, past_end),
            (7, TaskStatus.COMPLETED, past_end_with_purge),
        )
        for position, status, times in ends:
            await _put_at(store, position, status, **times)
        await _put_at(store, 8, TaskStatus.BLOCKED)
        for _ in range(3):
            await store.purge(finished=MINUTE, dead_letters=MINUTE, limit=100)
        assert [times.position for times in await store.stream_times(_MINE, limit=9)] == [4, 5, 6, 7, 8]
        assert [await store.get(task.task_id, EVERYONE) for task in gone] == [None] * 3
