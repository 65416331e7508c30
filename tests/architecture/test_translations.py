"""A translated page has what its original has: steps, headings, tables, links. So it cannot fall behind unseen.

Its steps are not walked through again: they are those of the original, which is (tests/acceptance/test_docs.py).
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.pages import ROOT, TRANSLATIONS, Step, name_of, steps_of

_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"\s*#.*")
_HEADING = re.compile(r"^(#+) (?:(\d+)\.)?", re.MULTILINE)
_CODE = re.compile(r"`[^`]+`")
_LINK = re.compile(r"\]\(([^)#\s]*)(?:#[^)]*)?\)")
#: What a translation of README leaves to the original: the list of pages, which are in English.
_LIST = re.compile(r"^## (?:Where to read on|接着读)$.*", re.MULTILINE | re.DOTALL)
#: And what it has in front: the way to other languages.
_LANGUAGES = re.compile(r"^(?=.*English)(?=.*中文).*$", re.MULTILINE)


_both = pytest.mark.parametrize(
    ("original", "translation"),
    [
        pytest.param(ROOT / original, ROOT / translation, id=translation)
        for translation, original in TRANSLATIONS.items()
    ],
)


def _text(page: Path) -> str:
    return _LANGUAGES.sub("", _LIST.sub("", page.read_text()))


def _prose(page: Path) -> str:
    return _FENCED.sub("", _text(page))


def _taken(page: Path) -> list[Step]:
    """The steps of a page, without what is said to people: comments, paragraphs, and where it stands."""
    return [
        replace(step, line=0, text="" if step.kind == "stop" else _COMMENT.sub("", step.text))
        for step in steps_of(_text(page))
    ]


def _rows(page: Path) -> list[list[str]]:
    """The code in each row of the tables."""
    return [_CODE.findall(line) for line in _prose(page).splitlines() if line.startswith("|")]


def _links(page: Path) -> Counter[str]:
    found = (target for target in _LINK.findall(_prose(page)) if "://" not in target)
    names = (name_of((page.parent / target).resolve()) if target else name_of(page) for target in found)
    return Counter(TRANSLATIONS.get(name, name) for name in names)


@_both
def test_both_languages_of_a_page_have_the_same_steps(original: Path, translation: Path) -> None:
    assert _taken(translation) == _taken(original)
    for here, there in zip(steps_of(_text(translation)), steps_of(_text(original)), strict=True):
        assert (here.goes_on, here.exit_code) == (there.goes_on, there.exit_code), f"line {here.line}: {here.text}"


@_both
def test_a_translation_has_the_same_parts_as_its_original(original: Path, translation: Path) -> None:
    assert _HEADING.findall(_prose(translation)) == _HEADING.findall(_prose(original))
    assert _rows(translation) == _rows(original)
    assert _links(translation) == _links(original)
    assert set(_CODE.findall(_prose(original))) <= set(_CODE.findall(_prose(translation)))


def test_every_translation_has_an_original() -> None:
    words = "docs/zh/glossary.md"  # of the translations themselves
    assert {name_of(page) for page in ROOT.glob("docs/zh/**/*.md")} == {*TRANSLATIONS, words}
