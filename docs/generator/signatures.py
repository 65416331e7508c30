"""Signatures as they are written, without the quotes of postponed annotations."""

from __future__ import annotations

import inspect
import re
from datetime import timedelta
from typing import Any

_WIDTH = 100
#: Defaults that are shown: what is said of any other, as of `os.environ`, differs from process to process.
_SHOWN = (type(None), bool, int, float, str, tuple, timedelta)


class _AsWritten:
    """An annotation or a default that is shown by this text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def signature_of(name: str, value: Any) -> str:
    """How a function or class is called, on one line if that is short enough, else with a parameter a line."""
    found = inspect.signature(value)
    parameters = [_plain(each) for each in found.parameters.values() if each.name not in ("self", "cls")]
    answer = "" if isinstance(value, type) else _returned(found.return_annotation)
    is_async = inspect.iscoroutinefunction(value) or hasattr(value, "must_be_awaited")
    prefix = "class " if isinstance(value, type) else "async def " if is_async else "def "
    line = f"{prefix}{name}{_listed(parameters)}{answer}"
    if len(line) <= _WIDTH:
        return line
    texts = _listed(parameters)[1:-1]
    return f"{prefix}{name}(\n" + "".join(f"    {text},\n" for text in _split(texts)) + f"){answer}"


def _listed(parameters: list[inspect.Parameter]) -> str:
    return str(inspect.Signature(parameters))


def _plain(parameter: inspect.Parameter) -> inspect.Parameter:
    if isinstance(parameter.annotation, str):
        # What is rare concerns the stores alone.
        parameter = parameter.replace(annotation=_AsWritten(re.sub(r"^Rare\[(.*)\]$", r"\1", parameter.annotation)))
    if not isinstance(parameter.default, _SHOWN) and parameter.default is not parameter.empty:
        parameter = parameter.replace(default=_AsWritten("..."))
    return parameter


def _returned(annotation: Any) -> str:
    if annotation is inspect.Signature.empty:
        return ""
    return f" -> {annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)}"


def _split(text: str) -> list[str]:
    """The parameters of a list; commas inside of brackets and texts belong to one of them."""
    parts, depth, start = [], 0, 0
    for at, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    return [*parts, text[start:].strip()]
