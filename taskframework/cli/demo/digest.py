"""A digest of a text in any language: counts, key words and the sentences that say most. Pure but for `read_text`."""
# ruff: noqa: RUF001 - the punctuation of other scripts is meant

from __future__ import annotations

import codecs
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from taskframework.cli.demo.prose import read_prose
from taskframework.cli.demo.scripts import count_words
from taskframework.cli.demo.terms import Lexicon, Term, build_lexicon
from taskframework.errors import NonRetryableError

_MOST_KEY_WORDS = 8
_MOST_SUMMARY_SENTENCES = 3
_MOST_RANKED = 2_000  # sentences; the rest of a huge text is only counted
_MOST_READ = 2_000  # characters of one sentence: a text without full stops is one
_WORDS_PER_MINUTE = 220
_CHARACTERS_PER_MINUTE = 400  # of scripts without spaces

_SHORTEST, _LONGEST = 30, 300  # width of a sentence that can stand alone
_LEAST_LETTERS = 0.7  # share of letters in what is not a space
_SENTENCE_ENDS = tuple(".!?…。！？؟।॥።”»\"')")
_OPEN_ENDS = (":", "：", ",", "，", ";", "；")
_FIXED_WIDTH = 60  # added to each width, so that the shortest sentences do not win by their shortness
_LEAD = 0.6  # how much the very first sentence gains over the last
_REPEATED = 0.4  # what a term is still worth after a chosen sentence has said it


@dataclass(frozen=True, slots=True)
class KeyWord:
    """A word the text is about, as it is written most often, and how often it occurs in any form."""

    word: str
    count: int


@dataclass(frozen=True, slots=True)
class Digest:
    """What a reader wants to know before reading.

    Attributes:
        title: the first heading, else the title in the front matter, else the first sentence; may be empty.
        characters: length of the text, spaces included.
        words: words; in scripts without spaces each character counts.
        sentences: sentences of the prose, without headings, code and tables.
        lines: lines of the file.
        reading_minutes: for a person, to one decimal.
        key_words: the heaviest first.
        summary: whole sentences in the order of the text.
    """

    title: str
    characters: int
    words: int
    sentences: int
    lines: int
    reading_minutes: float
    key_words: tuple[KeyWord, ...]
    summary: tuple[str, ...]


def digest(text: str) -> Digest:
    """Digest a text. Its cost grows with the length of the text and no faster."""
    prose = read_prose(text)
    spaced, unspaced = count_words(text)
    ranked = [sentence[:_MOST_READ] for sentence in prose.sentences[:_MOST_RANKED]]
    cells = [cell[:_MOST_READ] for cell in prose.cells[: _MOST_RANKED - len(ranked)]]
    lexicon = build_lexicon([*ranked, *cells], prose.headings)
    return Digest(
        title=prose.title,
        characters=len(text),
        words=spaced + unspaced,
        sentences=len(prose.sentences),
        lines=len(text.splitlines()),
        reading_minutes=round(spaced / _WORDS_PER_MINUTE + unspaced / _CHARACTERS_PER_MINUTE, 1),
        key_words=tuple(KeyWord(term.word, term.count) for term in lexicon.best(_MOST_KEY_WORDS)),
        summary=_summarise(ranked, lexicon),
    )


def read_text(path: Path) -> str:
    """Read a text file: UTF-8, or UTF-16 with its mark.

    Raises:
        NonRetryableError: if it cannot be read or is not text; the message says which, without the path.
    """
    if path.exists() and not path.is_file():
        raise NonRetryableError("not a file" if not path.is_dir() else "a folder, not a file")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise NonRetryableError(f"cannot be read: {(error.strerror or type(error).__name__).lower()}") from error
    is_utf_16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    if not is_utf_16 and (position := content.find(0)) >= 0:
        raise NonRetryableError(f"not text: a NUL byte at position {position}")
    try:
        return content.decode("utf-16") if is_utf_16 else content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        name = "UTF-16" if is_utf_16 else "UTF-8"
        raise NonRetryableError(f"not {name} text: byte {error.start} cannot be decoded") from error


def _summarise(sentences: Sequence[str], lexicon: Lexicon) -> tuple[str, ...]:
    """The sentences that together say most of what is weighty, each measured by what the others have not said."""
    standing = ((number, sentence) for number, sentence in enumerate(sentences) if _can_stand(sentence))
    found = {number: list(dict.fromkeys(lexicon.find(sentence))) for number, sentence in standing}
    value = {term: math.sqrt(term.weight) for terms in found.values() for term in terms}
    said: set[Term] = set()
    chosen: list[int] = []
    while found and len(chosen) < _MOST_SUMMARY_SENTENCES:
        adding = [number for number, terms in found.items() if not said.issuperset(terms)]
        best = max(adding or found, key=lambda number: _score(number, sentences, found[number], value))
        terms = found.pop(best)
        value.update({term: value[term] * _REPEATED for term in terms})
        said.update(terms)
        chosen.append(best)
    return tuple(sentences[number] for number in sorted(chosen))


def _score(number: int, sentences: Sequence[str], terms: Sequence[Term], value: dict[Term, float]) -> float:
    sentence = sentences[number]
    lead = 1 + _LEAD * (1 - number / len(sentences)) ** 4
    whole = 1.0 if sentence.endswith(_SENTENCE_ENDS) else 0.6
    weight: float = sum(value[term] for term in terms) / (_FIXED_WIDTH + _width(sentence)) ** 0.75
    return weight * lead * whole * _share_of_letters(sentence) ** 3


def _can_stand(sentence: str) -> bool:
    return (
        _SHORTEST <= _width(sentence) <= _LONGEST
        and not sentence.endswith(_OPEN_ENDS)
        and _share_of_letters(sentence) >= _LEAST_LETTERS
    )


def _share_of_letters(text: str) -> float:
    return sum(character.isalpha() for character in text) / (len(text) - text.count(" "))


def _width(text: str) -> int:
    return len(text) + sum(character > "\u2e80" for character in text)
