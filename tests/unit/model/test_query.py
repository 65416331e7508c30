"""Cursors."""

from __future__ import annotations

import base64

import pytest

from taskframework.model.query import Cursor, CursorInvalidError
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
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(CursorInvalidError, match="Leave it out"):
        Cursor.decode(text)
