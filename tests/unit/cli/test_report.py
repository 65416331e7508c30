"""The demo's report."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskframework.cli.demo.digest import Digest
from taskframework.cli.demo.report import escape, write_report


def test_the_report_has_a_section_for_each_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "report.md"
    digest = Digest("A title", "1. First | sentence.", 7000, 1200, 1, {"bees": 12, "the_hive": 1000})
    empty = Digest("", "", 0, 0, 0, {})
    reason = "not text: a NUL byte at position 4"
    write_report({"docs/a_file.md": digest, "bad|name": reason, "empty.txt": empty}, path)
    assert path.read_text(encoding="utf-8") == (
        "# Digest of 3 files\n"
        "\n"
        "## docs/a\\_file.md\n"
        "\n"
        "**A title**\n"
        "\n"
        "1,200 words · 1 line · 7,000 characters\n"
        "\n"
        "Frequent words: bees (12), the\\_hive (1,000)\n"
        "\n"
        "Begins: 1. First \\| sentence.\n"
        "\n"
        "## bad\\|name\n"
        "\n"
        "No digest: not text: a NUL byte at position 4\n"
        "\n"
        "## empty.txt\n"
        "\n"
        "0 words · 0 lines · 0 characters\n"
    )


def test_a_file_name_that_is_no_text_is_shown_all_the_same(tmp_path: Path) -> None:
    write_report({"caf\udce9.txt": "x"}, tmp_path / "report.md")
    assert "## caf\ufffd.txt\n" in (tmp_path / "report.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, 1.5 (a) b-c 茶", "plain text, 1.5 (a) b-c 茶"),
        ("a|b", r"a\|b"),
        ("*a* _b_ `c` [d](e) ~f~ <g>", r"\*a\* \_b\_ \`c\` \[d\](e) \~f\~ \<g>"),
        ("back\\slash", r"back\\slash"),
        ("&lt; & co; &#62;", r"\&lt; & co; \&#62;"),
        ("two\nlines\tand\x1b[31m colour", "two lines and\ufffd\\[31m colour"),
    ],
)
def test_markdown_shows_a_text_as_it_is(text: str, shown: str) -> None:
    assert escape(text) == shown
