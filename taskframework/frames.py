"""Says whether a frame runs code of the standard library, of the framework or of a user, and where code is written."""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from itertools import dropwhile
from pathlib import Path
from traceback import FrameSummary
from types import CodeType
from typing import Any

_STANDARD_LIBRARY = (os.path.dirname(os.__file__) + os.sep, "<frozen ")
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_OURS = os.path.dirname(__file__) + os.sep


def is_installed(file: str) -> bool:
    """Return whether the file is part of an installed package; the standard library does not count as a package."""
    return any(folder in file for folder in _PACKAGES)


def is_ours(file: str) -> bool:
    return file.startswith(_OURS)


def is_of_the_standard_library(file: str) -> bool:
    return file.startswith(_STANDARD_LIBRARY) and not is_installed(file)


def of_the_author(frames: Sequence[FrameSummary]) -> Sequence[FrameSummary]:
    """Return the frames of other code in a traceback, without frames of the standard library that called this code."""
    called = dropwhile(lambda frame: is_ours(frame.filename) or is_of_the_standard_library(frame.filename), frames)
    return [frame for frame in called if not is_ours(frame.filename)]


def shown_place(file: str, line: int | None) -> str:
    """Return a line of a file for people, ` (shop.py, line 7)`; relative if the file is below the working directory."""
    path = Path(file)
    return f" ({path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}, line {line})"


def place_in_source(thing: Any) -> str:
    """Return where a class or a function is written, as `shown_place`; an empty text if this is not known."""
    try:
        # `@task` makes a class, so unwrap it by hand: from Python 3.14 on `unwrap` does not unwrap classes.
        thing = inspect.unwrap(getattr(thing, "__wrapped__", thing))
        if isinstance(code := getattr(thing, "__code__", None), CodeType):  # so the file need not be read
            return "" if code.co_filename.startswith("<") else shown_place(code.co_filename, code.co_firstlineno)
        file, line = inspect.getsourcefile(thing), inspect.getsourcelines(thing)[1]
    except (OSError, TypeError, ValueError):  # built in, or made by `exec`
        return ""
    return shown_place(file, line) if file else ""
