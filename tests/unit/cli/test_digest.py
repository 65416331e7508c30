"""The demo's digest: what it counts, which words and sentences it finds telling, in which languages, at what cost."""
# ruff: noqa: RUF001 - the texts are in other languages

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskframework.cli.demo.digest import digest, read_text
from taskframework.cli.demo.prose import read_prose, split_sentences
from taskframework.errors import NonRetryableError

ENGLISH = """\
---
title: Front matter
---
# How bees find their way

Honey bees find the way to their hive by the sun, by landmarks and by the memory of earlier flights. The sun is the
first of these, and a bee corrects its angle to the sun for the time of the day. When the sun is hidden, the bees use
the polarised light of the sky, which tells where the sun must be.

## The dance

A bee that has found flowers returns to the hive and dances on the comb. The angle of the dance tells the other bees
the angle of the flight to the sun; the length of the dance tells the distance of the flowers. With the dance, the
hive sends its bees where the flowers are, and it does so within minutes. Dr. Frisch, who read the dance first, called
it a language (cf. his lectures of 1973).

```python
the_dance = "not prose"
```

| Sense | Organ |
|---|---|
| light | eyes |

- landmarks guide the bees near the hive
- without landmarks, the bees search in loops
"""

GERMAN = """\
# Die Entstehung des Regens

Regen entsteht, wenn Wasser aus dem Meer verdunstet und die warme Luft den Dampf in die Höhe trägt. In der Höhe ist die
Luft kälter, und der Dampf wird zu winzigen Tropfen, aus denen die Wolken bestehen. Die Tropfen in den Wolken sind so
leicht, dass die Luft sie trägt. Erst wenn viele Tropfen zu einem großen werden, fallen sie als Regen zur Erde. In
kalten Wolken gefrieren die Tropfen und wachsen als Eis, das beim Fallen wieder zu Wasser wird. Der Regen fließt in die
Flüsse, die Flüsse tragen das Wasser in das Meer, und der Kreislauf des Wassers beginnt von vorn.
"""

RUSSIAN = """\
Вулкан образуется там, где магма поднимается из глубины земли к поверхности. Магма собирается под вулканом, и её
давление растёт. Когда давление магмы становится слишком большим, начинается извержение вулкана. Во время извержения
вулкан выбрасывает пепел, газы и лаву. Лава течёт по склонам и застывает, и так вулканы растут. Пепел вулкана
ветер уносит далеко, но почва, на которую падает пепел, потом становится плодородной.
"""

CHINESE = """\
# 茶叶的制作

茶叶的制作从采摘开始，采摘的时间决定茶叶的品质。春天采摘的茶叶最嫩，所以春茶的价格最高。采摘之后，茶叶要经过萎凋、
杀青、揉捻和干燥。绿茶不需要发酵，红茶需要完全发酵，乌龙茶需要部分发酵。发酵的程度决定茶叶的颜色和香气。干燥之后的茶叶
可以保存很长时间，但是茶叶必须避免潮湿。好的水也很重要，因为水的品质影响茶叶的香气。
"""

JAPANESE = """\
新幹線は日本の高速鉄道です。最初の新幹線は1964年に東京と大阪の間で開業しました。新幹線の線路には踏切がないので、列車は
高速で安全に走ることができます。地震が起きると、地震計が電気を止めて列車を停車させます。現在、新幹線は東京から北海道や九州まで走っています。
"""


@pytest.mark.parametrize(
    ("text", "subjects", "connectors"),
    [
        (ENGLISH, {"bees", "sun", "dance", "hive"}, {"the", "and", "their", "which", "that", "where", "when", "with"}),
        (GERMAN, {"Wasser", "Tropfen", "Wolken", "Regen"}, {"die", "und", "der", "den", "das", "wenn", "sind", "zu"}),
        (RUSSIAN, {"вулкан", "извержение", "пепел"}, {"и", "где", "на", "по", "так", "когда", "которую", "из"}),
        (CHINESE, {"茶叶", "采摘", "发酵"}, {"的", "可以", "但是", "因为", "的品质", "茶叶的"}),
        (JAPANESE, {"新幹線"}, {"です", "ます", "ると", "現在"}),
    ],
    ids=["english", "german", "russian", "chinese", "japanese"],
)
def test_key_words_are_the_subjects_in_any_language(text: str, subjects: set[str], connectors: set[str]) -> None:
    found = [key_word.word.casefold() for key_word in digest(text).key_words]
    for subject in subjects:
        stem = subject.casefold()[: max(2, len(subject) - 1)]
        assert any(word.startswith(stem) for word in found), (subject, found)
    assert not connectors & set(found), found
    assert len(found) <= 8


@pytest.mark.parametrize("text", [ENGLISH, GERMAN, RUSSIAN, CHINESE, JAPANESE])
def test_the_summary_is_whole_sentences_in_the_order_of_the_text(text: str) -> None:
    sentences = read_prose(text).sentences
    places = [sentences.index(sentence) for sentence in digest(text).summary]
    assert len(places) == 3
    assert places == sorted(set(places))


def test_the_summary_takes_what_speaks_of_the_subject() -> None:
    aside = "Yesterday my neighbour bought a green bicycle from somebody else entirely."
    text = f"{aside}\n\n" + ENGLISH.split("---\n")[2]
    assert aside not in digest(text).summary
    assert digest(ENGLISH).summary[0].startswith("Honey bees find the way to their hive by the sun")


def test_a_second_sentence_does_not_repeat_the_first() -> None:
    said = "The lighthouse warns the ships in the harbour of the rocks."
    again = "The lighthouse warns the ships in the harbour of the rocks!"
    other = "A keeper lives in the lighthouse and lights the lamp of the harbour at dusk."
    more = "Since the hurricane the lamp is electric, for another hurricane had broken the lamp."
    assert digest(f"{said} {again} {other} {more} It rained a little on the day before.").summary == (said, other, more)


def test_the_summary_prefers_the_beginning_and_plain_words() -> None:
    first = "Whales eat krill in the cold seas."
    last = "In cold seas whales eat krill."
    middle = "A ship passes by, and its crew sees nothing of this at all. " * 4
    assert digest(f"{first} {middle} {last}").summary[0] == first
    plain = "Whales of the north eat krill in the cold. Most of the krill live below the ice there. The ice of the cold"
    cryptic = "Whales (1), krill + ice, seas = cold."
    assert cryptic not in digest(f"{plain} seas melts at last. {cryptic}").summary


def test_what_opens_sentences_or_stands_everywhere_weighs_less() -> None:
    opening = (
        "However, one coral grows here. However, the coral dies. However, a fish sees some coral, then leaves. "
        "However, it rains on coral."
    )
    found = [key_word.word for key_word in digest(opening).key_words]
    assert found.index("coral") < found.index("However")
    spread = "Somebody saw an alpha, and rain fell. Nobody saw it, and rain fell. " * 20
    dense = "Somebody saw an omega, and rain fell. " * 20
    found = [key_word.word for key_word in digest(spread + dense).key_words]
    assert found.index("omega") < found.index("alpha")


def test_counts() -> None:
    text = "# Title\n\nOne two three. Four five!\n\n    code here\n"
    found = digest(text)
    assert (found.title, found.characters, found.lines) == ("Title", len(text), 5)
    assert (found.words, found.sentences) == (8, 2)
    assert found.reading_minutes == 0.0


def test_characters_count_as_words_where_there_are_no_spaces() -> None:
    found = digest("茶叶很好。" * 200)
    assert (found.words, found.sentences) == (800, 200)
    assert found.reading_minutes == 2.0
    assert digest("word " * 2200).reading_minutes == 10.0


@pytest.mark.parametrize(
    ("text", "title"),
    [
        (ENGLISH, "How bees find their way"),
        ("---\ntitle: 'From front matter'\nother: x\n---\n\nText.", "From front matter"),
        ("Underlined\n==========\n\nText.", "Underlined"),
        ("A whole sentence.\n\n# A section\n", "A whole sentence."),
        ("![logo](x.png)\nbadges\n\n# The title\n", "The title"),
        ("First line here:\nand more of it.", "First line here"),
        ("# **Bold** and [linked](http://x.y) `code_name`\n", "Bold and linked code_name"),
        ("# " + "long " * 100, ("long " * 100)[:119].rstrip() + "…"),
        ("---\nno end of front matter\n", "no end of front matter"),
        ("", ""),
    ],
)
def test_the_title(text: str, title: str) -> None:
    assert digest(text).title == title


@pytest.mark.parametrize(
    ("paragraph", "sentences"),
    [
        ("One. Two! Three? Four… Five", ["One.", "Two!", "Three?", "Four…", "Five"]),
        ("Version 3.14 of a.b.c is out. Really.", ["Version 3.14 of a.b.c is out.", "Really."]),
        ("Dr. Who met J. Doe, e.g. On Monday. Then", ["Dr. Who met J. Doe, e.g. On Monday.", "Then"]),
        ("Am 3. Oktober war es, z. B. im Jahr 1990. Danach", ["Am 3. Oktober war es, z. B. im Jahr 1990.", "Danach"]),
        ("It grew (see fig. A. and B.) a lot. Yes.", ["It grew (see fig. A. and B.) a lot.", "Yes."]),
        ("It costs approx. ten. Yes. - No! - Well", ["It costs approx. ten.", "Yes.", "No!", "Well"]),
        ('He said "stop." Then he left.', ['He said "stop."', "Then he left."]),
        ("一句。两句！“三句？”四句", ["一句。", "两句！", "“三句？”", "四句"]),
        ("क्या यह है? हाँ। ठीक।", ["क्या यह है?", "हाँ।", "ठीक।"]),
        ("Short line\nanother line", ["Short line", "another line"]),
        ("a line of a paragraph that an editor wrapped at its\nedge goes on. New.", None),
        ("这一行文字在编辑器里被自动换行所以它很长很长很长很长很长\n下一行继续。", None),
    ],
)
def test_sentences_are_split_in_any_script(paragraph: str, sentences: list[str] | None) -> None:
    found = list(split_sentences(paragraph))
    if sentences is not None:
        assert found == sentences
    else:
        glue = " " if paragraph.isascii() else ""
        assert found[0].startswith(paragraph.replace("\n", glue)[:60].split(".")[0])


def test_only_prose_gives_sentences() -> None:
    text = (
        "# Heading\n\nProse with **bold**, _italic_, `__init__` and [a link](http://x.y/z).\n"
        "~~~\nfenced. code.\n```\nstill code.\n~~~text\nstill code.\n~~~\n\n"
        "    indented. code.\n\n| table. | cell. |\n\n"
        "<!-- comment. -->\n> Quoted prose.\n\n* * *\n\n1. First item\n2) - [x] Second item\n"
        "const x = () => { return 1; };\n[target]: http://x.y\nfootnote[^1] mark\n"
    )
    assert read_prose(text).sentences == (
        "Prose with bold, italic, __init__ and a link.",
        "Quoted prose.",
        "First item",
        "Second item",
        "footnote mark",
    )


def test_a_text_without_line_breaks_is_still_prose() -> None:
    text = "Bees {sometimes} dance in the hive near the flowers. " * 20
    assert digest(text).sentences == 20


@pytest.mark.parametrize(
    "text", ["", "\n\n\n", "x", "# Only a heading", "....", "```\nonly code\n```", "1 2 3", "\ufeff"]
)
def test_a_text_with_nothing_to_say_has_an_empty_summary(text: str) -> None:
    assert digest(text).summary == ()


def test_single_words_are_key_words_if_nothing_repeats() -> None:
    found = [key_word.word for key_word in digest("Penguins swim under water, albatrosses glide above.").key_words]
    assert {"Penguins", "albatrosses"} <= set(found)


def test_forms_of_a_word_are_counted_together_and_shown_as_written_most() -> None:
    text = "The worker waits. A worker, and workers, and Workers, and workers again! The workers stop."
    key_word = digest(text).key_words[0]
    assert (key_word.word, key_word.count) == ("workers", 6)


def test_words_of_tables_are_key_words_but_no_sentences() -> None:
    table = "| Gas | Share |\n|---|---|\n| nitrogen of the air | most of it |\n| oxygen and nitrogen | nearly all |\n"
    found = digest(f"# Air\n\nThe air is a mixture of gases.\n\n{table}")
    assert "nitrogen" in [key_word.word for key_word in found.key_words]
    assert found.sentences == 1


def test_program_code_outside_of_fences_is_no_prose() -> None:
    code = (
        '"""What this module is for."""\n\nfrom somewhere import something\nimport os.path\n\n\n@decorated\n'
        "def function(argument: int) -> int:\n    value: int = 5\n    call(value)\n    return (argument)\n"
    )
    assert read_prose(code).sentences == ("What this module is for.",)


def test_addresses_give_no_key_words() -> None:
    text = (
        "Look at https://example.org/page and mail bee@example.org about honey, honey at example.org/honey/page. " * 5
    )
    assert {key_word.word for key_word in digest(text).key_words}.isdisjoint({"https", "example", "org", "page"})


def test_a_huge_text_is_counted_whole_but_ranked_by_its_beginning() -> None:
    beginning = "The comet passes the inner planets, and the comet grows a tail. " * 2_000
    end = "Zebras and zebras again, a herd of zebras, graze near the zebras. " * 1_000
    found = digest(beginning + "\n\n" + end)
    assert found.sentences == 3_000
    assert {key_word.word for key_word in found.key_words} >= {"planets", "tail"}
    assert not any("ebras" in key_word.word for key_word in found.key_words)


@pytest.mark.parametrize(
    "unit",
    [
        "[",
        "*a",
        "<!-- ",
        "a.",
        "e.g. ",
        "- ",
        "`",
        "任务",
        " ",
        "(a. ",
        "'\"",
        "_a",
        "a,b2,",
        "QUJD",
        "#",
        "\\",
        "![",
        "a@",
    ],
)
def test_no_input_makes_it_slow(unit: str) -> None:
    """A cost that grew with the square of the length would reach the time limit of the suite with this one."""
    assert digest(unit * (400_000 // len(unit)) + "x").characters > 399_000


def test_a_text_without_full_stops_is_read_by_its_beginning() -> None:
    found = digest("comet, tail, " * 500 + "zebra, herd, " * 500)
    assert {key_word.word for key_word in found.key_words} == {"comet", "tail"}


def test_the_same_text_gives_the_same_digest() -> None:
    assert digest(ENGLISH) == digest(ENGLISH)


@given(st.text(alphabet=st.sampled_from("aBc é任の.。!?\n #`-*_[]()|>{}~:\t1'\"\\…")))
def test_any_text_has_a_digest(text: str) -> None:
    found = digest(text)
    assert found.characters == len(text)
    assert len(found.key_words) <= 8
    assert len(found.summary) <= 3
    assert set(found.summary) <= set(read_prose(text).sentences)


def test_text_files_are_read(tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        file.write_text("Grüße 茶", encoding=encoding)
        assert read_text(file) == "Grüße 茶"
    file.write_bytes(b"")
    assert read_text(file) == ""


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\x7fELF\x00\x01", "not text: a NUL byte at position 4"),
        ("Grüße".encode("latin-1"), "not UTF-8 text: byte 2 cannot be decoded"),
        (b"\xff\xfea", "not UTF-16 text: byte 2 cannot be decoded"),
    ],
)
def test_what_is_not_text_is_refused_with_the_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    with pytest.raises(NonRetryableError) as caught:
        read_text(file)
    assert str(caught.value) == reason


def test_what_cannot_be_read_is_refused_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "closed").write_text("x")
    for path, reason in (
        (tmp_path / "missing", "cannot be read: no such file or directory"),
        (tmp_path, "a folder, not a file"),
        (tmp_path / "pipe", "not a file"),
    ):
        with pytest.raises(NonRetryableError, match=f"^{reason}$"):
            read_text(path)

    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(NonRetryableError, match=r"^cannot be read: permission denied$"):
        read_text(tmp_path / "closed")
