"""Duplicates among results."""

from __future__ import annotations

import builtins
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rapidfuzz.distance import Indel

from taskframework.deduplication import Duplicate, deduplicate, normalised
from taskframework.errors import ExtraMissingError

#: Few letters, so that texts are often alike; some that Unicode writes in several ways.
_texts = st.text(alphabet="abA Å\u0041\u030aßẞ\u200b\u00a0ﬁ가\u1100\u1161", max_size=12)
_thresholds = st.floats(0.5, 1) | st.sampled_from([1 - 1 / 11, 0.9, 0.75, 2 / 3])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("  Silver \t Tower\n", "silver tower"),
        ("Élan", "E\u0301LAN"),
        ("\uff33\uff29\uff2c\uff36\uff25\uff32", "silver"),
        ("Grosse Straße", "GROSSE STRASSE"),
        ("ﬁreﬂy", "Firefly"),
        ("silver\u200b tower", "silver tower"),
        ("silver\u3000tower", "silver tower"),
        ("한국", "\u1112\u1161\u11ab\u1100\u116e\u11a8"),
        ("ΣΊΣΥΦΟΣ", "Σίσυφος"),
    ],
)
def test_texts_that_differ_only_in_their_spelling_are_the_same(one: str, other: str) -> None:
    assert normalised(one) == normalised(other)


def test_accents_words_and_signs_stay() -> None:
    names = ["Élan", "Elan", "El an", "El-an", "李小明", "李小红"]
    assert deduplicate(names).kept == names


@given(st.text())
def test_a_normalised_text_is_not_changed_again(text: str) -> None:
    assert normalised(normalised(text)) == normalised(text)


def test_the_first_one_wins_and_the_order_is_kept() -> None:
    done = deduplicate(["Tower", "gate", " tower", "Gate ", "tower"])
    assert done.kept == ["Tower", "gate"]
    assert done.duplicates == [
        Duplicate(" tower", "Tower", 1),
        Duplicate("Gate ", "gate", 1),
        Duplicate("tower", "Tower", 1),
    ]


def test_items_are_compared_by_their_key() -> None:
    places = [
        {"name": "Oakham", "kind": "town"},
        {"name": "oakham", "kind": "village"},
        {"name": "Elm", "kind": "town"},
    ]
    assert deduplicate(places, key=lambda place: place["name"]).kept == [places[0], places[2]]


@pytest.mark.parametrize(
    ("one", "other", "threshold", "are_near"),
    [
        ("Eldoria", "Eldorias", 0.92, True),
        ("Eldoria", "Eldorias", 0.97, False),
        ("The tower of the silver moon", "The tower of the silver noon", 0.92, True),
        ("Silvermere", "Silvermoor", 0.92, False),  # Jaro-Winkler: 0.92
        ("Item 12", "Item 13", 0.92, False),
        ("aaaaa", "aaaaaa", 10 / 11, True),  # exactly at the threshold
    ],
)
def test_with_a_threshold_nearly_equal_items_are_left_out_too(
    one: str, other: str, threshold: float, are_near: bool
) -> None:
    done = deduplicate([one, other], threshold=threshold)
    assert done.kept == ([one] if are_near else [one, other])
    similarity = Indel.normalized_similarity(normalised(one), normalised(other))
    assert [(found.of, found.similarity) for found in done.duplicates] == ([(one, similarity)] if are_near else [])


def test_an_item_is_compared_with_what_was_kept_not_with_what_was_left_out() -> None:
    chain = ["aaaaaaaaaa", "aaaaaaaaaab", "aaaaaaaaaabb"]
    assert deduplicate(chain, threshold=0.95).kept == [chain[0], chain[2]]


@given(st.lists(_texts, max_size=30), _thresholds)
def test_kept_texts_differ_and_each_left_out_text_repeats_a_kept_one(texts: list[str], threshold: float) -> None:
    def similarity(one: str, other: str) -> float:
        return Indel.normalized_similarity(normalised(one), normalised(other))

    kept: list[str] = []
    for text in texts:  # the promise, written as slowly as it can be
        if all(similarity(text, earlier) < threshold for earlier in kept):
            kept.append(text)
    done = deduplicate(texts, threshold=threshold)
    assert done.kept == kept
    assert len(done.duplicates) == len(texts) - len(kept)
    assert all(found.of in kept for found in done.duplicates)
    assert all(found.similarity == similarity(found.item, found.of) >= threshold for found in done.duplicates)


@given(st.lists(_texts), st.lists(_texts), st.none() | _thresholds)
def test_kept_texts_are_kept_again_with_new_items_after_them(
    texts: list[str], more: list[str], threshold: float | None
) -> None:
    kept = deduplicate(texts, threshold=threshold).kept
    assert deduplicate([*kept, *more], threshold=threshold).kept[: len(kept)] == kept


def test_thousands_of_names_are_compared_in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    from rapidfuzz import process

    calls: list[int] = []

    def counted(text: str, texts: list[str], **options: Any) -> Any:
        calls.append(len(texts))
        return extract(text, texts, **options)

    extract = process.extractOne
    monkeypatch.setattr(process, "extractOne", counted)
    rng = random.Random(7)
    names = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(8, 20))) for _ in range(3_000)]
    assert len(deduplicate([*names, *names], threshold=0.92).kept) > 2_990
    assert len(calls) < 3_000 * 5, "a call for each length near its own, and none for what is there already"


@pytest.mark.parametrize("threshold", [0, -0.5, 1.1, 92])
def test_a_threshold_is_a_share(threshold: float) -> None:
    with pytest.raises(ValueError, match="threshold must be above 0 and at most 1, not"):
        deduplicate(["a"], threshold=threshold)


def test_without_rapidfuzz_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_rapidfuzz(name: str, *rest: Any, **named: Any) -> Any:
        if name.partition(".")[0] == "rapidfuzz":
            raise ModuleNotFoundError(name)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without_rapidfuzz)
    assert deduplicate(["a", "A"]).kept == ["a"], "equal ones are found without it"
    with pytest.raises(ExtraMissingError, match=r"needs rapidfuzz.* pip install 'taskframework\[deduplication\]'"):
        deduplicate(["a"], threshold=0.92)
