"""The documents fit the project: links lead somewhere, named files exist."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tests.support.pages import ROOT, name_of

DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *ROOT.glob("docs/**/*.md")])
_LINK = re.compile(r"\[[^\]]+\]\(([^)#\s]+)(?:#[^)]*)?\)")
_SOURCE = re.compile(r"`((?:[a-z_]+/)+[a-z_]+\.py)`")
#: A name of ours that is no ordinary word: private, of a class, or of a constant.
_NAME = re.compile(r"`(_\w+|[A-Z]\w*[a-z]\w*|[A-Z][A-Z_]+_[A-Z_]*)`")
#: A name, and the file in which it is said to be.
_NAME_IN_FILE = re.compile(r"`(\w+)` (?:in |of |\()`((?:[a-z_]+/)+[a-z_]+\.(?:py|js))`")


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_and_files_exist(document: Path) -> None:
    text = document.read_text()
    for target in _LINK.findall(text):
        if "://" not in target:
            assert (document.parent / target).exists(), f"the link to {target}"
    for source in _SOURCE.findall(text):
        home = ROOT if source.startswith(("tests/", "docs/")) else ROOT / "taskframework"
        assert (home / source).exists(), f"the file {source}"


@cache
def _words_of_the_code() -> frozenset[str]:
    """Every word in the package, its tests, and what makes the reference."""
    sources = (
        path for folder in ("taskframework", "tests", "docs/generator") for path in (ROOT / folder).rglob("*.py")
    )
    return frozenset(re.findall(r"\w+", "\n".join(path.read_text() for path in sources)))


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/adding/*.md")), ids=name_of)
def test_the_ways_to_add_something_name_what_is_in_the_code(page: Path) -> None:
    text = re.sub(r"\s+", " ", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL))
    assert set(_NAME.findall(text)) - _words_of_the_code() == set()
    for name, file in _NAME_IN_FILE.findall(text):
        [home] = [
            folder
            for folder in ("", "taskframework", "taskframework/console/static")
            if (ROOT / folder / file).exists()
        ]
        assert re.search(rf"\b{name}\b", (ROOT / home / file).read_text()), f"{name} in {file}"
