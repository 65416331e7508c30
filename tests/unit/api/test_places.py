"""A place says exactly what a reader has, in few bytes, and a text that is none is refused."""

from __future__ import annotations

import base64
import random
import zlib
from typing import Any

import orjson
import pytest

from taskframework.api import places
from taskframework.api.places import KnownTask, PlaceInvalidError, read_place, write_place
from taskframework.model.subtasks import subtask_id


def shape(known: KnownTask) -> Any:
    """All that a place says."""
    rounds = [
        (one.generation, one.number, one.shown_until, {slot: shape(sub) for slot, sub in one.open_subtasks.items()})
        for one in known.rounds
    ]
    return (known.task_id, known.sequence, known.progress, rounds)


def family() -> KnownTask:
    top = KnownTask("top", sequence=4, progress=7)
    top.enter_round(0, 2)
    top.rounds[0].open_subtask(3)
    top.rounds[0].open_subtasks[1].close()
    below = top.rounds[1].open_subtask(0)
    below.sequence = 3
    below.enter_round(1, 1)
    below.rounds[0].open_subtask(1).sequence = 2
    return top


def test_a_place_is_read_as_it_was_written() -> None:
    assert shape(read_place("top", write_place(family()), 10)) == shape(family())


def test_the_example_says_what_the_module_tells_of_it() -> None:
    top = KnownTask("top", sequence=7)
    top.enter_round(0, 1)
    top.rounds[0].open_subtask(3)
    for slot in (0, 1, 3):
        top.rounds[0].open_subtasks[slot].close()
    top.rounds[0].open_subtasks[2].sequence = 5
    example = [7, 0, [0, 1, 4, 2, 5]]
    assert f"`{example}`" in (places.__doc__ or "")
    assert shape(read_place("top", text_of(example), 10)) == shape(top)


def test_the_ids_of_what_is_open_follow_from_the_place() -> None:
    read = read_place("top", write_place(family()), 10)
    below = read.rounds[1].open_subtasks[0]
    assert below.task_id == subtask_id("top", 0, 2, 0)
    assert below.rounds[0].open_subtasks[1].task_id == subtask_id(below.task_id, 1, 1, 1)


def test_a_place_of_many_tasks_fits_in_a_header() -> None:
    top, chance = KnownTask("top", sequence=3), random.Random(1)
    top.enter_round(0, 1)
    top.rounds[0].open_subtask(99_999)
    for slot in set(range(100_000)) - set(chance.sample(range(98_000, 100_000), 1000)):
        top.rounds[0].open_subtasks[slot].close()
    for known in top.rounds[0].open_subtasks.values():
        known.sequence = chance.choice([1, 2, 2, 2, 4])
    assert len(write_place(top)) < 1500


def text_of(content: Any) -> str:
    return base64.urlsafe_b64encode(zlib.compress(orjson.dumps(content))).decode()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "\u00b2",
        "A" * 20_000,
        base64.urlsafe_b64encode(b"[1,2]").decode(),
        base64.urlsafe_b64encode(zlib.compress(b"[" * 10_000_000)).decode(),
        text_of("4"),
        text_of(None),
        text_of(True),
        text_of(-1),
        text_of(2**40),
        text_of([]),
        text_of([1]),
        text_of([1, 1.5]),
        text_of([1, 0, 3]),
        text_of([1, 0, [0, 1]]),
        text_of([1, 0, [0, 1, 2, 0]]),
        text_of([1, 0, [0, 1, 2, 2, 1]]),
        text_of([1, 0, [0, 1, 2, 0, 1, 1, 1]]),
        text_of([1, 0, [0, 1, 10**6]]),
        text_of([1, 0, [0, 1, 9, 0, "x"]]),
        text_of([1, 0, [0, 1, 9, *[0, 1] * 6]]),
        text_of([1, 0, *[[0, 1, 0]] * 7_900]),
        text_of([1, 0, *[[0, number, 1] for number in range(1, 7)]]),
        text_of([1, 0, [0, 1, 1], [0, 2, 1], [0, 1, 1]]),
    ],
)
def test_a_text_that_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(PlaceInvalidError):
        read_place("top", text, 5)


def test_rounds_of_which_nothing_was_shown_need_no_room() -> None:
    top = KnownTask("top", sequence=4)
    top.enter_round(0, 5_000)
    top.rounds[0].open_subtask(1)
    read = read_place("top", write_place(top), 5)
    assert [one.number for one in read.rounds] == [1]
    read.enter_round(0, 5_000)
    assert shape(read) == shape(top)


@pytest.mark.parametrize("left", [[2], [1, 3], [3, 4], [1, 2], [1]])
@pytest.mark.parametrize("generation", [0, 1])
def test_rounds_that_were_shown_and_forgotten_are_not_entered_again(left: list[int], generation: int) -> None:
    top = KnownTask("top", sequence=4)
    top.enter_round(generation, max(left))
    top.rounds = [one for one in top.rounds if one.number in left]
    if len(left) > 1:
        top.rounds[0].open_subtask(1)
    read = read_place("top", write_place(top), 5)
    read.enter_round(generation, max(left))
    assert shape(read) == shape(top)


def test_a_place_is_as_deep_as_a_family_at_most() -> None:
    content: Any = 1
    for _ in range(20):
        content = [1, 0, [0, 1, 1, 0, content]]
    with pytest.raises(PlaceInvalidError):
        read_place("top", text_of(content), 100)


def test_rounds_in_between_are_not_passed_over() -> None:
    known = KnownTask("top")
    known.enter_round(0, 1)
    known.enter_round(0, 1)
    known.enter_round(0, 3)
    known.enter_round(2, 2)
    assert [(one.generation, one.number) for one in known.rounds] == [(0, 1), (0, 2), (0, 3), (2, 1), (2, 2)]


def test_an_upcoming_sub_task_is_recognised_by_its_id() -> None:
    known = KnownTask("top")
    known.enter_round(0, 1)
    [newest] = known.rounds
    newest.open_subtask(1)
    assert newest.upcoming_slot(newest.id_of(1), 3) is None
    assert [newest.upcoming_slot(newest.id_of(slot), 3) for slot in range(2, 6)] == [2, 3, 4, None]
    newest.open_subtask(3)
    assert [newest.upcoming_slot(newest.id_of(slot), 3) for slot in range(2, 8)] == [None, None, 4, 5, 6, None]
