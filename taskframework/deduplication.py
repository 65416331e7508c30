"""Duplicates among results: those that differ in their writing only, and on request those that are nearly the same.

For what generators give: names, titles, short texts. Nothing of the framework needs it; task code calls it.
"""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from taskframework.errors import ExtraMissingError

__all__ = ["Deduplicated", "Duplicate", "deduplicate"]

T = TypeVar("T")

#: rapidfuzz rounds a cutoff and may pass over what is exactly as similar; so it is asked for a little less.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Duplicate(Generic[T]):
    """An item that was left out.

    Attributes:
        of: the earlier item that it repeats.
        similarity: of their keys, from 0 to 1; 1 if they differ in their writing only.
    """

    item: T
    of: T
    similarity: float


@dataclass(frozen=True)
class Deduplicated(Generic[T]):
    """What is left of the items, and what was left out; both in the order of the items."""

    kept: list[T]
    duplicates: list[Duplicate[T]]


def deduplicate(
    items: Iterable[T], key: Callable[[T], str] = str, *, threshold: float | None = None
) -> Deduplicated[T]:
    """Keep the first of all items that are the same, and with a threshold of all that are nearly the same.

    Every kept item is different enough from each item kept before it, and every duplicate repeats one of those. So the
    kept ones of one call may be given to the next one together with new items: they are all kept again.

    Similarity is the share of the characters of both keys that stay if one is turned into the other by inserting and
    deleting (rapidfuzz's `Indel.normalized_similarity`). It is chosen because a threshold means the same at every
    length and in every script, and because names that only begin alike stay different: "Silvermere" and "Silvermoor"
    have 0.8, where Jaro-Winkler says 0.92. At 0.92 one letter more or less makes a duplicate from 6 letters on, one
    that is exchanged for another from 13 on; at 0.97 from 17 and 34.

    The time grows with the square of the number of items that are kept and of about the same length: a hundred names
    take a millisecond, ten thousand one to three seconds. If there may be thousands, an `async def` should call it by
    `asyncio.to_thread`.

    Args:
        items: read once.
        key: the text by which an item is compared; it is normalised first (`normalised`).
        threshold: similarity from which on two items are the same, above 0 and at most 1; 0.92 to 0.97 do well for
            names. None: only items whose normalised keys are equal.

    Raises:
        ValueError: if the threshold is out of that range.
        ExtraMissingError: if there is a threshold and rapidfuzz is not installed.
    """
    near = None if threshold is None else _NearTexts(threshold)
    kept: dict[str, T] = {}
    duplicates: list[Duplicate[T]] = []
    for item in items:
        text = normalised(key(item))
        found = (text, 1.0) if text in kept else near and near.find(text)
        if found:
            duplicates.append(Duplicate(item, kept[found[0]], found[1]))
            continue
        kept[text] = item
        if near:
            near.add(text)
    return Deduplicated(list(kept.values()), duplicates)


def normalised(text: str) -> str:
    """The text without what writing may change and reading does not notice.

    Compatible forms become one (full-width letters, ligatures, composed and decomposed accents), upper and lower case
    become one (with "ß" as "ss"), invisible characters such as a zero-width space go, and any white space becomes one
    space between words. Accents stay: "Élan" and "Elan" are two names. After Unicode's compatibility caseless match,
    chapter 3.13, definition D146.
    """
    folded = unicodedata.normalize("NFD", text)
    for _ in range(2):
        folded = unicodedata.normalize("NFKD", folded.casefold())
    visible = "".join(character for character in folded if unicodedata.category(character) != "Cf")
    return unicodedata.normalize("NFKC", " ".join(visible.split()))


class _NearTexts:
    """Texts of which none resembles another one; they are compared in C, and only with those of a similar length."""

    def __init__(self, threshold: float) -> None:
        if not 0 < threshold <= 1:
            raise ValueError(f"threshold must be above 0 and at most 1, not {threshold}")
        try:
            from rapidfuzz import process
            from rapidfuzz.distance import Indel
        except ImportError:
            raise ExtraMissingError("Comparing nearly equal texts", "rapidfuzz", "deduplication") from None
        self._threshold = threshold
        self._nearest: Callable[..., Any] = process.extractOne
        self._similarity = Indel.normalized_similarity
        self._by_length: defaultdict[int, list[str]] = defaultdict(list)

    def add(self, text: str) -> None:
        self._by_length[len(text)].append(text)

    def find(self, text: str) -> tuple[str, float] | None:
        """One that resembles this text, and how much."""
        for length, texts in self._by_length.items():
            # What one text is longer than the other has no counterpart there.
            if 1 - abs(length - len(text)) / (length + len(text)) >= self._threshold:
                cutoff = self._threshold - _ROUNDING
                found = self._nearest(text, texts, scorer=self._similarity, score_cutoff=cutoff)
                if found is not None and found[1] >= self._threshold:
                    return found[0], found[1]
        return None
