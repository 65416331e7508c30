"""What a long-running process does about garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from taskframework.cli import process
from taskframework.cli.process import reduce_garbage_collection


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before, is_frozen = gc.get_threshold(), gc.get_freeze_count() > 0
    gc.unfreeze()
    gc.set_threshold(*process._DEFAULT_GC_THRESHOLD)  # a library that another test uses may have changed it
    yield
    gc.unfreeze()
    if is_frozen:
        gc.freeze()
    gc.set_threshold(*before)


def test_what_is_there_at_the_start_is_not_looked_at_again() -> None:
    there: list[list[int]] = [[]]
    reduce_garbage_collection()
    assert gc.get_freeze_count() > 1000
    assert not any(there is looked_at for looked_at in gc.get_objects())
    assert gc.get_threshold()[0] == 20_000


def test_the_choice_of_an_application_stays() -> None:
    gc.set_threshold(123, 4, 5)
    reduce_garbage_collection()
    assert gc.get_threshold() == (123, 4, 5)
