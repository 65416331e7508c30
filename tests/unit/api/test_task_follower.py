"""Following one task: each event once and in order, whatever was missed on the way."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from taskframework.api import task_follower
from taskframework.api.feed import FeedEvent, Watcher, event_frame
from taskframework.api.task_follower import TaskFollower
from taskframework.clock import SystemClock
from taskframework.errors import StoreUnavailableError
from taskframework.events.external import ExternalEvent, lifecycle_events, progress_event
from taskframework.model.scope import EVERYONE, Scope
from taskframework.model.status import TaskStatus
from taskframework.model.task import Task
from taskframework.model.task_fields import HistoryEntry
from taskframework.testing.factories import new_task

TYPES = ("submitted", "started", "retrying", "started", "completed")
#: After every event of `task_at`.
LATER = SystemClock().now() + timedelta(hours=1)


def task_at(sequence: int, types: tuple[str, ...] = TYPES, *, forgotten: int = 0, **changes: Any) -> Task:
    """The task as it was after so many events; the oldest may be forgotten."""
    task = new_task(task_id="t")
    history = [HistoryEntry(n + 1, types[n], task.created_at, 0, None, None) for n in range(sequence)]
    final = TaskStatus.COMPLETED if types[sequence - 1] == "completed" else TaskStatus.RUNNING
    return task.evolve(sequence=sequence, history=tuple(history[forgotten:]), **({"status": final} | changes))


@dataclass
class Store:
    """What a follower knows of a store."""

    task: Task | None
    reads: int = 0

    async def get(self, task_id: str, scope: Scope) -> Task | None:
        self.reads += 1
        return self.task


def put(watcher: Watcher, *events: ExternalEvent) -> None:
    for event in events:
        watcher.put(FeedEvent(event, event_frame(event)))


def event_of(sequence: int, types: tuple[str, ...] = TYPES) -> ExternalEvent:
    task = task_at(sequence, types)
    return lifecycle_events(task, 0, "here")[-1]


def follower(
    task: Task, watcher: Watcher, store: Any = None, after: int | None = None, progress: int | None = None
) -> TaskFollower:
    known: Any = store or Store(task)
    return TaskFollower(task, watcher, known, EVERYONE, "here", None if after is None else (after, progress))


async def told(frames: AsyncIterator[bytes]) -> list[str]:
    """What a client gets: `event id` for each event, comments as they are."""
    text = b"".join([frame async for frame in frames]).decode()
    return [_told(part) for part in text.split("\n\n") if part]


def _told(part: str) -> str:
    if part.startswith(":"):
        return part
    fields = dict(line.split(": ", 1) for line in part.split("\n"))
    json.loads(fields["data"])
    return f"{fields['event']} {fields.get('id', '')}".strip()


@pytest.fixture
def watcher() -> Watcher:
    return Watcher(EVERYONE, "t")


async def test_a_follower_gets_the_whole_task_then_its_events_until_the_end(watcher: Watcher) -> None:
    put(watcher, *map(event_of, range(1, 6)))
    store = Store(None)
    assert await told(follower(task_at(2), watcher, store).frames()) == [
        "snapshot t-2", "task.retrying t-3", "task.started t-4", "task.completed t-5",
    ]  # fmt: skip
    assert store.reads == 0


async def test_a_follower_of_a_final_task_gets_only_the_task(watcher: Watcher) -> None:
    assert await told(follower(task_at(5), watcher).frames()) == ["snapshot t-5"]


async def test_a_reader_that_has_some_events_gets_the_rest(watcher: Watcher) -> None:
    put(watcher, event_of(3), event_of(5))
    frames = follower(task_at(4), watcher, after=2).frames()
    assert await told(frames) == ["task.retrying t-3", "task.started t-4", "task.completed t-5"]


async def test_a_reader_that_has_all_events_waits_for_more(watcher: Watcher) -> None:
    put(watcher, event_of(5))
    assert await told(follower(task_at(4), watcher, after=4).frames()) == [": heartbeat", "task.completed t-5"]


@pytest.mark.parametrize(("sequence", "after", "nothing"), [(5, 5, True), (5, 9, True), (5, 4, False), (4, 4, False)])
async def test_a_reader_that_knows_all_of_a_final_task_has_nothing_to_read(
    watcher: Watcher, sequence: int, after: int, nothing: bool
) -> None:
    assert follower(task_at(sequence), watcher, after=after).has_nothing_to_send is nothing


async def test_a_reader_that_was_away_too_long_gets_the_whole_task(watcher: Watcher) -> None:
    task = task_at(5, forgotten=3)
    assert await told(follower(task, watcher, after=2).frames()) == ["snapshot t-5"]
    assert await told(follower(task, watcher, after=3).frames()) == ["task.started t-4", "task.completed t-5"]


async def test_missed_events_are_read_from_the_store(watcher: Watcher) -> None:
    store = Store(task_at(4))
    put(watcher, event_of(4), event_of(3), event_of(5))
    assert await told(follower(task_at(2), watcher, store).frames()) == [
        "snapshot t-2", "task.retrying t-3", "task.started t-4", "task.completed t-5",
    ]  # fmt: skip
    assert store.reads == 1


async def test_duplicate_events_are_sent_once(watcher: Watcher) -> None:
    put(watcher, event_of(3), event_of(3), event_of(2), event_of(4), event_of(3), event_of(5), event_of(5))
    events = await told(follower(task_at(2), watcher).frames())
    assert events == ["snapshot t-2", "task.retrying t-3", "task.started t-4", "task.completed t-5"]


async def test_no_event_is_sent_after_the_task_has_ended(watcher: Watcher) -> None:
    types = (*TYPES, "replayed")
    late = progress_event(task_at(5, progress_revision=9), "here")
    put(watcher, event_of(5), late, event_of(6, types))
    assert await told(follower(task_at(4), watcher).frames()) == ["snapshot t-4", "task.completed t-5"]


async def test_progress_is_sent_and_does_not_count_as_an_event(watcher: Watcher) -> None:
    def progress(sequence: int, revision: int) -> ExternalEvent:
        return progress_event(task_at(sequence, progress_revision=revision), "here")

    put(watcher, progress(2, 3), progress(2, 4), progress(2, 4), event_of(3), event_of(4), progress(4, 5), event_of(5))
    assert await told(follower(task_at(2, progress_revision=3), watcher).frames()) == [
        "snapshot t-2", "task.progress t-2-p4", "task.retrying t-3", "task.started t-4", "task.progress t-4-p5",
        "task.completed t-5",
    ]  # fmt: skip


async def test_a_task_that_waits_is_followed_through_its_rounds(watcher: Watcher) -> None:
    types = ("submitted", "started", "waiting", "resumed", "started", "waiting", "resumed", "started", "completed")
    counted = progress_event(task_at(3, types, status=TaskStatus.WAITING, progress_revision=1), "here")
    put(watcher, event_of(3, types), counted, *(event_of(sequence, types) for sequence in range(4, 10)))
    events = await told(follower(task_at(2, types), watcher).frames())
    assert events == [
        "snapshot t-2", "task.waiting t-3", "task.progress t-3-p1", "task.resumed t-4", "task.started t-5",
        "task.waiting t-6", "task.resumed t-7", "task.started t-8", "task.completed t-9",
    ]  # fmt: skip


async def test_progress_comes_after_the_event_that_it_follows(watcher: Watcher) -> None:
    """Else a client that is cut right then would ask for what follows the progress, and never hear of the event."""
    late = progress_event(task_at(4, progress_revision=1, updated_at=LATER), "here")
    put(watcher, late, event_of(4), event_of(5))
    store = Store(task_at(4, progress_revision=1, updated_at=LATER))
    assert await told(follower(task_at(3), watcher, store).frames()) == [
        "snapshot t-3", "task.started t-4", "task.progress t-4-p1", "task.completed t-5",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("known", "told_again"), [((4, None), True), ((4, 6), True), ((4, 7), False), ((3, 7), False), ((3, 2), True)]
)
async def test_a_reader_that_was_away_gets_the_newest_progress_once(
    watcher: Watcher, known: tuple[int, int | None], told_again: bool
) -> None:
    put(watcher, event_of(5))
    task = task_at(4, progress_revision=7, updated_at=LATER)
    events = await told(follower(task, watcher, None, *known).frames())
    assert ("task.progress t-4-p7" in events) is told_again
    assert events[-1] == "task.completed t-5"


async def test_progress_before_the_newest_event_is_not_sent_again(watcher: Watcher) -> None:
    put(watcher, event_of(5))
    assert await told(follower(task_at(4, progress_revision=7), watcher, None, 3).frames()) == [
        "task.started t-4", "task.completed t-5",
    ]  # fmt: skip


async def test_a_replayed_task_goes_on(watcher: Watcher) -> None:
    types = ("submitted", "started", "failed", "replayed", "started", "completed")
    put(watcher, event_of(6, types))
    frames = follower(task_at(5, types), watcher, after=2).frames()
    events = ["task.failed t-3", "task.replayed t-4", "task.started t-5", "task.completed t-6"]
    assert await told(frames) == events


async def test_silence_is_when_the_store_is_asked(watcher: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_follower, "HEARTBEAT_SECONDS", 0.001)
    store = Store(task_at(2))
    frames = follower(task_at(2), watcher, store).frames()
    assert _told((await anext(frames)).decode().strip()) == "snapshot t-2"
    assert await anext(frames) == task_follower.HEARTBEAT
    store.task = task_at(5)
    assert await told(frames) == ["task.retrying t-3", "task.started t-4", "task.completed t-5"]


async def test_a_store_that_is_away_ends_no_stream(watcher: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    class Away:
        async def get(self, task_id: str, scope: Scope) -> Task:
            raise StoreUnavailableError("away")

    monkeypatch.setattr(task_follower, "HEARTBEAT_SECONDS", 0.001)
    frames = follower(task_at(2), watcher, Away()).frames()
    await anext(frames)
    assert await anext(frames) == task_follower.HEARTBEAT
    put(watcher, event_of(3))
    assert _told((await anext(frames)).decode().strip()) == "task.retrying t-3"


async def test_a_task_that_was_removed_ends_the_stream(watcher: Watcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_follower, "HEARTBEAT_SECONDS", 0.001)
    assert await told(follower(task_at(2), watcher, Store(None)).frames()) == ["snapshot t-2", "resync"]


async def test_a_stopping_process_ends_the_stream_after_what_waits(watcher: Watcher) -> None:
    put(watcher, event_of(3))
    watcher.end()
    assert await told(follower(task_at(2), watcher).frames()) == ["snapshot t-2", "task.retrying t-3"]


async def test_a_slow_reader_gets_the_event_resync(watcher: Watcher) -> None:
    put(watcher, event_of(3))
    watcher.has_missed_events = True
    watcher.end()
    assert await told(follower(task_at(2), watcher).frames()) == ["snapshot t-2", "task.retrying t-3", "resync"]


async def test_the_snapshot_is_the_task_as_everywhere(watcher: Watcher) -> None:
    from taskframework.model.view import public_view

    task = task_at(5, finished_at=new_task().created_at + timedelta(seconds=1))
    [frame] = [frame async for frame in follower(task, watcher).frames()]
    assert json.loads(frame.decode().split("data: ")[1]) == public_view(task)
