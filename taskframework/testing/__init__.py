"""Tools for tests: of programs that use taskframework, and of its own adapters.

Names that need a whole framework are imported at their first use; the clock needs nearly nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

from taskframework.testing.clock import FakeClock
from taskframework.testing.eventually import eventually

if TYPE_CHECKING:  # for type checkers and editors; `_LAZY_MODULES` is the same for Python
    from taskframework.testing.inline import Ran as Ran
    from taskframework.testing.inline import run as run
    from taskframework.testing.virtual_time import Harness as Harness
    from taskframework.testing.virtual_time import harness as harness

#: The module of each name that is imported later; none of these is called like its module.
_LAZY_MODULES = {"Harness": "virtual_time", "Ran": "inline", "harness": "virtual_time", "run": "inline"}

__all__ = ["FakeClock", "Harness", "Ran", "eventually", "harness", "run"]


def _load(name: str) -> Any:
    if name not in _LAZY_MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"taskframework.testing.{_LAZY_MODULES[name]}"), name)
    return value


if not TYPE_CHECKING:  # a type checker would take every misspelt name for one that this function knows
    __getattr__ = _load
