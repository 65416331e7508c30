"""Finds duplicates among results: items that differ only in their writing, and on request items that are nearly equal.

It is made for generated names, titles and short texts. Task code calls it; the framework does not use it.
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

#: rapidfuzz rounds a cutoff and may skip a text with exactly this similarity; so the cutoff is a little lower.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Duplicate(Generic[T]):
    """An item that was left out.

    Attributes:
        of: the earlier item that this item repeats.
        similarity: the similarity of their keys, from 0 to 1; 1 if they differ only in their writing.
    """

    item: T
    of: T
    similarity: float


@dataclass(frozen=True)
class Deduplicated(Generic[T]):
    """The items that are kept, and the items that were left out; both in the order of the items."""

    kept: list[T]
    duplicates: list[Duplicate[T]]


def deduplicate(
    items: Iterable[T], key: Callable[[T], str] = str, *, threshold: float | None = None
) -> Deduplicated[T]:
    """Keep only the first of several equal items, and with a threshold only the first of several nearly equal items.

    Every kept item differs enough from each item kept before it, and every duplicate repeats one of the kept items. So
    the kept items of one call may be given to the next call together with new items: they are all kept again.

    Similarity is the share of the characters of both keys that stay if one key is turned into the other by inserting
    and deleting (rapidfuzz's `Indel.normalized_similarity`). This measure is used because a threshold means the same at
    every length and in every script, and because names that only begin alike stay different: "Silvermere" and
    "Silvermoor" have 0.8, but 0.92 with Jaro-Winkler. At 0.92, one letter more or less makes a duplicate from 6 letters
    on, and one changed letter from 13 letters on; at 0.97 from 17 and 34.

    The time grows with the square of the number of kept items of about the same length: a hundred names take a
    millisecond, ten thousand take one to three seconds. If there may be thousands of items, an `async def` should call
    this by `asyncio.to_thread`.

    Args:
        items: the items; they are read once.
        key: returns the text by which an item is compared; the text is normalised first (`normalised`).
        threshold: from this similarity on two items count as equal, above 0 and at most 1; 0.92 to 0.97 work well for
            names. With None only items with equal normalised keys are duplicates.

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
    """Return the text without differences in writing that a reader does not notice.

    Compatible forms become equal (full-width letters, ligatures, composed and decomposed accents), upper and lower case
    become equal (with "ß" as "ss"), invisible characters such as a zero-width space are removed, and any white space
    becomes one space between words. Accents stay: "Élan" and "Elan" are two names. This follows Unicode's compatibility
    caseless match, chapter 3.13, definition D146.
    """
    folded = unicodedata.normalize("NFD", text)
    for _ in range(2):
        folded = unicodedata.normalize("NFKD", folded.casefold())
    visible = "".join(character for character in folded if unicodedata.category(character) != "Cf")
    return unicodedata.normalize("NFKC", " ".join(visible.split()))


class _NearTexts:
    """Texts that do not resemble each other; they are compared in C, and only with texts of a similar length."""

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
        """Return a text that resembles this text, and the similarity."""
        for length, texts in self._by_length.items():
            # The characters by which one text is longer have no counterpart in the other text.
            if 1 - abs(length - len(text)) / (length + len(text)) >= self._threshold:
                cutoff = self._threshold - _ROUNDING
                found = self._nearest(text, texts, scorer=self._similarity, score_cutoff=cutoff)
                if found is not None and found[1] >= self._threshold:
                    return found[0], found[1]
        return None
