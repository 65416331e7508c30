"""The glossary has every room and every part of the store port, in order, and names only what is in the code."""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache

from taskframework.stores import base
from tests.architecture.sources import PACKAGE, ROOT, modules

_ROW = re.compile(r"^\| \*\*(?P<word>[^*]+)\*\* \| (?P<meaning>.+) \|(?P<names>[^|]*)\|$", re.MULTILINE)
_GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()


def words() -> list[str]:
    """The words that are explained, as they stand there; never none."""
    found = [row["word"] for row in _ROW.finditer(_GLOSSARY)]
    assert found
    return found


def names() -> set[str]:
    """What the glossary names of the code."""
    return {name for row in _ROW.finditer(_GLOSSARY) for name in re.findall(r"`(\w+)`", row["names"])}


@cache
def names_in_the_code() -> frozenset[str]:
    """Every class, function, module, field and other name of the package."""
    found = {path.stem for path in modules()}
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(node.name)
            elif isinstance(node, ast.Name):
                found.add(node.id)
    return frozenset(found)


def test_every_row_is_read() -> None:
    _, _, table = _GLOSSARY.partition("|---|---|---|\n")
    assert [line for line in table.splitlines() if not _ROW.fullmatch(line)] == []


def test_the_words_are_in_order_and_none_is_explained_twice() -> None:
    assert words() == sorted(set(words()))


def test_each_sub_package_is_in_the_glossary() -> None:
    rooms = {folder.parent.name for folder in PACKAGE.glob("*/__init__.py")}
    assert rooms - set(words()) == set(), "explain the folder in a row of docs/glossary.md"


def test_each_protocol_of_the_store_port_is_in_the_glossary() -> None:
    parts = {name for name, part in inspect.getmembers(base, inspect.isclass) if getattr(part, "_is_protocol", False)}
    own = {name for name in parts if getattr(base, name).__module__ == base.__name__}
    assert own
    assert own - names() == set(), "name the protocol in the last column of docs/glossary.md"


def test_every_name_in_the_glossary_is_in_the_code() -> None:
    assert names() - names_in_the_code() == set(), "docs/glossary.md names what the code no longer has"
