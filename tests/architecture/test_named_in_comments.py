"""What comments and docstrings name is there: a rename that forgets them is found."""

from __future__ import annotations

import ast
import io
import pkgutil
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator

from tests.architecture.sources import ROOT, modules

#: A name of ours with its place: a module or what is in it, or a class and its member.
_NAME = re.compile(r"`((?:taskframework|model)(?:\.\w+)+|_?[A-Z]\w*\.\w+)`")


def _prose(source: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT or token.string.startswith('"""'):
            yield token.start[0], token.string


def _members() -> dict[str, set[str]]:
    """The names that each class of the package, or a class that it is derived from, speaks of, by its own name."""
    members: defaultdict[str, set[str]] = defaultdict(set)
    bases: list[tuple[str, str]] = []
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                members[node.name] |= set(re.findall(r"\w+", ast.unparse(node)))
                bases += [(node.name, ast.unparse(base).partition("[")[0]) for base in node.bases]
    for _ in range(5):  # deeper than any class
        for name, base in bases:
            members[name] |= members.get(base, set())
    return members


def _is_there(name: str, members: dict[str, set[str]]) -> bool:
    first, _, rest = name.partition(".")
    if first not in ("taskframework", "model"):
        return first not in members or rest in members[first]  # else it is a class of somebody else
    try:
        pkgutil.resolve_name(name if first == "taskframework" else f"taskframework.{name}")
    except (ImportError, AttributeError):
        return False
    return True


def test_every_name_in_comments_exists() -> None:
    members, named = _members(), 0
    missing = []
    for path in modules():
        for line, text in _prose(path.read_text()):
            for name in _NAME.findall(text):
                named += 1
                if not _is_there(name, members):
                    missing.append(f"{path.relative_to(ROOT)}:{line}: {name}")
    assert named > 50
    assert not _is_there("TaskHandle.of_yesterday", members)
    assert not _is_there("model.task.of_yesterday", members)
    assert missing == []
