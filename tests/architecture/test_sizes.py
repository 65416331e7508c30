"""Files and functions stay small enough to be read at once."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.architecture.sources import PACKAGE, ROOT, modules

_MOST_LINES_OF_A_FILE = 400
_MOST_LINES_OF_A_FUNCTION = 60


def test_no_file_is_too_long() -> None:
    sizes = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in modules()}
    too_long = {path: lines for path, lines in sizes.items() if lines > _MOST_LINES_OF_A_FILE}
    assert too_long == {}, f"more than {_MOST_LINES_OF_A_FILE} lines: move what belongs together into a file of its own"


def test_no_function_is_too_long() -> None:
    sizes = {
        f"{path.relative_to(ROOT)}:{function.lineno} {function.name}": lines
        for path in modules()
        for function, lines in function_sizes(path.read_text())
    }
    assert sizes, f"no function found in {PACKAGE}"
    too_long = {name: lines for name, lines in sizes.items() if lines > _MOST_LINES_OF_A_FUNCTION}
    assert too_long == {}, f"more than {_MOST_LINES_OF_A_FUNCTION} lines without the docstring: give a part a name"


def test_the_docstring_does_not_count() -> None:
    body = "\n".join(f"    x{number} = 1" for number in range(10))
    source = f'def short():\n    """One.\n\n    Two.\n    """\n{body}\n\nasync def bare():\n{body}\n'
    assert [lines for _, lines in function_sizes(source)] == [11, 11]


def function_sizes(source: str) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, int]]:
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        assert node.end_lineno is not None
        lines = node.end_lineno - node.lineno + 1
        first = node.body[0]
        if ast.get_docstring(node, clean=False) is not None and first.end_lineno is not None:
            lines -= first.end_lineno - first.lineno + 1
        yield node, lines
