"""Terms of a text and how much each says about its subject, by statistics alone: no word list of any language.

Three observations carry it. Words that only connect others hardly ever stand before a comma or a full stop; subjects
often do. Subjects come in clusters, connecting words everywhere. Where nouns are capitalised, subjects are.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from taskframework.cli.demo.scripts import AFTER_CLAUSE, TOKEN, Script, script_of

_PARTS = 20  # the text is cut into so many to see whether a word comes in clusters
_LONGEST_GRAM = 4
_SHORTEST_WORD = 3
_LONGEST_CONNECTING = 5  # such as where, which; connecting words that are longer are seldom
_SURPRISING = 2.0  # expected clause ends of which none was seen
_SHORTEST_SENTENCE = 3
_MOST_COMPARED = 50
_CAPITALISING = 0.18  # from this share of capitals inside sentences on, the language capitalises its nouns
_LEAST_COUNT_OF_LONG = 3  # of a gram of more than two characters
_LEAST_SHARE = 0.06  # of the weight of the best term, to be named beside it
_CAUTION = 10  # as many sightings with the usual share of ends are added to those that were made
_LENGTH_OF_ABBREVIATION = 6


@dataclass(slots=True)
class _Seen:
    """What was seen of one term."""

    count: int = 0
    ends: int = 0
    inside: int = 0  # not first in its sentence
    capitals: int = 0  # of those
    parts: set[int] = field(default_factory=set)
    before: set[str] = field(default_factory=set)
    after: set[str] = field(default_factory=set)
    surfaces: Counter[str] = field(default_factory=Counter)

    def add(self, other: _Seen) -> None:
        """Take over what was seen of another form of the same word."""
        self.count += other.count
        self.ends += other.ends
        self.inside += other.inside
        self.capitals += other.capitals
        self.parts |= other.parts
        self.surfaces += other.surfaces


@dataclass(frozen=True, slots=True)
class Term:
    """A word as it is written most often, how often it occurs in any form, and how much it says."""

    word: str
    count: int
    weight: float


@dataclass(frozen=True, slots=True)
class Lexicon:
    """The terms of a text by each of their forms."""

    forms: Mapping[str, Term]

    def find(self, sentence: str) -> Iterator[Term]:
        """The terms that occur in a sentence, once for each occurrence."""
        for match in TOKEN.finditer(sentence):
            forms = (gram for gram, *_ in _grams(match[0])) if match.lastgroup == "run" else [match[0].casefold()]
            yield from (self.forms[form] for form in forms if form in self.forms)

    def best(self, most: int) -> list[Term]:
        """The heaviest terms, none of which contains another."""
        chosen: list[Term] = []
        for term in sorted(set(self.forms.values()), key=lambda term: (-term.weight, term.word)):
            if len(chosen) == most or (chosen and term.weight < _LEAST_SHARE * chosen[0].weight):
                break
            plain = term.word.casefold()
            if not any(plain in other.word.casefold() or other.word.casefold() in plain for other in chosen):
                chosen.append(term)
        return chosen


def build_lexicon(sentences: Sequence[str], headings: Iterable[str]) -> Lexicon:
    """Weigh every term that occurs twice; if none does, those that occur once.

    Args:
        sentences: the text, sentence by sentence; cells of tables will do too.
        headings: what they name counts double.
    """
    words, grams = _observe(sentences)
    named = {token[0].casefold() for heading in headings for token in TOKEN.finditer(heading)}
    script = script_of(sentences)
    forms = dict(_weigh_words(_group_forms(words), named, ends_tell=script is Script.SPACED))
    forms.update(_weigh_grams(grams, "\n".join(named), ends_tell=script is not Script.JAPANESE))
    repeated = {form: term for form, term in forms.items() if term.count > 1}
    return Lexicon(repeated or forms)


def _observe(sentences: Sequence[str]) -> tuple[dict[str, _Seen], dict[str, _Seen]]:
    words: dict[str, _Seen] = {}
    grams: dict[str, _Seen] = {}
    for number, sentence in enumerate(sentences):
        part = number * _PARTS // len(sentences)
        tokens = list(TOKEN.finditer(sentence))
        if sum(len(token[0]) if token.lastgroup == "run" else 1 for token in tokens) < _SHORTEST_SENTENCE:
            continue  # a label, such as "Example."
        for match in tokens:
            is_end = AFTER_CLAUSE.match(sentence, match.end()) is not None
            if match.lastgroup == "word":
                _observe_word(words, match, part, is_end)
            elif match.lastgroup == "run":
                _observe_run(grams, match[0], part, is_end, border=str(number))
    return words, grams


def _observe_word(words: dict[str, _Seen], match: re.Match[str], part: int, is_end: bool) -> None:
    seen = words.setdefault(match[0].casefold(), _Seen())
    seen.surfaces[match[0]] += 1
    seen.inside += match.start() > 0
    seen.capitals += match.start() > 0 and match[0][0].isupper()
    _note(seen, part, is_end)


def _observe_run(grams: dict[str, _Seen], run: str, part: int, is_end: bool, border: str) -> None:
    for gram, before, after in _grams(run):
        seen = grams.setdefault(gram, _Seen())
        seen.before.add(before or border)  # the border of a run is as good as a new neighbour each time
        seen.after.add(after or border)
        _note(seen, part, is_end and not after)


def _note(seen: _Seen, part: int, is_end: bool) -> None:
    seen.count += 1
    seen.ends += is_end
    seen.parts.add(part)


def _grams(run: str) -> Iterator[tuple[str, str, str]]:
    """Each part of a run up to the longest length, with the characters beside it."""
    for start in range(len(run)):
        for end in range(start + 1, min(start + _LONGEST_GRAM, len(run)) + 1):
            yield run[start:end], run[start - 1 : start], run[end : end + 1]


def _group_forms(words: Mapping[str, _Seen]) -> list[tuple[list[str], _Seen]]:
    """Put forms of a word together: those that share at least three quarters of their letters from the start."""
    groups: list[tuple[list[str], _Seen]] = []
    alike: dict[str, list[int]] = {}
    for form in sorted(words):
        near = alike.setdefault(form[: _SHORTEST_WORD + 1], [])
        found = next((number for number in near[-_MOST_COMPARED:] if _are_forms(groups[number][0][0], form)), None)
        if found is None:
            near.append(len(groups))
            groups.append(([form], words[form]))
        else:
            groups[found][0].append(form)
            groups[found][1].add(words[form])
    return groups


def _are_forms(one: str, other: str) -> bool:
    shared = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        shared += 1
    return shared >= _SHORTEST_WORD + 1 and shared >= 0.75 * max(len(one), len(other)) and "_" not in one + other


def _weigh_words(
    groups: list[tuple[list[str], _Seen]], named: set[str], *, ends_tell: bool
) -> Iterator[tuple[str, Term]]:
    usual = _usual_ends(seen for _, seen in groups)
    inside = sum(seen.inside for _, seen in groups) or 1
    capitalising = sum(seen.capitals for _, seen in groups) / inside > _CAPITALISING
    for forms, seen in groups:
        word = seen.surfaces.most_common(1)[0][0]
        if len(word) < _SHORTEST_WORD or word[0].isdigit() or (ends_tell and _may_connect(word, seen, usual, named)):
            continue
        weight = seen.count * _cluster_factor(seen) * _length_factor(word)
        weight *= 0.4 + 0.6 * seen.inside / seen.count  # what mostly opens sentences links them or is a label
        if ends_tell:
            weight *= _end_factor(seen, usual)
        if ends_tell and capitalising and seen.capitals < seen.inside / 2:
            weight /= 10
        if "_" in word or any(character.isdigit() for character in word):
            weight /= 3
        term = Term(word, seen.count, weight if named.isdisjoint(forms) else weight * 2)
        yield from ((form, term) for form in forms)


def _weigh_grams(grams: Mapping[str, _Seen], named: str, *, ends_tell: bool) -> Iterator[tuple[str, Term]]:
    usual = _usual_ends(seen for gram, seen in grams.items() if len(gram) > 1)
    for gram, seen in grams.items():
        freedom = min(len(seen.before), len(seen.after))
        if len(gram) < 2 or freedom < min(2, seen.count) or (len(gram) > 2 and seen.count < _LEAST_COUNT_OF_LONG):
            continue
        cohesion = seen.count / math.sqrt(grams[gram[:-1]].count * grams[gram[1:]].count)
        weight = (
            seen.count * _cluster_factor(seen) * cohesion * min(1.0, freedom / seen.count**0.6) * math.sqrt(len(gram))
        )
        if ends_tell:
            weight *= _end_factor(seen, usual)
        yield gram, Term(gram, seen.count, weight * 2 if gram in named else weight)


def _usual_ends(observed: Iterable[_Seen]) -> float:
    ends = total = 0
    for seen in observed:
        ends += seen.ends
        total += seen.count
    return ends / total if ends else 1.0


def _end_factor(seen: _Seen, usual: float) -> float:
    """How often the term ends a clause, against the usual; cautious while it was seen seldom."""
    return min(1.3, (seen.ends + _CAUTION * usual) / ((seen.count + _CAUTION) * usual)) ** 2


def _may_connect(word: str, seen: _Seen, usual: float, named: set[str]) -> bool:
    """Whether a short word must be taken for a connecting one, since nothing speaks for it."""
    in_heading = word.casefold() in named and len(word) > _SHORTEST_WORD and seen.count * usual < _SURPRISING
    is_name = seen.capitals * 2 > seen.inside
    return not (seen.ends or is_name or in_heading or len(word) > _LONGEST_CONNECTING)


def _length_factor(word: str) -> float:
    """Connecting words are short; capitals throughout tell an abbreviation, which stands for something long."""
    return math.log2(max(len(word), _LENGTH_OF_ABBREVIATION if word.isupper() else 0)) - 1


def _cluster_factor(seen: _Seen) -> float:
    expected = _PARTS * (1 - (1 - 1 / _PARTS) ** seen.count)
    return 1.25 - 0.5 * min(1.0, len(seen.parts) / expected)
