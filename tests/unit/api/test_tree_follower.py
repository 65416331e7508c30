"""Following a tree: each event of each task once and in order, wherever the reader is cut and whatever is lost."""

from __future__ import annotations

from typing import Any

import pytest

from taskframework.api import tree_follower
from taskframework.api.places import read_place
from taskframework.api.task_follower import RESYNC
from taskframework.api.tree_follower import TreeFollower
from taskframework.errors import StoreUnavailableError
from taskframework.model.interventions import Cancel, Replay
from taskframework.model.scope import EVERYONE
from taskframework.model.waiting import Reopen
from tests.support.event_reader import Reader
from tests.unit.api.families import DEPTH, MINUTE, Family
from tests.unit.api.family_streams import Script, Wire, follow, follower, told


async def follow_with_cuts(family: Family, reader: Reader, **wire: Any) -> None:
    while not await follow(family, reader, Wire(family, **wire), events=family.random.choice([1, 2, 5, 20, None])):
        assert reader.last_id is None or open_in(reader.last_id) <= TreeFollower.max_open_tasks + DEPTH


def open_in(last_id: str) -> int:
    place = read_place(Family.top, last_id.removeprefix(TreeFollower.id_of(Family.top, "")), 1000)
    return sum(1 for _ in place.walk()) - 1


def assert_told_of_everything(family: Family, reader: Reader) -> None:
    assert family.is_over
    assert {task_id: has[0] for task_id, has in reader.has.items()} == {
        task_id: task.sequence for task_id, task in family.tasks.items()
    }


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few tasks are as many as there is room for."""
    monkeypatch.setattr(tree_follower, "_PAGE_SIZE", 3)
    monkeypatch.setattr(TreeFollower, "max_open_tasks", 4)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", range(100))
async def test_a_tree_is_sent_without_gap_or_repeat_whatever_events_are_lost(seed: int) -> None:
    family, reader = Family(seed, fails_one_in=0 if seed % 2 else 5), Reader()
    await follow_with_cuts(family, reader)
    assert_told_of_everything(family, reader)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", range(50))
async def test_without_lost_events_a_tree_is_sent_without_waiting_for_silence(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With other policies a parent may end while its sub-tasks are being stored, of which silence alone makes sure.
    family, reader = Family(seed, policies=["allow_failures"]), Reader()
    monkeypatch.setattr(TreeFollower, "_check_for_lost_events", None)
    await follow_with_cuts(family, reader, is_good=True)
    assert_told_of_everything(family, reader)


@pytest.fixture
def no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for silence fails."""
    monkeypatch.setattr(TreeFollower, "_check_for_lost_events", None)


@pytest.mark.usefixtures("no_silence")
async def test_a_subtask_whose_beginning_was_missed_is_looked_up_when_it_is_heard_of() -> None:
    family = Family(1)
    family.claim(family.top)
    [child] = family.plan(family.top, 1)

    def missed() -> None:
        family.spawn(family.top)
        family.news.clear()

    happens = [missed, lambda: family.claim(child), lambda: family.complete(child), lambda: family.count(family.top)]
    assert await told(follower(family, Reader(), Script(family, *happens))) == [
        "snapshot top-3", f"task.submitted {child}-1", f"task.started {child}-2", f"task.completed {child}-3",
        "task.completed top-4",
    ]  # fmt: skip


@pytest.mark.usefixtures("no_silence")
async def test_a_late_reader_gets_each_task_as_it_is_and_later_events() -> None:
    family = Family(1)
    family.claim(family.top)
    first, second = family.plan(family.top, 2)
    family.spawn(family.top)
    family.claim(first)
    family.complete(first)
    happens = [lambda: family.claim(second), lambda: family.complete(second), lambda: family.count(family.top)]
    assert await told(follower(family, Reader(), Script(family, *happens))) == [
        "snapshot top-3", f"snapshot {first}-3", f"snapshot {second}-1", f"task.started {second}-2",
        f"task.completed {second}-3", "task.completed top-4",
    ]  # fmt: skip


@pytest.mark.usefixtures("no_silence")
async def test_the_places_of_a_task_with_many_rounds_stay_small() -> None:
    family, reader = Family(1), Reader()
    family.claim(family.top)
    for _ in range(12):
        [child] = family.plan(family.top, 1, resumes=True)
        family.spawn(family.top)
        family.claim(child)
        family.complete(child)
        family.count(family.top)
        family.claim(family.top)
    stream = follower(family, reader, Script(family, lambda: family.complete(family.top)))
    async for chunk in stream.frames():
        for frame in chunk.split(b"\n\n")[:-1]:
            reader.read(frame)
            if reader.last_id is not None:
                read_place(family.top, reader.last_id.removeprefix(TreeFollower.id_of(family.top, "")), 2)
    assert_told_of_everything(family, reader)


@pytest.mark.usefixtures("no_silence")
async def test_a_sub_task_that_is_replayed_is_sent_again() -> None:
    family = Family(1)
    family.claim(family.top)
    first, second = family.plan(family.top, 2)
    family.spawn(family.top)
    family.claim(first)
    family.fail(first)
    happens = [
        lambda: family.apply(Replay(first, EVERYONE, "me", MINUTE)),
        lambda: family.claim(first),
        lambda: family.apply(Cancel(second, EVERYONE, "me", None)),
        lambda: family.complete(first),
        lambda: family.count(family.top),
    ]
    assert await told(follower(family, Reader(), Script(family, *happens))) == [
        "snapshot top-3", f"snapshot {first}-3", f"snapshot {second}-1", f"task.replayed {first}-4",
        f"task.started {first}-5", f"task.cancelled {second}-2", f"task.completed {first}-6",
        "task.completed_with_errors top-4",
    ]  # fmt: skip


def failed(family: Family, subtasks: int) -> list[str]:
    """Let sub-tasks of the top fail, all but the last; the ids of all."""
    family.claim(family.top)
    children = family.plan(family.top, subtasks)
    family.spawn(family.top)
    for child in children[:-1]:
        family.claim(child)
        family.fail(child)
    return children


@pytest.mark.usefixtures("small", "no_silence")
async def test_replayed_sub_tasks_are_sent_while_the_bound_of_open_tasks_allows() -> None:
    family = Family(1)
    children = failed(family, 9)

    def end_all() -> None:
        for child in children:
            family.claim(child)
            family.complete(child)
        family.count(family.top)

    replays = [Replay(child, EVERYONE, "me", MINUTE) for child in children[:-1]]
    happens = [lambda: family.apply(*replays), end_all]
    reader = Reader()
    async for chunk in follower(family, reader, Script(family, *happens)).frames():
        for frame in chunk.split(b"\n\n")[:-1]:
            reader.read(frame)
        assert reader.last_id is None or open_in(reader.last_id) <= TreeFollower.max_open_tasks
    assert_told_of_everything(family, reader)


@pytest.mark.usefixtures("no_silence")
async def test_tasks_below_a_reopened_sub_task_are_not_sent_twice() -> None:
    family = Family(1)
    family.claim(family.top)
    parent, other = family.plan(family.top, 2)
    family.spawn(family.top)
    family.claim(parent)
    [below] = family.plan(parent, 1)
    family.spawn(parent)
    family.claim(below)
    family.fail(below)
    family.count(parent)
    happens = [
        lambda: family.apply(Reopen(parent, EVERYONE, "me")),
        lambda: family.apply(Cancel(parent, EVERYONE, "me", None)),
        lambda: family.apply(Cancel(other, EVERYONE, "me", None)),
        lambda: family.count(family.top),
    ]
    assert await told(follower(family, Reader(), Script(family, *happens))) == [
        "snapshot top-3", f"snapshot {parent}-4", f"snapshot {other}-1", f"snapshot {below}-3",
        f"task.reopened {parent}-5", f"task.cancelled {parent}-6", f"task.cancelled {other}-2",
        "task.completed_with_errors top-4",
    ]  # fmt: skip


async def test_too_many_replays_end_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_follower, "_MAX_REVIVED_SUBTASKS", 5)
    family = Family(1)
    replays = [Replay(child, EVERYONE, "me", MINUTE) for child in failed(family, 9)[:-1]]
    script = Script(family, lambda: family.apply(*replays))
    chunks = [chunk async for chunk in follower(family, Reader(), script).frames()]
    assert chunks[-1].endswith(RESYNC)


async def test_progress_of_an_earlier_event_is_not_sent() -> None:
    family = Family(1)
    family.claim(family.top)
    family.report(family.top)
    [progress] = [event for event in family.news if event.progress_revision]

    def late() -> None:
        family.fail(family.top, retryable=True)
        family.news.append(progress)

    happens = [late, lambda: family.claim(family.top), lambda: family.complete(family.top)]
    assert await told(follower(family, Reader(), Script(family, *happens))) == [
        "snapshot top-2", "task.retrying top-3", "task.started top-4", "task.completed top-5",
    ]  # fmt: skip


async def test_a_reader_that_knows_the_end_of_every_task_gets_nothing() -> None:
    family, reader = Family(1), Reader()
    family.claim(family.top)
    family.plan(family.top, 3)
    family.spawn(family.top)
    while not family.is_over:
        family.step()
    await follow(family, reader, Wire(family, is_good=True))
    again = follower(family, reader, Wire(family, is_good=True))
    await again.begin()
    assert again.has_nothing_to_send


async def test_a_store_that_is_away_is_an_error_before_the_answer_begins() -> None:
    family = Family(1, fails_one_in=1)
    with pytest.raises(StoreUnavailableError):
        await follower(family, Reader(), Wire(family)).begin()


@pytest.mark.usefixtures("small")
async def test_a_task_that_was_removed_ends_the_stream() -> None:
    family = Family(1)
    made = follower(family, Reader(), Script(family))
    await made.begin()
    family.tasks.clear()
    assert [chunk async for chunk in made.frames()][-1] == RESYNC


@pytest.mark.parametrize("has_missed_events", [True, False])
async def test_a_stream_ends_when_its_watcher_does(has_missed_events: bool) -> None:
    family = Family(1)
    watcher = Script(family)
    watcher.is_over, watcher.has_missed_events = True, has_missed_events
    chunks = [chunk async for chunk in follower(family, Reader(), watcher).frames()]
    assert (chunks[-1] == RESYNC) is has_missed_events
