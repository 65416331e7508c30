"""Properties of the pure rules that hold for every input."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskframework.errors import MessageUnreadableError, ValueNotStorableError
from taskframework.model.marks import redispatch_delay
from taskframework.model.message import TaskMessage, read_message
from taskframework.model.outcome import MAX_MESSAGE_CHARACTERS, classify
from taskframework.model.query import Cursor, CursorInvalidError
from taskframework.model.retry import RetryPolicy
from taskframework.model.streams import Stream
from taskframework.model.values import check_storable
from taskframework.stores.sqlite.rows import TaskRow, new_row, read_row
from taskframework.testing.conformance.comparison import differences, same_json
from taskframework.testing.factories import new_task

INTEGERS = st.integers(-(2**63), 2**63 - 1)
KEYS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
LEAVES = st.none() | st.booleans() | INTEGERS | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4))
ANYTHING = st.recursive(
    LEAVES | st.binary(max_size=3) | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3),
)
TIMES = st.integers(0, 200_000_000_000_000).map(
    lambda milliseconds: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)
)
SECONDS = st.floats(0, 1e6)


@given(JSON)
def test_plain_json_is_storable_and_comes_back(value: Any) -> None:
    assert same_json(orjson.loads(check_storable(value, "value", 10_000_000)), value)


@given(ANYTHING)
def test_a_value_is_either_refused_or_comes_back(value: Any) -> None:
    try:
        encoded = check_storable(value, "value", 10_000_000)
    except ValueNotStorableError:
        return
    assert same_json(orjson.loads(encoded), value)
    assert same_json(json.loads(encoded), value)


@given(JSON, JSON, TIMES, SECONDS)
def test_a_task_comes_back_from_its_row(parameters: Any, progress: Any, at: datetime, later: float) -> None:
    task = new_task(now=at, parameters=parameters, progress=progress, result=[progress])
    written = new_row(task)
    columns = written.moving()
    row = TaskRow(task.task_id, 0, 0, str(columns[-1]), written.parameters)
    assert differences(read_row(row).task, task, timedelta(0)) == []
    # A field changed by a transition is all that changes in the document.
    read = read_row(row)
    changed = read.changed_to(read.task.evolve(not_before=at + timedelta(seconds=later), attempts=3))
    before, after = orjson.loads(row.document), orjson.loads(str(changed.moving()[-1]))
    touched = {name for name, value in after.items() if not same_json(value, before[name])}
    assert touched <= {"not_before", "attempts"}


@given(TIMES, st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1))
def test_a_cursor_comes_back(at: datetime, identifier: str) -> None:
    cursor = Cursor(at, identifier)
    assert Cursor.decode(cursor.encode()) == cursor


@given(st.text() | st.binary().map(lambda raw: raw.decode("latin-1")))
def test_no_text_breaks_the_cursor(text: str) -> None:
    try:
        cursor = Cursor.decode(text)
    except CursorInvalidError:
        return
    assert Cursor.decode(cursor.encode()) == cursor


@given(
    st.builds(
        RetryPolicy,
        initial_delay=SECONDS.map(lambda seconds: timedelta(seconds=seconds)),
        max_delay=SECONDS.map(lambda seconds: timedelta(seconds=seconds)),
        backoff_factor=st.floats(1, 100),
        jitter_factor=st.floats(0, 1),
    ),
    st.integers(1, 10_000),
    st.floats(0, 1, exclude_max=True),
)
def test_a_delay_stays_within_its_bounds(policy: RetryPolicy, attempt: int, chance: float) -> None:
    delay = policy.delay(attempt, chance)
    assert timedelta(0) <= delay <= policy.max_delay
    wanted = min(policy.initial_delay, policy.max_delay)
    assert delay >= wanted * (1 - policy.jitter_factor) - timedelta(milliseconds=1)
    assert policy.delay(attempt + 1, chance) >= delay - timedelta(milliseconds=1), "it never shrinks"


@given(st.integers(0, 10**9), SECONDS, SECONDS)
def test_a_redispatch_waits_no_longer_than_the_longest(dispatches: int, first: float, longest: float) -> None:
    delay = redispatch_delay(dispatches, timedelta(seconds=first), timedelta(seconds=longest))
    assert delay <= timedelta(seconds=longest)
    assert delay >= min(timedelta(seconds=first), timedelta(seconds=longest))


@given(st.binary(max_size=200) | ANYTHING.map(lambda value: repr(value).encode("utf-8", "replace")))
def test_no_bytes_break_the_reader(body: bytes) -> None:
    with pytest.raises(MessageUnreadableError):
        read_message(body)


@given(
    st.fixed_dictionaries(
        {"schema_version": st.just(1), "task_id": ANYTHING, "task_type": ANYTHING, "dispatch_epoch": ANYTHING}
    )
)
def test_a_message_that_is_read_holds_what_a_store_can_look_for(content: dict[str, Any]) -> None:
    try:
        body = json.dumps(content).encode()
    except (TypeError, ValueError):
        return
    try:
        message = read_message(body)
    except MessageUnreadableError:
        return
    assert isinstance(message, TaskMessage)
    assert 0 < message.dispatch_epoch < 2**63
    assert 0 < len(message.task_id) <= 100


@given(st.text(), st.sampled_from([ValueError, OSError, KeyError, RuntimeError]))
def test_every_error_becomes_bounded_storable_data(text: str, kind: type[Exception]) -> None:
    failed = classify(kind(text))
    assert len(failed.error.message) <= MAX_MESSAGE_CHARACTERS + 1
    check_storable([failed.error.message, failed.error.type], "error", 1_000_000)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 4)), max_size=20))
def test_given_up_positions_are_few_gaps_that_do_not_touch(ranges: list[tuple[int, int]]) -> None:
    stream, expected = Stream(), set[int]()
    for first, more in ranges:
        stream = stream.skip(first, first + more)
        expected |= set(range(first, first + more + 1))
        assert stream.skipped[-1].first <= first <= stream.skipped[-1].last, "the newest gap comes last"
    assert {position for position in range(50) if stream.has_skipped(position)} == expected
    gaps = sorted(stream.skipped, key=lambda gap: gap.first)
    assert all(earlier.last + 1 < later.first for earlier, later in pairwise(gaps))
