"""Following the items of a batch: each once, wherever the reader is cut and whatever is lost."""

from __future__ import annotations

import pytest

from taskframework.api import tree_follower
from taskframework.api.items_follower import ItemsFollower
from taskframework.model.batch_status import results_of
from taskframework.model.batches import Seal
from taskframework.model.interventions import Replay
from taskframework.model.scope import EVERYONE
from taskframework.model.subtasks import subtask_id
from tests.support.event_reader import Reader
from tests.unit.api.families import MINUTE, POLICIES, Family
from tests.unit.api.family_streams import Script, Wire, follow, follower


async def follow_with_cuts(family: Family, reader: Reader, **wire: bool) -> None:
    over = False
    while not over:
        events = family.random.choice([1, 2, 5, None])
        over = await follow(family, reader, Wire(family, **wire), events=events, kind=ItemsFollower)


def assert_told_of_everything(family: Family, reader: Reader, chunk_size: int) -> None:
    assert family.is_over
    assert reader.has == {family.top: (family.tasks[family.top].sequence, 0)}
    subtasks = [task for task in family.tasks.values() if task.parent]
    results = [result.view() for task in subtasks for result in results_of(task, chunk_size)]
    assert sorted(reader.items.values(), key=lambda item: item["index"]) == sorted(
        results, key=lambda result: result["index"]
    )


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_follower, "_PAGE_SIZE", 3)
    monkeypatch.setattr(ItemsFollower, "max_open_tasks", 3)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("chunk_size", [1, 3])
@pytest.mark.parametrize("seed", range(50))
async def test_each_item_is_sent_once_whatever_events_are_lost(seed: int, chunk_size: int) -> None:
    family, reader = Family(seed, fails_one_in=0 if seed % 2 else 5), Reader()
    family.upload(20, chunk_size, POLICIES[seed % 3])
    await follow_with_cuts(family, reader)
    assert_told_of_everything(family, reader, chunk_size)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("chunk_size", [1, 3])
@pytest.mark.parametrize("seed", range(25))
async def test_without_lost_events_items_are_sent_without_waiting_for_silence(
    seed: int, chunk_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ItemsFollower, "_check_for_lost_events", None)
    family, reader = Family(seed), Reader()
    family.upload(20, chunk_size)
    await follow_with_cuts(family, reader, is_good=True)
    assert_told_of_everything(family, reader, chunk_size)


async def test_items_come_as_they_end_and_the_stream_ends_with_the_last() -> None:
    family, reader = Family(1), Reader()
    family.upload(3, 1)
    family.spawn(family.top)
    family.apply(Seal(family.top, 3))

    def end(slot: int) -> None:
        child = subtask_id(family.top, 0, 1, slot)
        family.claim(child)
        family.complete(child)

    script = Script(family, lambda: end(2), lambda: end(0), lambda: end(1), lambda: family.count(family.top))
    indexes = []
    async for chunk in follower(family, reader, script, ItemsFollower).frames():
        for frame in chunk.split(b"\n\n")[:-1]:
            reader.read(frame)
        indexes.append([*reader.items])
    assert indexes[-4:] == [[2], [2, 0], [2, 0, 1], [2, 0, 1]]
    assert_told_of_everything(family, reader, 1)


async def test_an_item_that_is_retried_is_not_sent_again() -> None:
    family, reader = Family(1), Reader()
    family.upload(2, 1)
    family.spawn(family.top)
    family.apply(Seal(family.top, 2))
    first, second = (subtask_id(family.top, 0, 1, slot) for slot in range(2))

    def fail() -> None:
        family.claim(first)
        family.fail(first)

    def retry() -> None:
        family.apply(Replay(first, EVERYONE, "me", MINUTE))
        for child in (first, second):
            family.claim(child)
            family.complete(child)
        family.count(family.top)

    async for chunk in follower(family, reader, Script(family, fail, retry), ItemsFollower).frames():
        for frame in chunk.split(b"\n\n")[:-1]:
            reader.read(frame)
    assert [item["status"] for item in reader.items.values()] == ["FAILED", "COMPLETED"]
