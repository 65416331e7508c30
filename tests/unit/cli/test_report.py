from __future__ import annotations

from pathlib import Path

import pytest

from taskframework.cli.demo.digest import Digest, KeyWord
from taskframework.cli.demo.report import ReportRow, escape, write_report


def made(title: str = "A title", words: int = 1200, minutes: float = 5.5) -> Digest:
    return Digest(
        title=title,
        characters=7000,
        words=words,
        sentences=80,
        lines=1,
        reading_minutes=minutes,
        key_words=(KeyWord("bees", 12), KeyWord("the_hive", 1000)),
        summary=("- First sentence.", "Second | sentence."),
    )


def test_the_report_has_totals_a_section_for_each_file_and_the_failures(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "report.md"
    rows = [
        ReportRow("docs/a_file.md", made()),
        ReportRow("bad|name", reason="not text: a NUL byte at position 4"),
        ReportRow("b.txt", made(title="", words=1, minutes=70.2)),
    ]
    write_report(rows, path)
    assert path.read_text(encoding="utf-8") == (
        "# Digest of 3 files\n"
        "\n"
        "| Digested | Not digested | Words | Sentences | Characters | Reading time |\n"
        "|---:|---:|---:|---:|---:|---:|\n"
        "| 2 | 1 | 1,201 | 160 | 14,000 | 1 h 16 min |\n"
        "\n"
        "## docs/a\\_file.md\n"
        "\n"
        "**A title**\n"
        "\n"
        "1,200 words · 80 sentences · 1 line · 6 min\n"
        "\n"
        "Key words: bees (12), the\\_hive (1,000)\n"
        "\n"
        "- \\- First sentence.\n"
        "- Second \\| sentence.\n"
        "\n"
        "## b.txt\n"
        "\n"
        "1 word · 80 sentences · 1 line · 1 h 10 min\n"
        "\n"
        "Key words: bees (12), the\\_hive (1,000)\n"
        "\n"
        "- \\- First sentence.\n"
        "- Second \\| sentence.\n"
        "\n"
        "## Without a digest\n"
        "\n"
        "| File | Reason |\n"
        "|---|---|\n"
        "| bad\\|name | not text: a NUL byte at position 4 |\n"
    )


def test_a_report_of_nothing_and_of_little(tmp_path: Path) -> None:
    write_report([], tmp_path / "report.md")
    assert (tmp_path / "report.md").read_text(encoding="utf-8").endswith("| 0 | 0 | 0 | 0 | 0 | under a minute |\n")
    empty = Digest("", 0, 0, 0, 0, 0.0, (), ())
    write_report([ReportRow("empty.txt", empty)], tmp_path / "report.md")
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert text.startswith("# Digest of 1 file\n")
    assert text.endswith("## empty.txt\n\n0 words · 0 sentences · 0 lines · under a minute\n")


def test_a_file_name_that_is_no_text_is_shown_all_the_same(tmp_path: Path) -> None:
    write_report([ReportRow("caf\udce9.txt", reason="x")], tmp_path / "report.md")
    assert "| caf\ufffd.txt |" in (tmp_path / "report.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, 1.5 (a) b-c 茶", "plain text, 1.5 (a) b-c 茶"),
        ("a|b", r"a\|b"),
        ("*a* _b_ `c` [d](e) ~f~ <g>", r"\*a\* \_b\_ \`c\` \[d\](e) \~f\~ \<g>"),
        ("back\\slash", r"back\\slash"),
        ("&lt; & co; &#62;", r"\&lt; & co; \&#62;"),
        ("# no heading", r"\# no heading"),
        ("> no quote", r"\> no quote"),
        ("1. no list", r"1\. no list"),
        ("12) no list", r"12\) no list"),
        ("+ no list", r"\+ no list"),
        ("two\nlines\tand\x1b[31m colour", "two lines and\ufffd\\[31m colour"),
    ],
)
def test_markdown_shows_a_text_as_it_is(text: str, shown: str) -> None:
    assert escape(text) == shown
