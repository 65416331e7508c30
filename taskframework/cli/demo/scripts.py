"""Scripts: where a word ends in those with spaces, and what takes its place in those without."""
# ruff: noqa: RUF001 - the characters of other scripts are meant

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum, auto

_HAN = "\u3005\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003134f"
_KATAKANA = "\u30a1-\u30fa\u30fc-\u30ff\uff66-\uff9f"
_HIRAGANA = "\u3041-\u309f"
_OTHER_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
_UNSPACED = _HAN + _KATAKANA + _HIRAGANA + _OTHER_UNSPACED
_MARKS = "\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0900-\u0dff"  # belong to the letter before them
_LETTERS = rf"(?:[^\W{_UNSPACED}]|[{_MARKS}])+"
#: A word, or a run of characters that are written without spaces. Japanese grammar is written in hiragana, its
#: subjects are not; hiragana gives no terms.
TOKEN = re.compile(
    r"(?P<address>https?://\S+|[\w-]{1,63}\.[\w.-]{1,200}/\S*|[\w.+-]{1,63}@[\w.-]+)|"
    rf"(?P<word>{_LETTERS}(?:[-'’·]{_LETTERS})*|[{_KATAKANA}]{{2,}})|(?P<run>[{_HAN}{_OTHER_UNSPACED}]+)"
)
_COUNTED = re.compile(rf"{_LETTERS}(?:[-'’·.]{_LETTERS})*|[{_UNSPACED}]")
_HIRAGANA_CHARACTER = re.compile(rf"[{_HIRAGANA}]")
_UNSPACED_CHARACTER = re.compile(rf"[{_UNSPACED}]")
#: What stands after a word that ends a clause.
AFTER_CLAUSE = re.compile(r"[`\"'*”’»\])]*(?:[^\w\s`\"'“‘«(\[{<]|$)")
_MOSTLY_UNSPACED = 0.25  # of the text: one such character says as much as some letters of a word
_SOME_HIRAGANA = 0.1  # of the characters without spaces


class Script(Enum):
    """With spaces, without, or the Japanese mixture of both kinds of character."""

    SPACED = auto()
    UNSPACED = auto()
    JAPANESE = auto()


def count_words(text: str) -> tuple[int, int]:
    """Words between spaces, and characters of scripts that are written without spaces."""
    spaced = unspaced = 0
    for match in _COUNTED.finditer(text):
        if _UNSPACED_CHARACTER.match(match[0]):
            unspaced += 1
        else:
            spaced += 1
    return spaced, unspaced


def script_of(sentences: Sequence[str]) -> Script:
    """How most of the text is written."""
    text = "".join(sentences)
    unspaced, hiragana = len(_UNSPACED_CHARACTER.findall(text)), len(_HIRAGANA_CHARACTER.findall(text))
    if unspaced < len(text) * _MOSTLY_UNSPACED:
        return Script.SPACED
    return Script.JAPANESE if hiragana > unspaced * _SOME_HIRAGANA else Script.UNSPACED
