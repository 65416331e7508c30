"""The documents fit the project: links lead somewhere, named files exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.pages import ROOT, name_of

DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *ROOT.glob("docs/**/*.md")])
_LINK = re.compile(r"\[[^\]]+\]\(([^)#\s]+)(?:#[^)]*)?\)")
_SOURCE = re.compile(r"`((?:[a-z_]+/)+[a-z_]+\.py)`")


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_and_files_exist(document: Path) -> None:
    text = document.read_text()
    for target in _LINK.findall(text):
        if "://" not in target:
            assert (document.parent / target).exists(), f"the link to {target}"
    for source in _SOURCE.findall(text):
        home = ROOT if source.startswith(("tests/", "docs/")) else ROOT / "taskframework"
        assert (home / source).exists(), f"the file {source}"
