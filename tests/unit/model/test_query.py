"""Cursors."""

from __future__ import annotations

import base64

import pytest

from taskframework.model.query import Cursor, CursorInvalidError, SlotCursor
from tests.unit.model.scenes import NOW


def encoded(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def test_a_cursor_is_read_as_it_was_given() -> None:
    for identifier in ("t-1", "a|b", "é", "x" * 300):
        cursor = Cursor(NOW.replace(microsecond=123_000), identifier)
        assert Cursor.decode(cursor.encode()) == cursor
        assert cursor.encode().replace("-", "").replace("_", "").isalnum()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "💥",
        "%%%",
        encoded("123"),
        encoded("123|"),
        encoded("|id"),
        encoded("x|id"),
        encoded("1.5|id"),
        encoded("123|a\0b"),
        encoded(f"{10**20}|id"),
        encoded(f"-{10**20}|id"),
        encoded(f"{'9' * 5000}|id"),
        base64.urlsafe_b64encode(b"1|\xff\xfe").decode(),
    ],
)
def test_a_text_that_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(CursorInvalidError, match="Leave it out"):
        Cursor.decode(text)


def test_a_cursor_of_slots_is_read_as_it_was_given() -> None:
    for cursor in (SlotCursor(0, 1, 0), SlotCursor(7, 2**31, 99_999)):
        assert SlotCursor.decode(cursor.encode()) == cursor


@pytest.mark.parametrize(
    "text",
    [
        *("", "a", "💥", "%%%"),
        *map(encoded, ("slot", "slot|1|2", "slot|1|2|3|4", "slot|1|2|x", "slot|1|2|-3", "lot|1|2|3", "1|2|3")),
        encoded(f"slot|1|2|{10**20}"),
        encoded(f"slot|1|2|{'9' * 5000}"),
        Cursor(NOW, "id").encode(),
    ],
)
def test_a_text_that_is_no_cursor_of_slots_is_refused(text: str) -> None:
    with pytest.raises(CursorInvalidError, match="Leave it out"):
        SlotCursor.decode(text)


def test_no_other_list_takes_a_cursor_of_slots() -> None:
    with pytest.raises(CursorInvalidError):
        Cursor.decode(SlotCursor(1, 2, 3).encode())
