"""The digest of a text, and the reading of files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskframework.cli.demo.digest import digest, read_text
from taskframework.errors import NonRetryableError

TIDES = """# The **tides**

Note.

The moon pulls the water of the [sea](sea.md) towards itself, and with the water
come the ships that wait for the tide.

The water rises twice a day, the tide with it.
"""


def test_a_digest_tells_what_a_text_is_about_and_how_long_it_is() -> None:
    found = digest(TIDES)
    assert found.title == "The tides"
    assert found.beginning == (
        "The moon pulls the water of the sea towards itself, and with the water come the ships that wait for the tide."
    )
    assert (found.characters, found.words, found.lines) == (len(TIDES), 37, 8)
    assert list(found.frequent_words.items())[:2] == [("water", 3), ("tide", 2)]
    assert found.frequent_words.keys().isdisjoint({"the", "with", "that"}), "words that connect say nothing"


def test_where_no_spaces_are_written_each_character_is_a_word_and_pairs_are_counted() -> None:
    found = digest("消息队列保存消息。消息不会丢失。")
    assert found.words == 14
    assert next(iter(found.frequent_words.items())) == ("消息", 3)


def test_words_keep_what_belongs_to_them() -> None:
    assert digest("Don't split well-known हिन्दी शब्द; count 3 more").words == 8


@pytest.mark.parametrize("text", ["", "\n \n", "---\n***\n"])
def test_a_text_that_says_nothing_has_a_digest(text: str) -> None:
    found = digest(text)
    assert (found.title, found.beginning, found.words, found.frequent_words) == ("", "", 0, {})


def test_a_long_text_tells_how_far_it_is() -> None:
    told: list[float] = []
    digest("word " * 500_000, told.append)
    assert told == [pytest.approx(0.4, abs=0.01), pytest.approx(0.8, abs=0.01)]


@pytest.mark.parametrize("unit", ["[", "![", "`", "任务", " ", "\n", "a-", "[a](", "'\"", "# "])
def test_no_input_makes_it_slow(unit: str) -> None:
    """A cost that grew with the square of the length would reach the time limit of the suite with this one."""
    assert digest(unit * (400_000 // len(unit)) + "x").characters > 399_000


@given(st.text(alphabet=st.sampled_from("aBc é任の.。!?\n #`-*_[]()|>{}~:\t1'\"\\…")))
def test_any_text_has_a_digest(text: str) -> None:
    found = digest(text)
    assert found.characters == len(text)
    assert len(found.frequent_words) <= 8


def test_text_files_are_read(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    for encoding in ("utf-8", "utf-8-sig"):
        file.write_text("Grüße 茶", encoding=encoding)
        assert read_text(file) == "Grüße 茶"
    file.write_bytes(b"")
    assert read_text(file) == ""


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\x7fELF\x00\x01", "not text: a NUL byte at position 4"),
        ("Grüße".encode("latin-1"), "not UTF-8 text: byte 2 cannot be decoded"),
    ],
)
def test_a_file_that_is_not_text_is_refused_with_the_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    with pytest.raises(NonRetryableError) as caught:
        read_text(file)
    assert str(caught.value) == reason


def test_a_file_that_cannot_be_read_is_refused_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "closed").write_text("x")
    for path, reason in (
        (tmp_path / "missing", "cannot be read: no such file or directory"),
        (tmp_path, "a folder, not a file"),
        (tmp_path / "pipe", "not a file"),
    ):
        with pytest.raises(NonRetryableError, match=f"^{reason}$"):
            read_text(path)

    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(NonRetryableError, match=r"^cannot be read: permission denied$"):
        read_text(tmp_path / "closed")
