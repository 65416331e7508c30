"""The public names exist, and every module says what it is for. (Their order is ruff's business: RUF022.)"""

from __future__ import annotations

import ast

import taskframework
from tests.architecture.sources import ROOT, modules


def test_every_public_name_exists() -> None:
    assert taskframework.__all__
    assert [name for name in taskframework.__all__ if not hasattr(taskframework, name)] == []


def test_every_public_class_and_function_has_a_docstring() -> None:
    public = {name: getattr(taskframework, name) for name in taskframework.__all__}
    assert [name for name, value in public.items() if callable(value) and not value.__doc__] == []


def test_every_module_has_a_docstring() -> None:
    silent = [path for path in modules() if not ast.get_docstring(ast.parse(path.read_text()))]
    assert [str(path.relative_to(ROOT)) for path in silent] == []
