"""A digest of a text: its title, how it begins, its size and its most frequent words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from taskframework.errors import NonRetryableError

_MAX_FILE_BYTES = 32 * 2**20  # bytes of a file: sixteen files are read at a time, and stay in memory meanwhile
_SEARCHED_CHARACTERS = 20_000  # characters that are searched for the title and the first paragraph
_MIN_PARAGRAPH_LENGTH, _MAX_TEXT_LENGTH = 40, 300  # characters: of a first paragraph, and of a shown text
_MAX_FREQUENT_WORDS, _MIN_WORD_LENGTH = (
    8,
    4,
)  # frequent words, and letters of each; shorter words mean little in most languages
_WORDS_PER_PROGRESS_REPORT = 200_000  # words between two reports of progress: a few tenths of a second

_UNSPACED_SCRIPTS = "\u3040-\u30ff\u3400-\u9fff"  # Chinese and Japanese are written without spaces
_LETTERS = rf"[^\x00-\x20!-/:-@\[-`{{-~\x7f-\xbf\u2000-\u2bff\u3000-\u303f\uff00-\uff20{_UNSPACED_SCRIPTS}]+"
_WORD = re.compile(rf"(?P<word>{_LETTERS}(?:[-'’]{_LETTERS})*)|[{_UNSPACED_SCRIPTS}]+")  # noqa: RUF001
_PAIR = re.compile(r"[\u30a0-\u30ff\u3400-\u9fff]{2}")  # without hiragana, which is mostly grammar
_MARKUP = re.compile(r"!?\[([^\[\]]{0,200})\]\([^()]{0,500}\)|\*\*|`")
_STOP_WORDS = re.compile(
    "also|because|been|before|could|does|each|from|have|into|more|most|only|other|over|same|some|such|than|that|their|"
    "them|then|there|these|they|this|those|under|until|very|were|what|when|where|which|while|will|with|without|would|your"
)


@dataclass(frozen=True, slots=True)
class Digest:
    """The facts about a text that are useful before reading it.

    Attributes:
        title: the first line with a letter or digit.
        beginning: the first paragraph after it, shortened; may be empty.
        words: number of words; in scripts without spaces, each character counts.
        frequent_words: each with its count; in scripts without spaces, pairs of characters.
    """

    title: str
    beginning: str
    characters: int
    words: int
    lines: int
    frequent_words: dict[str, int]


def digest(text: str, report_progress: Callable[[float], None] = lambda _: None) -> Digest:
    """Digest a text. If it is long, `report_progress` gets the share that is counted so far, now and then."""
    words = 0
    counts: Counter[str] = Counter()
    for number, match in enumerate(_WORD.finditer(text), start=1):
        if word := match["word"]:
            words += 1
            counts[word.lower()] += 1
        else:
            words += len(match[0])
            counts.update(left + right for left, right in pairwise(match[0]))
        if number % _WORDS_PER_PROGRESS_REPORT == 0:
            report_progress(match.end() / len(text))
    ranked_words = sorted(filter(_is_meaningful, counts), key=lambda word: (-counts[word], word))
    frequent_words = {word: counts[word] for word in ranked_words[:_MAX_FREQUENT_WORDS]}
    return Digest(
        *_title_and_beginning(text[:_SEARCHED_CHARACTERS]), len(text), words, len(text.splitlines()), frequent_words
    )


def read_text(path: Path) -> str:
    """Read a text file.

    Raises:
        NonRetryableError: if it cannot be read or is not text; the message gives the reason, without the path.
    """
    try:
        if path.exists() and not path.is_file():
            raise NonRetryableError("a folder, not a file" if path.is_dir() else "not a file")
        if (size := path.stat().st_size) > _MAX_FILE_BYTES:
            raise NonRetryableError(f"too large: {size:,} bytes, and the demo reads {_MAX_FILE_BYTES:,} at most")
        content = path.read_bytes()
        if (position := content.find(0)) >= 0:
            raise NonRetryableError(f"not text: a NUL byte at position {position}")
        return content.decode("utf-8-sig")
    except OSError as error:
        raise NonRetryableError(f"cannot be read: {(error.strerror or type(error).__name__).lower()}") from error
    except UnicodeDecodeError as error:
        raise NonRetryableError(f"not UTF-8 text: byte {error.start} cannot be decoded") from error


def _title_and_beginning(text: str) -> tuple[str, str]:
    title, _, rest = text[re.search(r"[^\W_]|$", text).start() :].partition("\n")  # type: ignore[union-attr]
    paragraphs = (
        " ".join(part.split()) for part in rest.split("\n\n") if not part.lstrip().startswith(("#", "|", "<"))
    )
    return _without_markup(title), _without_markup(
        next((part for part in paragraphs if len(part) >= _MIN_PARAGRAPH_LENGTH), "")
    )


def _without_markup(text: str) -> str:
    plain = _MARKUP.sub(r"\1", text).strip(" #*=_-'\"")
    return plain if len(plain) <= _MAX_TEXT_LENGTH else plain[: _MAX_TEXT_LENGTH - 1] + "…"


def _is_meaningful(word: str) -> bool:
    is_long = len(word) >= _MIN_WORD_LENGTH and not word[0].isdigit()
    return (is_long and not _STOP_WORDS.fullmatch(word)) or _PAIR.fullmatch(word) is not None
