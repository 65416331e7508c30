"""What the pages have their readers import is public, and what is public is on the page about versions."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.pages import ROOT, name_of, pages

#: Imports of the package, of one line or with the names in parentheses.
_IMPORT = re.compile(r"^ *from (taskframework[\w.]*) import (?:\(([^)]*)\)|(.+))$", re.MULTILINE)
_VERSIONING = ROOT / "docs/versioning.md"
#: For those who change the framework itself.
_FOR_BUILDERS = "docs/adding/"
READ = [
    *(page for page in pages() if not name_of(page).startswith(_FOR_BUILDERS)),
    *sorted(ROOT.glob("docs/examples/**/*.py")),
    *sorted(ROOT.glob("taskframework/cli/new-project/**/*.py")),
]


def public_modules() -> dict[str, set[str]]:
    """The public modules by the table of the page, and the names that are public in each."""
    rows = re.findall(r"^\| (`taskframework.*?) \| (.*) \|$", _VERSIONING.read_text(), re.MULTILINE)
    named = {
        module: set(re.findall(r"`(\w+)`", names)) for row, names in rows for module in re.findall(r"`(.*?)`", row)
    }
    return {
        module: set(getattr(importlib.import_module(module), "__all__", ())) or names for module, names in named.items()
    }


def imported(text: str) -> Iterator[tuple[str, str]]:
    for module, several, one in _IMPORT.findall(text):
        for name in re.split(r"[,\s]+", (several or one.partition("#")[0]).strip(", \n")):
            yield module, name


def test_the_page_names_modules_that_are_there_with_their_names() -> None:
    public = public_modules()
    assert {"taskframework", "taskframework.client", "taskframework.testing"} <= public.keys()
    for module, names in public.items():
        missing = [name for name in names if not hasattr(importlib.import_module(module), name)]
        assert (bool(names), missing) == (True, []), module


@pytest.mark.parametrize("path", READ, ids=name_of)
def test_readers_import_what_is_public_and_nothing_else(path: Path) -> None:
    public = public_modules()
    inner = [(module, name) for module, name in imported(path.read_text()) if name not in public.get(module, ())]
    assert inner == []


def test_imports_are_found_in_both_forms() -> None:
    text = "from taskframework import (\n    A,\n    B,\n)\n    from taskframework.c import D, E  # noqa\n"
    assert [*imported(text)] == [(f"taskframework{m}", n) for m, n in [("", "A"), ("", "B"), (".c", "D"), (".c", "E")]]
