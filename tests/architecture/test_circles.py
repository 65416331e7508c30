"""No module needs, by whatever way, one that needs it: neither at the top, nor in a function, nor by its name."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Set
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.architecture.sources import PACKAGE, modules

#: Modules that import what a user named; what they import is no module of ours.
_IMPORT_FOR_USERS = {"taskframework.runtime", "taskframework.cli.applications"}
#: The public names. Nothing inside imports the package root, which an import rule holds.
_ROOT = "taskframework"

Graph = dict[str, set[str]]


def test_no_module_needs_itself_again() -> None:
    graph = _graph({_name(path): path.read_text() for path in modules()})
    assert len(graph) > 200
    assert graph["taskframework.runtime"] >= {"taskframework.api.server", "taskframework.wiring.process"}, (
        "in functions"
    )
    assert "taskframework.cli.demo.command" in graph["taskframework.cli.main"], "by its name"
    assert _circle(graph) is None


@pytest.mark.parametrize(
    "line",
    [
        "from taskframework.b import thing",
        "from taskframework import b",
        "def later():\n    import taskframework.b",
        "if TYPE_CHECKING:\n    from taskframework.b import Thing",
        "importlib.import_module('taskframework.b')",
        "import_module(f'taskframework.{name}')",
        "__import__('taskframework.b')",
    ],
)
def test_a_circle_is_found_whatever_way_it_is_made(line: str) -> None:
    graph = _graph({"taskframework.a": line, "taskframework.b": "def f():\n    from taskframework import a"})
    assert _circle(graph) is not None


def test_an_import_by_a_name_that_cannot_be_followed_is_refused() -> None:
    with pytest.raises(AssertionError, match=r"taskframework.a, line 1"):
        _graph({"taskframework.a": "importlib.import_module(name)"})


def _name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _graph(sources: dict[str, str]) -> Graph:
    return {name: set(_imports(name, text, sources.keys())) - {name} for name, text in sources.items() if name != _ROOT}


def _imports(name: str, text: str, known: Set[str]) -> Iterator[str]:
    """The modules that this one imports anywhere in its text."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            below = {f"{node.module}.{alias.name}" for alias in node.names} & known
            yield from below or ({str(node.module)} & known)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            start = _known_start(node.args[0])
            assert start or name in _IMPORT_FOR_USERS, f"{name}, line {node.lineno}: what is imported here?"
            exact = isinstance(node.args[0], ast.Constant)
            yield from (
                module for module in known if module == start or (not exact and start and module.startswith(start))
            )


def _known_start(argument: ast.expr) -> str:
    """The text of a name, or its beginning up to the first part that is only known when the program runs."""
    first = argument.values[0] if isinstance(argument, ast.JoinedStr) else argument
    return str(first.value) if isinstance(first, ast.Constant) else ""


def _circle(graph: Graph) -> list[str] | None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return None
