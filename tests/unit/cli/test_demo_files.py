"""Which files the demo finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskframework.cli.demo.files import collect


@pytest.fixture
def tree(folder: Path) -> Path:
    tree = folder / "tree"
    for name in (
        "b.md",
        "a.txt",
        "sub/c.md",
        ".git/config",
        "node_modules/x.js",
        "env/pyvenv.cfg",
        "env/lib.py",
        ".x",
        "data.csv",
        "screen.PNG",
    ):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).touch()
    (tree / "self").symlink_to(tree)
    return tree


def test_folders_are_walked_in_order_without_what_nobody_wrote_to_be_read(tree: Path) -> None:
    assert [str(file.relative_to(tree)) for file in collect([tree])] == ["a.txt", "b.md", "sub/c.md"]


def test_a_file_that_is_named_is_taken_whatever_its_name(tree: Path) -> None:
    assert collect([tree / ".x", tree / ".git", tree / "data.csv"]) == [
        tree / ".x",
        tree / ".git" / "config",
        tree / "data.csv",
    ]


def test_a_file_is_taken_once(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree)
    assert collect([Path("b.md"), Path("./b.md"), tree / "b.md", Path("sub/../b.md")]) == [Path("b.md")]
